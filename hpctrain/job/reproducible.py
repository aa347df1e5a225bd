"""What a job with `run.reproducible` cannot have: what makes the weights depend on how many ranks there are."""

from __future__ import annotations

from typing import Any

from hpctrain.errors import UserError


def check_reproducible(job: Any) -> None:
    """Refuse, by its name, each part of a job that would break the promise of `run.reproducible`.

    What only the network tells (synchronised batch norm) is judged when that is built.
    """
    if not job.run.reproducible:
        return
    if job.data.shuffle == "local":
        raise _refusal(
            'data.shuffle = "local": which rows meet in a batch depends on who holds them',
            allowed='data.shuffle = "global", "chunks" or "none"',
        )
    if job.schedule.scale_with_workers != "none" and job.schedule.workers is None:
        raise _refusal(
            f'schedule.scale_with_workers = "{job.schedule.scale_with_workers}": the learning rate depends on the '
            "number of ranks",
            allowed='"none", or schedule.workers = a number, which then counts at every world size',
        )
    if getattr(job.strategy, "overlap", False) is True:
        raise _refusal(
            "strategy.overlap = true: sums in fixed point leave when all of them are known to fit",
            allowed='strategy.overlap = "auto" or false',
        )
    if getattr(job.strategy, "compression", None) is not None:
        raise _refusal(
            "strategy.compression: what each rank rounds off, and keeps of that, depends on the number of ranks",
            allowed="gradients that are sent whole",
        )
    if job.strategy.shards_optimizer and type(job.optimizer).norms_kernel is not None:
        raise _refusal(
            "strategy.name with norms of whole tensors (lamb, lars), of which each rank has a part: how they are "
            "rounded depends on the number of ranks",
            allowed='strategy.name = "all_reduce", or another optimizer',
        )


def _refusal(what: str, allowed: str) -> UserError:
    return UserError(
        "run.reproducible promises the same weights at any number of ranks, which this job cannot have",
        found=what,
        allowed=allowed,
        hint="leave run.reproducible out to have both",
    )
