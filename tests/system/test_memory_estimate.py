"""`job --memory` says before a run what it then uses: within 10 %, on every rank."""

import re
from pathlib import Path

import numpy as np
import pytest
from datasets import job_for, summary, write_arrays, write_job
from launching import hpctrain


def predicted(ranks: int, *job: str | Path, launched: int = 0) -> tuple[list[float], str]:
    options = [] if launched else ["-n", str(ranks)]
    done = hpctrain(launched, "job", *job, "--memory", *options)
    assert done.returncode == 0, done.output
    line = next(line for line in done.stdout.splitlines() if "total" in line)
    return [float(text.replace(",", "")) * 1e6 for text in re.findall(r"[\d,]+\.\d", line)], done.stdout


def used(ranks: int, folder: Path, *job: str | Path) -> list[int]:
    for run in ("first", "second"):  # the first run may have to compile
        done = hpctrain(ranks, "train", *job, "--run-dir", folder / run, timeout=200)
        assert done.returncode == 0, done.output
    return summary(folder / "second")["peak_memory_bytes_per_rank"]


def assert_near(said: list[float], used: list[int]) -> None:
    for rank, bytes_ in enumerate(used):
        assert said[min(rank, 1)] == pytest.approx(bytes_, rel=0.1), f"rank {rank}"


def test_the_built_in_job(tmp_path: Path) -> None:
    found = used(1, tmp_path)
    said, text = predicted(1)
    assert "cache" not in text  # it was compiled just now
    assert_near(said, found)


def test_a_wide_network_with_much_state_on_two_ranks(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    data = write_arrays(tmp_path / "a.h5", x=random.normal(size=(4000, 1500)), y=random.integers(0, 3, 4000))
    model = {"layers": [{"type": "dense", "units": 3000}, "relu", {"type": "dense", "units": 3}]}
    optimizer = {"name": "adam", "ema": 0.99}
    job = job_for(data, data={"split": {"validation": 0.2}}, model=model, optimizer=optimizer)
    job["run"] = {"steps": 3, "global_batch": 96, "progress": "lines"}
    path = write_job(tmp_path / "job.toml", job)
    found = used(2, tmp_path, path)
    assert max(found) > 250e6  # so that the arrays matter, and not the program alone
    said = predicted(2, path)[0]
    assert_near(said, found)
    assert predicted(2, path, launched=2)[0] == pytest.approx(said, rel=0.03)  # by default for the ranks that ask
