"""Jobs that `init` guesses, for tests, and arrays to guess from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
from datasets import write_arrays

from hpctrain import Job
from hpctrain.tools import init as tool

X, IMAGES = np.random.default_rng(0).normal(size=(120, 6)), np.random.default_rng(0).normal(size=(120, 12, 12, 3))
"""A table and images of 120 examples."""


def job_of(folder: Path, paths: list[Path], overrides: list[str] | None = None) -> Job:
    """Guess a job for files."""
    (folder / "job.toml").write_text(tool.init([str(path) for path in paths]))
    return Job.load(folder / "job.toml", overrides or [])


def data_of(folder: Path, **datasets: object) -> dict:
    """Guess the section for one file with these datasets."""
    path = write_arrays(folder / "a.h5", **datasets)
    section = tomllib.loads(tool.init([str(path)]))["data"]
    return {key: value for key, value in section.items() if key not in ("files", "split")}
