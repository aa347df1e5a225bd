"""The lanes of a reproducible run: micro-batches of a fixed size, by which everything is summed at every world size."""

from __future__ import annotations

from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.nn.fixed_point import MOST_LANES, Lanes
from hpctrain.nn.graph import Graph

DEFAULT_LANES = 8  # of a global batch, where the job names no micro_batch


def default_lane(job: Job) -> int | None:
    """Return the rows of a lane of a job that names no micro-batch; None where there are no lanes."""
    return -(-job.run.global_batch // DEFAULT_LANES) if job.run.reproducible and job.run.micro_batch is None else None


def lanes_of(job: Job) -> Lanes | None:
    """Return the lanes of a global batch of a resolved job; None where it is not reproducible."""
    run = job.run
    return Lanes(-(-run.update_batch // run.micro_batch), run.micro_batch) if run.reproducible else None


def rows_a_pass(job: Job, workers: int) -> int:
    """Return the rows of a pass of a resolved, reproducible job: the lanes that a rank has of a global batch."""
    lanes = -(-job.run.global_batch // job.run.micro_batch)
    return -(-lanes // workers) * job.run.micro_batch


def check_lanes(job: Job, graph: Graph) -> None:
    """Refuse a network or a batch that cannot be summed by lanes."""
    if not job.run.reproducible:
        return
    if meeting := [node.name for node in graph.nodes if node.built.meets]:
        raise UserError(
            "run.reproducible does not go with synchronised batch norm, whose statistics are float sums over the ranks",
            found=f"sync = true in {', '.join(meeting)}",
            allowed="batch norm without sync: its statistics are those of each micro_batch",
        )
    rows = job.run.micro_batch
    lanes = 0 if rows is None else -(-job.run.update_batch // rows)
    if lanes > MOST_LANES:
        raise UserError(
            "run.reproducible cuts a batch into too many lanes to sum them exactly",
            found=f"run.micro_batch = {rows} of {job.run.update_batch} examples: {lanes} lanes",
            allowed=f"at most {MOST_LANES}",
            hint=f"set run.micro_batch = {-(-job.run.update_batch // MOST_LANES)} or more",
        )


def check_order(job: Job, shuffle: str) -> None:
    """Refuse another order of the examples than the job's, which was taken because there is too little memory."""
    if job.run.reproducible and shuffle != job.data.shuffle:
        raise UserError(
            f'run.reproducible with data.shuffle = "{job.data.shuffle}" needs all rows in memory, or in files that can '
            "be mapped: whether they fit must not depend on the number of ranks",
            allowed=f'data.shuffle = "{shuffle}", which is the same however much memory there is',
            agreed=True,
        )
