"""Launcher and MPI library that do not match are noticed; without any MPI one rank still trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import small_job, summary
from launching import hpctrain, start

# What launchers of other MPI libraries leave in the environment of a process whose own library makes a world of one.
LAUNCHERS = {
    "Open MPI": {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "{rank}"},
    "srun": {"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_PROCID": "{rank}"},
}

NO_MPI = {"MPI4PY_LIBMPI": "/nonexistent/libmpi.so"}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launcher_that_does_not_fit_the_library(launcher: str, tmp_path: Path) -> None:
    job = small_job(tmp_path)
    ranks = [{name: value.format(rank=rank) for name, value in LAUNCHERS[launcher].items()} for rank in (0, 3)]
    first, last = (hpctrain(0, "train", job, timeout=60, env=env, cwd=tmp_path) for env in ranks)
    assert first.returncode == last.returncode == 2, first.output + last.output
    assert "do not match" in first.stderr
    assert "4" in first.stderr
    assert "Traceback" not in first.output
    assert last.output.strip() == "", "one rank speaks for all"
    assert not (tmp_path / "runs").exists()


def test_batch_script_variables_alone_are_no_launch(tmp_path: Path) -> None:
    """SLURM_NTASKS stands in every batch script, which is one process."""
    done = hpctrain(
        0, "train", small_job(tmp_path), "--run-dir", tmp_path / "run", env={"SLURM_NTASKS": "4"}, cwd=tmp_path
    )
    assert done.returncode == 0, done.output
    assert summary(tmp_path / "run")["world_size"] == 1


def test_without_an_mpi_one_rank_trains_as_with_one(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    for name, env in (("with", {}), ("without", NO_MPI)):
        done = hpctrain(0, "train", job, "--run-dir", tmp_path / name, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.output
    assert summary(tmp_path / "without")["weights_sha256"] == summary(tmp_path / "with")["weights_sha256"]


def test_several_ranks_without_an_mpi_say_how_to_get_one(tmp_path: Path) -> None:
    with start(2, "-m", "hpctrain", "train", small_job(tmp_path), env=NO_MPI, cwd=tmp_path) as run:
        done = run.wait(60)
    assert done.returncode != 0
    assert done.stderr.count("pip install") == 1, done.output
    assert "Traceback" not in done.output
