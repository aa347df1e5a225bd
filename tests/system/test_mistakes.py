"""Each mistake of a user gives one clear message, a non-zero code, no traceback and no hang, on four ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import class_arrays, job_for, small_job, write_arrays, write_classes, write_job
from launching import Finished, hpctrain

LIMIT_S = 60


def check_message(done: Finished, words: list[str]) -> None:
    """One message that has all the words, said once for the whole job; code 2; no traceback."""
    assert done.returncode == 2, done.output
    assert "Traceback" not in done.output
    for word in words:
        assert word in done.stderr, f"{word!r} is missing in\n{done.output}"
    # The launcher's own framed words about the exit code are not ours.
    ours = [line for line in done.stderr.splitlines() if re.search(r"[a-z]{3}", line) and not line.startswith("=")]
    twice = [line for line, count in Counter(ours).items() if count > 1]
    assert not twice, f"said more than once: {twice}"


def inputs_with(value: float, row: int) -> np.ndarray:
    inputs = class_arrays()[0]
    inputs[row, 2] = value
    inputs[row + 3, 1] = value  # the first one is named, not this
    return inputs


def labels_with(value: int, row: int) -> np.ndarray:
    labels = class_arrays()[1]
    labels[row] = value
    return labels


def text_file(folder: Path) -> Path:
    path = folder / "notes.h5"
    path.write_text("this is no HDF5 file\n" * 100)
    return path


def cut_file(folder: Path) -> Path:
    path = write_classes(folder / "cut.h5", rows=5000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def empty_file(folder: Path) -> Path:
    path = folder / "empty.h5"
    path.touch()
    return path


def data(**datasets: Any) -> Callable[[Path], Path]:
    """Make a data file of these datasets beside what a good file has."""
    inputs, labels = class_arrays()
    return lambda folder: write_arrays(folder / "bad.h5", **{"x": inputs, "y": labels, **datasets})


# A data file that is wrong -> what the message must say.
BAD_DATA = {
    "missing file": (lambda folder: folder / "nowhere.h5", ["nowhere.h5"]),
    "not HDF5": (text_file, ["notes.h5", "HDF5"]),
    "cut in half": (cut_file, ["cut.h5"]),
    "empty file": (empty_file, ["empty.h5", "empty"]),
    "no rows": (data(x=np.zeros((0, 5), "f4"), y=np.zeros(0, "i8")), ["bad.h5", "rows"]),
    "targets shorter": (data(y=class_arrays()[1][:80]), ["90", "80"]),
    "label too large": (data(y=labels_with(7, row=41)), ["7", "41"]),
    "NaN": (data(x=inputs_with(np.nan, row=33)), ["NaN", "33"]),
    "complex numbers": (data(x=np.ones((90, 4), np.complex64)), ["complex", "x"]),
}

# Keys of a job that are wrong -> what the message must say.
BAD_KEYS = {
    "missing dataset": ({"data": {"input": "images"}}, ["images", "x", "y", "90"]),
    "misspelled key": ({"run": {"epoch": 3}}, ["run.epoch", "epochs"]),
    "unknown layer": ({"model": {"layers": ["dence"]}}, ["dence", "dense", "dropout", "relu"]),
    "unknown optimizer": ({"optimizer": {"name": "adamm"}}, ["adamm", "adam", "adamw", "sgd"]),
    "unknown loss": ({"loss": {"name": "l2"}}, ["l2", "binary_cross_entropy", "huber", "mse"]),
    "negative lr": ({"optimizer": {"name": "sgd", "lr": -0.1}}, ["optimizer.lr", "-0.1", "0"]),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data(case: str, tmp_path: Path) -> None:
    make, words = BAD_DATA[case]
    job = write_job(tmp_path / "job.toml", job_for(make(tmp_path)))
    check_message(hpctrain(4, "train", job, "--run-dir", tmp_path / "run", timeout=LIMIT_S, cwd=tmp_path), words)


@pytest.mark.parametrize("case", ["label too large", "NaN"])
def test_bad_rows_that_only_one_rank_reads(case: str, tmp_path: Path) -> None:
    make, words = BAD_DATA[case]
    job = write_job(tmp_path / "job.toml", job_for(make(tmp_path), data={"distribute": "shared"}))
    check_message(hpctrain(4, "train", job, "--run-dir", tmp_path / "run", timeout=LIMIT_S, cwd=tmp_path), words)


@pytest.mark.parametrize("case", BAD_KEYS)
def test_bad_key(case: str, tmp_path: Path) -> None:
    sections, words = BAD_KEYS[case]
    job = small_job(tmp_path, **sections)
    check_message(hpctrain(4, "train", job, "--run-dir", tmp_path / "run", timeout=LIMIT_S, cwd=tmp_path), words)


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    """Two columns to predict, and a last layer of three outputs: the layer and both shapes are named."""
    inputs = class_arrays()[0]
    path = write_arrays(tmp_path / "data.h5", x=inputs, y=np.zeros((90, 2), "f4"))
    job = write_job(tmp_path / "job.toml", job_for(path))
    done = hpctrain(4, "train", job, "--run-dir", tmp_path / "run", timeout=LIMIT_S, cwd=tmp_path)
    check_message(done, ["layers.2", "dense", "3", "2"])


def test_images_into_a_dense_layer(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "data.h5", x=np.zeros((90, 4, 6), "f4"), y=class_arrays()[1])
    job = write_job(tmp_path / "job.toml", job_for(path))
    done = hpctrain(4, "train", job, "--run-dir", tmp_path / "run", timeout=LIMIT_S, cwd=tmp_path)
    check_message(done, ["layers.2", "dense", "(4, 3)", "flatten"])


def test_missing_job_file(tmp_path: Path) -> None:
    check_message(hpctrain(4, "train", "nojob.toml", timeout=LIMIT_S, cwd=tmp_path), ["nojob.toml"])


def test_broken_toml(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[data]\nfiles = \n")
    check_message(hpctrain(4, "train", "job.toml", timeout=LIMIT_S, cwd=tmp_path), ["job.toml", "line 2"])


def test_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder below a regular file, which root cannot make either."""
    job = small_job(tmp_path)
    done = hpctrain(4, "train", job, "--run-dir", tmp_path / "data.h5" / "run", timeout=LIMIT_S, cwd=tmp_path)
    check_message(done, [str(tmp_path / "data.h5" / "run")])


def test_run_folder_that_has_results(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    command = ("train", job, "--run-dir", tmp_path / "run")
    assert hpctrain(1, *command, timeout=LIMIT_S, cwd=tmp_path).returncode == 0
    check_message(hpctrain(4, *command, timeout=LIMIT_S, cwd=tmp_path), [str(tmp_path / "run"), "--resume"])
