"""Runs on data larger than the memory that they may take: the same result, resumed too, and errors found on the way."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from datasets import job_for, records, summary, write_job
from launching import hpctrain

from hpctrain import train
from hpctrain.job import Job

ROWS, WIDTH = 20_000, 160  # 13 MB
TIGHT = {"memory": "9 MB", "shuffle_buffer": "1 MB"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same examples contiguous, in compressed chunks, and in chunks with a number that is none near the end."""
    folder = tmp_path_factory.mktemp("streaming")
    random = np.random.default_rng(0)
    labels = np.sort(random.integers(0, 3, ROWS))
    inputs = (random.normal(size=(3, WIDTH))[labels] * 0.3 + random.normal(size=(ROWS, WIDTH))).astype("f4")
    for name in ("plain", "packed", "bad", "bad-plain"):
        options = {} if "plain" in name else {"chunks": (250, WIDTH), "compression": "gzip", "compression_opts": 1}
        inputs[19_876, 3] = np.nan if name == "bad" else 0  # in one chunk, which one rank reads
        inputs[10_000:, 5] = np.nan if name == "bad-plain" else 0  # wherever one looks
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=inputs, **options)
            file["y"] = labels
    return folder


def job(folder: Path, name: str, steps: int, **data: object) -> dict:
    made = job_for(folder / f"{name}.h5", data=data)
    made["run"] = {"steps": steps, "global_batch": 100, "progress": "none", "checkpoint_every": "never"}
    return made


def test_streamed_and_mapped_runs_give_what_memory_gives(folder, tmp_path):
    lines = {}
    for name, shuffle, data in [("plain", "global", {}), ("plain", "global", TIGHT), ("packed", "chunks", TIGHT)]:
        for memory in ({}, data):
            run = tmp_path / f"{name}-{shuffle}-{len(memory)}"
            if not run.exists():
                made = job(folder, name, 250, shuffle=shuffle, **({"shuffle_buffer": "1 MB"} | memory))
                lines[run.name] = train(made, run_dir=run).summary
    assert lines["plain-global-2"]["weights_sha256"] == lines["plain-global-0"]["weights_sha256"]
    assert lines["packed-chunks-2"]["weights_sha256"] == lines["packed-chunks-0"]["weights_sha256"]
    for each in lines.values():
        assert 0 <= each["data_wait_s"] <= each["data_s"] <= each["train_s"]
        assert each["data_wait_fraction"] == pytest.approx(each["data_wait_s"] / each["train_s"])
    step = records(tmp_path / "packed-chunks-2", "epoch")[0]
    assert 0 <= step["data_wait_s"] <= step["train_s"]


def test_a_run_says_what_it_does_and_goes_on_as_it_began(folder, tmp_path):
    whole = train(job(folder, "packed", 330, **TIGHT), run_dir=tmp_path / "whole")
    assert Job.load(tmp_path / "whole" / "job.toml").data.shuffle == "chunks"  # what "global" came to
    path = write_job(tmp_path / "job.toml", job(folder, "packed", 130, **TIGHT))
    done = hpctrain(3, "train", path, "--run-dir", tmp_path / "run", "--set", "run.progress=lines")
    assert done.returncode == 0, done.output
    for line in ('distribute: "shared"', '"chunks" instead of "global"', "data: read in pieces", "shuffle: chunks of"):
        assert done.stdout.count(line) == 1, done.output
    assert f"mixed among {10**6 // (4 * WIDTH + 8):,} at a time" in done.stdout
    done = hpctrain(2, "train", "--run-dir", tmp_path / "run", "--resume", "--set", "run.steps=330")
    assert done.returncode == 0, done.output
    found = summary(tmp_path / "run")
    assert found["steps"] == 330
    assert found["examples_per_epoch"] == ROWS
    assert found["train_loss"] == pytest.approx(whole.summary["train_loss"], rel=1e-4)


@pytest.mark.parametrize("name", ["bad", "bad-plain"])
def test_bad_numbers_that_are_found_on_the_way_are_one_message(folder, tmp_path, name):
    """Streamed, and mapped; each rank finds some, or only one of them does."""
    path = write_job(tmp_path / "job.toml", job(folder, name, 400, **TIGHT))
    done = hpctrain(3, "train", path, "--run-dir", tmp_path / "run")
    assert done.returncode == 2, done.output
    said = [line for line in done.stderr.splitlines() if line and line[0] not in "=|"]
    assert said[0].startswith("hpctrain: error: NaN in the data: row 1"), done.output
    assert done.stderr.count("NaN in the data") == 1
    assert done.stderr.count("found:") == 1
    assert "Abort" not in done.output
    assert "Traceback" not in done.output
