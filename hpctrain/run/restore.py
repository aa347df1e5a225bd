"""Going on with a run: the latest valid checkpoint, whether the job still fits it, and the weights put back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.nn.model import Model
from hpctrain.optim.averaging import SLOT
from hpctrain.run.folder import RunFolder
from hpctrain.run.master import Prepared
from hpctrain.strategies.base import StrategyRun
from hpctrain.training import checkpoint as checkpoints
from hpctrain.training.checkpoint import Checkpoint
from hpctrain.training.progress import Progress


def restore(
    group: Group,
    folder: RunFolder | None,
    prepared: Prepared,
    model: Model,
    strategy: StrategyRun,
    say: Callable[[str], None],
) -> Progress:
    """Load the latest valid checkpoint on rank 0, check that the run goes on as it began, put the weights on all ranks.

    Returns where to go on; a fresh `Progress` when there is no checkpoint.  A job changed in a way that matters, or
    data that are not the same, is a `UserError` that names what differs.  Collective.
    """
    checkpoint = None
    with group.agreed():
        if folder is not None:
            checkpoint = checkpoints.latest_valid(
                folder.checkpoints, lambda path, reason: say(f"checkpoint {path} is skipped: {reason}")
            )
            if checkpoint is not None:
                check_same_run(checkpoint, prepared)
    checkpoint = group.broadcast_object(checkpoint)
    if checkpoint is None:
        say("there is no checkpoint to resume from: starting over")
        return Progress()
    with group.agreed():
        put_back(checkpoint, model, strategy)
    say(f"resuming from {_short(checkpoint.path)}, after step {checkpoint.step:,}")
    if checkpoint.world_size != group.size and not prepared.job.run.reproducible:
        say(
            f"the checkpoint was written by {checkpoint.world_size} ranks, this run has {group.size}: "
            "results agree to rounding, not bit for bit"
        )
    return Progress.from_position(checkpoint.position, holds_sums=group.rank == 0)


def put_back_preparation(group: Group, folder: RunFolder | None, prepared: Prepared) -> None:
    """Give a resumed run's preparation what it learned when the run began, from the latest valid checkpoint.

    Without a checkpoint it stays as it is.  To be called before the data is loaded.  Collective.
    """
    if not prepared.preparation:
        return
    learned = None
    with group.agreed():
        if folder is not None:
            # What is skipped is told by `restore`.
            learned = checkpoints.latest_valid(folder.checkpoints, lambda *_: None, checkpoints.load_preparation)
            if learned is not None:
                _check_same_kinds(learned, prepared)
    learned = group.broadcast_object(learned)
    if learned is not None:
        with group.agreed():
            prepared.preparation.put_back(learned)


def _check_same_kinds(learned: dict[str, np.ndarray], prepared: Prepared) -> None:
    """Refuse data whose one-hot columns have other sizes: the network that goes on has as many inputs as before."""
    for name, sizes in prepared.preparation.tensors().items():
        if name.endswith(".size") and not np.array_equal(learned.get(name), sizes):
            raise UserError(
                "the data have changed since the checkpoint: one-hot columns have other sizes",
                found=str(sizes.astype(int).tolist()),
                allowed=str(learned[name].astype(int).tolist() if name in learned else "none"),
                hint="put the old files back, or start a new run in another --run-dir",
            )


def check_same_run(checkpoint: Checkpoint, prepared: Prepared) -> None:
    """Raise a `UserError` where job or data differ from the checkpoint's in a way that would change the weights."""
    check_same_job(Job.from_toml(checkpoint.job_toml, f"the job in {checkpoint.path}"), prepared.job)
    if checkpoint.fingerprint != prepared.facts.fingerprint:
        raise UserError(
            "the data have changed since the checkpoint",
            found=str(prepared.facts.fingerprint),
            allowed=str(checkpoint.fingerprint),
            hint="put the old files back, or start a new run in another --run-dir",
        )


def check_same_job(before: Job, now: Job) -> None:
    """Raise a `UserError` that names each key in which a resumed job differs in a way that would change the weights."""
    changed = before.differences(now)
    if changed:
        raise UserError(
            "the job has changed since the run began, in a way that matters:\n    " + "\n    ".join(changed),
            hint="resume with the run's own job (leave out the job file and --set), "
            "or start a new run in another folder",
        )


def put_back(checkpoint: Checkpoint, model: Model, strategy: StrategyRun | None) -> None:
    """Write a checkpoint's parameters, state and optimizer state into a model and a strategy.

    Without a strategy the weights alone, to evaluate with: their moving average where the run keeps one.
    """
    checkpoints.fill(model.state_layout, model.state, checkpoint.state)
    if strategy is None:
        checkpoints.fill(model.layout, model.params, checkpoint.optimizer.get(SLOT, checkpoint.parameters))
        return
    checkpoints.fill(model.layout, model.params, checkpoint.parameters)
    slots = {}
    for name, tensors in checkpoint.optimizer.items():
        slots[name] = np.zeros_like(model.params)
        checkpoints.fill(model.layout, slots[name], tensors)
    strategy.load_state_dict(slots)
    strategy.load_records(checkpoint.strategy)


def _short(path: Path | None) -> str:
    return "/".join(path.parts[-2:]) if path else "a checkpoint"
