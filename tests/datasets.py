"""Small HDF5 files and job files for tests that launch whole runs, and how a run's results are read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tomli_w

CLASSES, FEATURES = 3, 5


def write_arrays(path: Path, **datasets: Any) -> Path:
    """Write each named array (or h5py-compatible value) as a dataset of that name."""
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return path


def class_arrays(rows: int = 90, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `FEATURES` numbers around one centre for each of the `CLASSES`: easy to tell apart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, rows)
    centres = 3 * np.eye(CLASSES, FEATURES)
    return (centres[labels] + rng.normal(size=(rows, FEATURES))).astype("f4"), labels.astype("i8")


def write_classes(path: Path, rows: int = 90, seed: int = 0) -> Path:
    """Write `class_arrays` as the datasets `x` and `y`."""
    inputs, labels = class_arrays(rows, seed)
    return write_arrays(path, x=inputs, y=labels)


def job_for(files: Path | str | list[str], **sections: dict[str, Any]) -> dict[str, Any]:
    """A short job on datasets `x` and `y`; `sections` add keys to its sections or replace them."""
    job: dict[str, dict[str, Any]] = {
        "data": {"files": files if isinstance(files, list) else str(files), "input": "x", "target": "y"},
        "model": {"layers": [{"type": "dense", "units": 8}, "relu", {"type": "dense", "units": CLASSES}]},
        "run": {"epochs": 2, "global_batch": 16, "progress": "lines"},
    }
    for name, values in sections.items():
        job[name] = {**job.get(name, {}), **values}
    return job


def write_job(path: Path, job: dict[str, Any]) -> Path:
    """Write a job as TOML."""
    path.write_text(tomli_w.dumps(job))
    return path


def small_job(folder: Path, **sections: dict[str, Any]) -> Path:
    """Write a data file and a job for it into a folder; return the job file."""
    return write_job(folder / "job.toml", job_for(write_classes(folder / "data.h5"), **sections))


def summary(run_dir: Path) -> dict[str, Any]:
    """Read a run's summary.json."""
    return json.loads((run_dir / "summary.json").read_text())


def records(run_dir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Read a run's metrics.jsonl: all records, or those of one kind; without a last line still being written."""
    text = (run_dir / "metrics.jsonl").read_text()
    found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [record for record in found if kind in (None, record["kind"])]


def checkpoint_steps(run_dir: Path) -> list[int]:
    """The steps of a run's checkpoints, oldest first."""
    return sorted(int(path.stem.removeprefix("step-")) for path in (run_dir / "checkpoints").glob("step-*.h5"))
