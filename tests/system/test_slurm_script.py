"""jobs/train.sbatch: Slurm's signal stops the run with a checkpoint and requeues it; the next start finishes it.

Slurm is played by its variables, the signal, and a `scontrol` that writes down what it is asked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import checkpoint_steps, summary
from interrupting import LIMIT_S, long_job, wait_for_step
from launching import ROOT, Launched, environment, find_mpirun


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of a batch script with two tasks, and `python`, `mpirun` and a `scontrol` on PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/requeued\n')
    (tools / "scontrol").chmod(0o755)
    (tools / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tools / "python").chmod(0o755)
    path = os.pathsep.join(
        [str(tools), str(Path(sys.executable).parent), str(Path(find_mpirun()).parent), os.environ["PATH"]]
    )
    return environment({"SLURM_NTASKS": "2", "SLURM_JOB_ID": "77", "PATH": path})


def batch(slurm: dict[str, str], *args: str, cwd: Path) -> Launched:
    return Launched(["bash", str(ROOT / "jobs" / "train.sbatch"), *args], slurm, cwd)


def test_stops_in_time_requeues_and_finishes(slurm: dict[str, str], tmp_path: Path) -> None:
    long_job(tmp_path)
    run_dir = tmp_path / "run"
    with batch(slurm, "job.toml", "run", cwd=tmp_path) as first:
        step = wait_for_step(first, run_dir, 60)
        first.process.send_signal(signal.SIGUSR1)
        done = first.wait(LIMIT_S)
    assert done.returncode == 0, done.output
    assert (tmp_path / "requeued").read_text() == "requeue 77\n"
    assert checkpoint_steps(run_dir)[-1] >= step
    assert not (run_dir / "model.h5").exists()

    (tmp_path / "requeued").unlink()
    with batch(slurm, "job.toml", "run", cwd=tmp_path) as second:
        done = second.wait(LIMIT_S)
    assert done.returncode == 0, done.output
    assert not (tmp_path / "requeued").exists(), "a finished run is not put back into the queue"
    assert summary(run_dir)["steps"] > step


def test_a_run_that_fails_is_not_requeued(slurm: dict[str, str], tmp_path: Path) -> None:
    with batch(slurm, "nojob.toml", "run", cwd=tmp_path) as run:
        done = run.wait(LIMIT_S)
    assert done.returncode == 2, done.output
    assert "nojob.toml" in done.stderr
    assert not (tmp_path / "requeued").exists()


def test_says_what_it_needs(slurm: dict[str, str], tmp_path: Path) -> None:
    script = ["bash", str(ROOT / "jobs" / "train.sbatch")]
    done = subprocess.run(script, env=slurm, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "which job file?" in done.stderr
