"""Runs that are killed or interrupted on the way: how to wait for a step, and a job that leaves time for it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from datasets import job_for, summary, write_classes, write_job
from launching import Launched, start

EPOCHS = 92
STEPS = EPOCHS * 13  # 200 rows in batches of 16
LIMIT_S = 100  # for any one run


def long_job(folder: Path) -> Path:
    """Write data and a job of `STEPS` logged steps; dropout, momentum and a schedule are what a resume must restore."""
    dense, dropout, output = (
        {"type": "dense", "units": 32},
        {"type": "dropout", "rate": 0.1},
        {"type": "dense", "units": 3},
    )
    job = job_for(
        write_classes(folder / "data.h5", rows=250),
        data={"split": {"validation": 0.1, "test": 0.1}},
        model={"layers": [dense, "relu", dropout, output]},
        optimizer={"name": "sgd", "lr": 0.02, "momentum": 0.9},
        schedule={"name": "cosine", "warmup": "20 steps"},
        run={"epochs": EPOCHS, "checkpoint_every": "40 steps", "log_every": "1 step"},
    )
    return write_job(folder / "job.toml", job)


def begin(ranks: int, job: Path | None, run_dir: Path, *options: str) -> Launched:
    """Start to train, or with "--resume" to go on."""
    return start(
        ranks, "-m", "hpctrain", "train", *([job] if job else []), "--run-dir", run_dir, *options, cwd=run_dir.parent
    )


def last_step(run_dir: Path) -> int:
    """The last step that a run has logged; 0 before the first."""
    try:
        text = (run_dir / "metrics.jsonl").read_text()[-4096:]
    except FileNotFoundError:
        return 0
    whole_lines = text[text.find("\n") + 1 : text.rfind("\n")].splitlines()
    steps = (record["step"] for record in map(json.loads, reversed(whole_lines)) if record["kind"] == "step")
    return next(steps, 0)


def wait_for_step(run: Launched, run_dir: Path, step: int, timeout: float = LIMIT_S) -> int:
    """Return the last logged step once it is `step` or more; fails when the run ends or takes too long before."""
    end = time.monotonic() + timeout
    while (found := last_step(run_dir)) < step:
        assert run.process.poll() is None, f"ended before step {step}\n{run.stdout}{run.stderr}"
        assert time.monotonic() < end, f"step {step} was not reached in {timeout} s\n{run.stdout}{run.stderr}"
        time.sleep(0.002)
    return found


def uninterrupted(ranks: int, job: Path, run_dir: Path) -> dict[str, Any]:
    """Train to the end; return the summary."""
    with begin(ranks, job, run_dir) as run:
        done = run.wait(LIMIT_S)
    assert done.returncode == 0, done.output
    return summary(run_dir)


def killed(ranks: int, job: Path, run_dir: Path, kills: int, rng: random.Random) -> tuple[dict[str, Any], list[int]]:
    """SIGKILL all ranks `kills` times, each at a random later step, then train to the end; return summary and steps."""
    at: list[int] = []
    for number in range(kills + 1):
        options = ["--resume"] if number else []
        with begin(ranks, job, run_dir, *options) as run:
            if number == kills:
                done = run.wait(LIMIT_S)
                assert done.returncode == 0, done.output
                break
            first = at[-1] + 1 if at else 1
            # Each kill has its share of the steps that are left, so that the last one comes before the end too.
            wait_for_step(run, run_dir, rng.randint(first, first + (STEPS - 100 - first) // (kills - number)))
            run.kill_ranks()
            assert run.wait(LIMIT_S).returncode != 0
            at.append(last_step(run_dir))
            assert not (run_dir / "summary.json").exists(), "the run had ended before it was killed"
    return summary(run_dir), at
