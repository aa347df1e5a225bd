"""Evaluating a run that was trained before: its network from the run folder, on its own data or on other files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpctrain.comm.group import Group
from hpctrain.data.load import load
from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.nn.metrics import by_name
from hpctrain.nn.model import Model
from hpctrain.run.master import Prepared, resolve
from hpctrain.run.network import network
from hpctrain.run.restore import put_back
from hpctrain.run.threads import limit_threads
from hpctrain.run.warm_up import warm_up
from hpctrain.training import checkpoint as checkpoints
from hpctrain.training.checkpoint import Checkpoint, CheckpointError
from hpctrain.training.evaluate import Evaluator

PARTS = ("test", "validation", "train")


def evaluate_run(group: Group, run_dir: Path, data: str | Sequence[str] | None, part: str) -> dict[str, float]:
    """Return loss and metrics, see `launch.evaluate`.  Collective."""
    checkpoint = prepared = None
    with group.agreed():
        if part not in PARTS:
            raise UserError(f"unknown part {part!r}", allowed=PARTS)
        if group.rank == 0:
            checkpoint = load_weights(run_dir)
            prepared = _prepare(Job.from_toml(checkpoint.job_toml, f"the job in {checkpoint.path}"), data, part)
    checkpoint, prepared = group.broadcast_object((checkpoint, prepared), patient=True)
    job, facts = prepared.job, prepared.facts
    limit_threads(job.run.threads_per_rank)
    with group.agreed():
        model = Model(
            network(job, facts, job.loss),
            facts.input_shape,
            job.loss,
            facts.target_kind,
            seed=job.run.seed,
            allocate=group.allocate,
        )
        put_back(checkpoint, model, None)
    evaluator = Evaluator(group, model, by_name(job.metrics.names))
    warm_up(group, [("evaluation", evaluator)], lambda text: None)
    reads = group.rank == 0 or job.data.distribute == "shared"
    sources = [prepared.source(name) if reads else None for name in ("train", "validation", "test")]
    split = (job.data.split.validation, job.data.split.test) if job.data.split else (0.0, 0.0)
    dataset = load(group, *sources, split=split, distribute=job.data.distribute, seed=job.run.seed)
    shard = getattr(dataset, "train" if data is not None else part)
    report = evaluator.run(shard, part)
    return {**report.metrics, "examples": report.examples}


def load_weights(run_dir: Path) -> Checkpoint:
    """Return a run's final weights, or those of its latest valid checkpoint while there are none."""
    if not run_dir.is_dir():
        raise UserError(f"there is no run folder {run_dir}", hint="name the folder of a run, such as runs/digits-001")
    try:
        return checkpoints.load_model(run_dir / "model.h5")
    except CheckpointError as error:
        found = checkpoints.latest_valid(run_dir / "checkpoints", lambda path, reason: None)
        if found is None:
            raise UserError(
                f"there are no weights to evaluate in {run_dir}",
                found=error.reason,
                allowed="a folder with model.h5 or checkpoints/step-*.h5",
            ) from None
        return found


def _prepare(job: Job, data: str | Sequence[str] | None, part: str) -> Prepared:
    """Check the job against the data to evaluate on; other files become the one and only part."""
    if data is not None:
        files = data if isinstance(data, str) else list(data)
        section = job.data.model_copy(
            update={"files": files, "split": None, "validation_files": None, "test_files": None}
        )
        return resolve(job.model_copy(update={"data": section}))
    prepared = resolve(job)
    if part not in prepared.facts.rows:
        raise UserError(
            f"the run has no {part} part",
            found=f"parts: {', '.join(prepared.facts.rows)}",
            hint="name files to evaluate on with --data",
        )
    return replace(prepared)
