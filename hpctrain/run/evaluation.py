"""Evaluating a run that was trained before: its network from the run folder, on its own data or on other files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.comm.group import Group
from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.nn.metrics import by_name
from hpctrain.nn.model import Model
from hpctrain.run.handing_out import hand_out
from hpctrain.run.learned import Learned, stored_shape
from hpctrain.run.master import Prepared, expand_files, open_source, resolve
from hpctrain.run.network import network
from hpctrain.run.restore import put_back
from hpctrain.run.threads import limit_threads
from hpctrain.run.warm_up import warm_up
from hpctrain.training import checkpoint as checkpoints
from hpctrain.training.checkpoint import Checkpoint, CheckpointError
from hpctrain.training.evaluate import Evaluator

PARTS = ("test", "validation", "train")


def evaluate_run(group: Group, run_dir: Path, data: Sequence[str] | None, part: str) -> dict[str, float]:
    """Return loss and metrics, see `launch.evaluate`.  Collective."""
    checkpoint = prepared = None
    with group.agreed():
        if part not in PARTS:
            raise UserError(f"unknown part {part!r}", allowed=PARTS)
        if group.rank == 0:
            checkpoint = load_weights(run_dir)
            prepared = _prepare(checkpoint, data, part)
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
    evaluator = Evaluator(group, model, by_name(job.metrics.names), prepared.preparation.targets)
    warm_up(group, [("evaluation", evaluator)], lambda text: None)
    dataset = hand_out(group, prepared, lambda text: None)
    shard = getattr(dataset, "train" if data is not None else part)
    report = evaluator.run(shard, part)
    dataset.close()
    return {**report.metrics, "examples": report.examples}


def load_weights(run_dir: Path) -> Checkpoint:
    """Return a run's final weights, or its latest valid checkpoint's while there are none; says which it takes."""
    if not run_dir.is_dir():
        found = "a file" if run_dir.exists() else None
        raise UserError(
            f"there is no run folder {run_dir}", found=found, hint="name a run's folder, as runs/digits-001"
        )
    model = run_dir / "model.h5"
    why = "the run is not finished"
    if model.exists():
        try:
            return checkpoints.load_model(model)
        except CheckpointError as error:
            why = f"{model} cannot be used, {error.reason}"
    checkpoint = checkpoints.latest_valid(
        run_dir / "checkpoints", lambda path, reason: _say(f"{path} is skipped: {reason}")
    )
    if checkpoint is None:
        raise UserError(
            f"there are no weights to evaluate in {run_dir}",
            found=why if model.exists() else None,
            allowed="a run's folder, with model.h5 or checkpoints/step-*.h5",
        )
    _say(f"{why}: these are the weights after step {checkpoint.step:,} ({checkpoint.path.name})")
    return checkpoint


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _prepare(checkpoint: Checkpoint, data: Sequence[str] | None, part: str) -> Prepared:
    """Check the job against the data to evaluate on; other files become the one and only part."""
    job = Job.from_toml(checkpoint.job_toml, f"the job in {checkpoint.path}")
    if data is None:
        prepared = resolve(job, learned=Learned.of(checkpoint))
        if part not in prepared.facts.rows:
            raise UserError(
                f"the run has no {part} part",
                found=f"parts: {', '.join(prepared.facts.rows)}",
                hint="name files to evaluate on with --data",
            )
        return prepared
    if part != "test":
        raise UserError(f"part {part} is one of the run's own data, but other files are named", hint="leave one out")
    section = job.data.model_copy(
        update={"files": list(data), "split": None, "validation_files": None, "test_files": None}
    )
    job = job.model_copy(update={"data": section})
    _check_same_kind(job, checkpoint.interface)
    return resolve(job, learned=Learned.of(checkpoint))


def _check_same_kind(job: Job, trained: dict[str, Any]) -> None:
    """Refuse data of another shape or kind than the network was trained on, in these words and not in a layer's."""
    files, categories = expand_files(job, job.data.files), trained.get("categories")
    with open_source(job, files, trained["target_kind"], categories=categories) as source:
        form = source.format
    found = (tuple(form.input_shape), form.target_kind, form.target_width)
    wanted = (stored_shape(trained), trained["target_kind"], trained["target_width"])
    if found != wanted:
        raise UserError(
            "the data do not have the form that the network was trained on",
            found=_form(*found),
            allowed=_form(*wanted),
            hint="evaluate on files with the datasets of the run's job",
        )


def _form(input_shape: tuple[int, ...], target_kind: str, target_width: int) -> str:
    targets = "class labels" if target_kind == "class" else f"{target_width} real number(s) as target"
    return f"inputs of shape {input_shape} and {targets}"
