"""Whole runs on four hosts with two ranks each: by mpirun and by jobs/train.sbatch under Slurm, MPICH and Open MPI.

They are held against the same run on one rank, which sends nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from datasets import job_for, records, summary, write_arrays, write_job
from launching import ROOT, environment, hpctrain

from benchmarks.cluster import mpi
from benchmarks.cluster.hosts import Hosts
from benchmarks.cluster.slurm import Slurm

RANKS = 8
LIMIT_S = 100
BUILTIN = ROOT / "hpctrain" / "data" / "builtin" / "digits.toml"
JOBS = ("digits", "mlp-wide")
libraries = pytest.mark.parametrize("library", ["MPICH", "Open MPI"])
jobs = pytest.mark.parametrize("name", JOBS)


@pytest.fixture(scope="module")
def job_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The built-in job for a few epochs, and a network of 23 MB of weights for a few steps."""
    folder = tmp_path_factory.mktemp("jobs")
    rng = np.random.default_rng(3)
    data = write_arrays(
        folder / "wide.h5", x=rng.normal(size=(1024, 784)).astype("f4"), y=rng.integers(0, 10, 1024).astype("i8")
    )
    dense = [{"type": "dense", "units": units} for units in (2048, 2048, 10)]
    wide = job_for(
        data,
        model={"layers": [dense[0], "relu", dense[1], "relu", dense[2]]},
        run={"epochs": 1, "global_batch": 256},
    )
    digits = tomllib.loads(BUILTIN.read_text())
    digits["run"]["epochs"] = 6
    return {name: write_job(folder / f"{name}.toml", job) for name, job in (("digits", digits), ("mlp-wide", wide))}


@pytest.fixture(scope="module")
def pythons(open_mpi: Path) -> dict[str, Path]:
    """The interpreter to start for each MPI library."""
    return {"MPICH": Path(sys.executable), "Open MPI": open_mpi}


@pytest.fixture(scope="module")
def alone(job_files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run folders of the jobs on one rank."""
    folder = tmp_path_factory.mktemp("alone")
    for name, file in job_files.items():
        done = hpctrain(1, "train", file, "--run-dir", folder / name, timeout=LIMIT_S)
        assert done.returncode == 0, done.output
    return {name: folder / name for name in job_files}


def losses(run_dir: Path) -> list[float]:
    return [record["train_loss"] for record in records(run_dir, "epoch")]


def check(run_dir: Path, alone: Path, library: str, output: str) -> None:
    found = summary(run_dir)
    assert found["world_size"] == RANKS
    assert any(text.startswith(library) for text in found["versions"].values()), found["versions"]
    np.testing.assert_allclose(losses(run_dir), losses(alone), rtol=1e-3)
    if found["test"]:
        assert found["test"]["accuracy"] >= 0.9
    assert "8 ranks on 4 nodes" in output, output


@libraries
@jobs
def test_by_mpirun(
    hosts: Hosts,
    pythons: dict[str, Path],
    job_files: dict[str, Path],
    alone: dict[str, Path],
    tmp_path: Path,
    library: str,
    name: str,
) -> None:
    arguments = ("-m", "hpctrain", "train", job_files[name], "--run-dir", tmp_path / "run")
    command = mpi.command(hosts, pythons[library], 2, *arguments)
    env = mpi.environment(hosts, pythons[library], environment())
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    check(tmp_path / "run", alone[name], library, done.stdout)


@libraries
@jobs
def test_by_slurm(
    hosts: Hosts,
    slurm: Slurm,
    pythons: dict[str, Path],
    job_files: dict[str, Path],
    alone: dict[str, Path],
    tmp_path: Path,
    library: str,
    name: str,
) -> None:
    env = mpi.environment(hosts, pythons[library], environment())
    script = ["sbatch", "--nodes=4", "--ntasks-per-node=2", str(ROOT / "jobs" / "train.sbatch")]
    number = slurm.submitted([*script, str(job_files[name]), "run"], tmp_path, env)
    outcome = slurm.outcome(number, LIMIT_S)
    output = (tmp_path / f"hpctrain-{number}.log").read_text()
    assert outcome == "COMPLETED", output
    check(tmp_path / "run", alone[name], library, output)
