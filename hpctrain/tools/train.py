"""The verb `train`: which job a command line means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.errors import UserError

if TYPE_CHECKING:
    from hpctrain.job import Job


def command(job: Path | None, overrides: Sequence[str], run_dir: str | Path | None, resume: bool) -> int:
    """Train on all ranks and return the exit code."""
    from hpctrain.run import launch

    return launch.run_train(job_loader(job, overrides, run_dir, resume), run_dir, resume)


def job_loader(
    job: Path | None, overrides: Sequence[str], run_dir: str | Path | None, resume: bool
) -> Callable[[], Job]:
    """Return a function that reads the job; it alone touches files, and is called on rank 0 alone."""

    def load() -> Job:
        from hpctrain.job import Job

        path = job_path(job, run_dir, resume)
        return Job.builtin(overrides) if path is None else Job.load(path, overrides)

    return load


def job_path(job: Path | None, run_dir: str | Path | None, resume: bool) -> Path | None:
    """Return the job file that a command line means, None for the built-in job.

    A job file that is named counts; else a run that is resumed has its own; else it is the built-in job.  To resume a
    folder without a job file is a `UserError`: the built-in job in its stead would surprise.
    """
    if job is not None or not resume or run_dir is None:
        return job
    path = Path(run_dir) / "job.toml"
    if not path.is_file():
        raise UserError(
            f"{run_dir} is not the folder of a run: there is no job.toml in it",
            hint="correct --run-dir, or name the job file as well, to start over where nothing can be resumed",
        )
    return path
