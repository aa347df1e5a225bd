"""Files that cannot be trusted: one clear message for the whole job on four ranks, and nobody is left waiting.

Files that are cut off and targets that are too few are in `test_mistakes.py`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from datasets import class_arrays, job_for, write_arrays, write_job
from launching import ROOT, hpctrain

LIMIT_S = 60


def compressed(folder: Path, _: ExitStack) -> None:
    inputs, labels = class_arrays()
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset("x", data=inputs, chunks=(16, 5), **hdf5plugin.Blosc())
        file["y"] = labels


def virtual(folder: Path, _: ExitStack) -> None:
    inputs, labels = class_arrays()
    layout = h5py.VirtualLayout(inputs.shape, "f4")
    for lo in (0, 45):
        part = write_arrays(folder / f"part-{lo}.h5", x=inputs[lo : lo + 45])
        layout[lo : lo + 45] = h5py.VirtualSource(part.name, "x", (45, 5))
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
        file["y"] = labels
    (folder / "part-45.h5").unlink()


def held(folder: Path, until: ExitStack) -> None:
    inputs, labels = class_arrays()
    path = write_arrays(folder / "data.h5", x=inputs, y=labels)
    until.enter_context(h5py.File(path, "a", locking=True))


def half_written(folder: Path, until: ExitStack) -> None:
    inputs, labels = class_arrays()
    file = until.enter_context(h5py.File(folder / "writing.h5", "w", libver="latest", locking=False))
    file["x"], file["y"] = inputs, labels
    file.flush()
    shutil.copyfile(folder / "writing.h5", folder / "data.h5")


def text_that_is_new(folder: Path, _: ExitStack) -> None:
    inputs, labels = class_arrays()
    write_arrays(folder / "data.h5", x=inputs, y=np.array([b"ant", b"bee", b"cow"])[labels])
    write_arrays(folder / "test.h5", x=inputs[:4], y=[b"ant", b"bee", b"dog", b"cow"])


CASES = {
    compressed: ["data.input = 'x'", "HDF5 filter 32001 (blosc)", "pip install hdf5plugin"],
    virtual: ["virtual dataset", "part-45.h5", "is not there"],
    held: ["data.h5", "is locked", "another process has it open for writing"],
    half_written: ["data.h5", "was not closed", "h5clear"],
    text_that_is_new: ["row 2 of '/y'", "test.h5", "'dog'", "'ant', 'bee', 'cow'"],
}


@pytest.fixture
def until() -> Iterator[ExitStack]:
    """What stays open until the test has ended."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("write", CASES, ids=lambda write: write.__name__)
def test_one_message(write, tmp_path: Path, until: ExitStack) -> None:
    write(tmp_path, until)
    data = {"test_files": "test.h5"} if write is text_that_is_new else {}
    job = write_job(tmp_path / "job.toml", job_for("data.h5", data=data))
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "hdf5plugin.py").write_text("raise ImportError('as where it is not installed')\n")
    env = {"PYTHONPATH": f"{tmp_path / 'without'}:{ROOT}"}
    done = hpctrain(4, "train", job, "--run-dir", "run", timeout=LIMIT_S, cwd=tmp_path, env=env)
    assert done.returncode == 2, done.output
    assert "Traceback" not in done.output
    for word in CASES[write]:
        assert word in done.stderr, done.output
    said = Counter(line for line in done.stderr.splitlines() if "data.h5" in line or "hdf5plugin" in line)
    assert all(count == 1 for count in said.values()), done.output
