"""A run that is killed, interrupted or given a damaged checkpoint goes on with --resume as if it had never stopped."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from datasets import checkpoint_steps, small_job, summary
from interrupting import LIMIT_S, begin, killed, long_job, uninterrupted, wait_for_step
from launching import hpctrain

# The full ten, at 1 and 4 ranks: HPCTRAIN_KILLS=10 HPCTRAIN_KILL_RANKS=1,4.
KILLS = int(os.environ.get("HPCTRAIN_KILLS", "2"))
RANKS = [int(ranks) for ranks in os.environ.get("HPCTRAIN_KILL_RANKS", "2").split(",")]


@pytest.mark.timeout(LIMIT_S * (KILLS + 2))
@pytest.mark.parametrize("ranks", RANKS)
def test_killed_run_ends_with_the_weights_of_an_uninterrupted_one(ranks: int, tmp_path: Path) -> None:
    job = long_job(tmp_path)
    whole = uninterrupted(ranks, job, tmp_path / "whole")
    seed = random.randrange(2**32)
    found, at = killed(ranks, job, tmp_path / "killed", KILLS, random.Random(seed))
    assert found["weights_sha256"] == whole["weights_sha256"], f"seed {seed}, killed at steps {at}"
    assert found["train_loss"] == whole["train_loss"]
    assert found["test"] == whole["test"]


def test_ctrl_c_ends_with_a_checkpoint_and_a_cut_one_falls_back(tmp_path: Path) -> None:
    job = long_job(tmp_path)
    whole = uninterrupted(4, job, tmp_path / "whole")
    run_dir = tmp_path / "stopped"
    with begin(4, job, run_dir) as run:
        step = wait_for_step(run, run_dir, 130)
        run.interrupt()
        done = run.wait(LIMIT_S)
    assert done.returncode != 0
    assert "Traceback" not in done.output
    assert "--resume" in done.output, "says how to go on"
    assert not (run_dir / "model.h5").exists()
    steps = checkpoint_steps(run_dir)
    assert steps[-1] >= step, "the checkpoint is of the step at which it was stopped"

    newest = run_dir / "checkpoints" / f"step-{steps[-1]:08d}.h5"
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    with begin(4, None, run_dir, "--resume") as run:
        done = run.wait(LIMIT_S)
    assert done.returncode == 0, done.output
    assert newest.name in done.output, "says which checkpoint is damaged"
    assert f"{steps[-2]}" in done.output, "says which one it goes on from"
    assert summary(run_dir)["weights_sha256"] == whole["weights_sha256"]


def test_resume_of_a_finished_run_says_so(tmp_path: Path) -> None:
    job, run_dir = small_job(tmp_path), tmp_path / "run"
    assert hpctrain(1, "train", job, "--run-dir", run_dir, cwd=tmp_path).returncode == 0
    before = (run_dir / "summary.json").read_bytes()
    done = hpctrain(2, "train", "--run-dir", run_dir, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert "finished" in done.stdout
    assert (run_dir / "summary.json").read_bytes() == before


def test_resume_without_a_checkpoint_starts_over_and_says_so(tmp_path: Path) -> None:
    done = hpctrain(2, "train", small_job(tmp_path), "--run-dir", tmp_path / "run", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert "no checkpoint" in done.stdout
    assert (tmp_path / "run" / "summary.json").exists()


def test_resume_with_a_changed_job_names_the_key(tmp_path: Path) -> None:
    job, run_dir = long_job(tmp_path), tmp_path / "run"
    with begin(1, job, run_dir) as run:
        wait_for_step(run, run_dir, 50)
        run.interrupt()
        run.wait(LIMIT_S)
    done = hpctrain(4, "train", "--run-dir", run_dir, "--resume", "--set", "optimizer.lr=0.5", cwd=tmp_path)
    assert done.returncode == 2, done.output
    assert done.stderr.count("optimizer.lr") == 1, done.output
    assert "0.5" in done.stderr
    assert "0.02" in done.stderr
    assert "Traceback" not in done.output
