"""The built-in job as a user runs it: what it reaches, what it leaves behind, the same path at any number of ranks."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import h5py
import pytest
from datasets import checkpoint_steps, records, summary
from launching import Finished, hpctrain

IMAGES = 1797

SUMMARY_KEYS = {
    "world_size", "workers", "steps", "epochs", "examples_per_epoch", "train_loss", "test", "examples_per_s",
    "weights_sha256", "wall_s", "compile_s", "setup_s", "versions",
}  # fmt: skip
VERSIONS = {"hpctrain", "numpy", "numba", "h5py", "mpi4py"}


@dataclass(frozen=True)
class Run:
    """A finished run and its folder."""

    done: Finished
    folder: Path


def train(folder: Path, ranks: int, *settings: str) -> Run:
    options = [word for setting in settings for word in ("--set", setting)]
    done = hpctrain(ranks, "train", *options, "--run-dir", folder / "run", cwd=folder)
    assert done.returncode == 0, done.output
    return Run(done, folder / "run")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The built-in job at two ranks, without any option, in an empty folder."""
    folder = tmp_path_factory.mktemp("two-ranks")
    return Run(hpctrain(2, cwd=folder), folder / "runs" / "digits-001")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The built-in job on one rank."""
    return train(tmp_path_factory.mktemp("alone"), 1)


def test_trains_and_says_what_to_do_next(two_ranks: Run) -> None:
    done, run_dir = two_ranks.done, two_ranks.folder
    assert done.returncode == 0, done.output
    assert "built-in job" in done.stdout
    assert "runs/digits-001" in done.stdout
    assert "python -m hpctrain" in done.stdout
    assert summary(run_dir)["test"]["accuracy"] >= 0.97


def test_summary_has_the_promised_keys(two_ranks: Run) -> None:
    found = summary(two_ranks.folder)
    assert found.keys() >= SUMMARY_KEYS
    assert found["versions"].keys() >= VERSIONS
    assert any("mpi" in name.lower() and name != "mpi4py" for name in found["versions"]), "the MPI library's version"
    assert any("hdf5" in name.lower() for name in found["versions"])
    assert (found["world_size"], found["workers"]) == (2, 2)
    assert len(found["weights_sha256"]) == 64
    assert found["examples_per_s"] > 0


def test_every_row_is_in_exactly_one_part(two_ranks: Run) -> None:
    run_dir = two_ranks.folder
    tested = {record["part"]: record["examples"] for record in records(run_dir, "evaluation")}
    assert tested.keys() == {"validation", "test"}
    assert summary(run_dir)["examples_per_epoch"] == IMAGES - tested["validation"] - tested["test"]


def test_metrics_log_has_every_kind(two_ranks: Run) -> None:
    run_dir = two_ranks.folder
    assert {record["kind"] for record in records(run_dir)} == {"step", "epoch", "evaluation", "end"}
    assert len(records(run_dir, "epoch")) == summary(run_dir)["epochs"]


def test_model_and_checkpoints_are_hdf5(two_ranks: Run) -> None:
    run_dir = two_ranks.folder
    assert checkpoint_steps(run_dir)[-1] == summary(run_dir)["steps"]
    for path in (run_dir / "model.h5", *(run_dir / "checkpoints").iterdir()):
        assert h5py.is_hdf5(path), path


def test_the_same_job_again_takes_a_fresh_folder_and_gives_the_same_weights(two_ranks: Run) -> None:
    run_dir = two_ranks.folder
    done = hpctrain(2, cwd=run_dir.parent.parent)
    assert done.returncode == 0, done.output
    assert summary(run_dir.with_name("digits-002"))["weights_sha256"] == summary(run_dir)["weights_sha256"]


def test_resolved_job_runs_again(two_ranks: Run, tmp_path: Path) -> None:
    run_dir = two_ranks.folder
    resolved = tomllib.loads((run_dir / "job.toml").read_text())
    chosen = {"collective": "window", "chunk_bytes": 0, "leader": False, "bucket": 0, "ranks": "1 x 2"}
    assert resolved["strategy"]["chosen"] == chosen
    assert resolved.keys() >= {"data", "model", "loss", "metrics", "optimizer", "schedule", "strategy", "run"}
    done = hpctrain(2, "train", run_dir / "job.toml", "--run-dir", tmp_path / "again", cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert summary(tmp_path / "again")["weights_sha256"] == summary(run_dir)["weights_sha256"]


def test_evaluate_repeats_the_test_metrics(two_ranks: Run) -> None:
    run_dir = two_ranks.folder
    done = hpctrain(3, "evaluate", run_dir, cwd=run_dir.parent)
    assert done.returncode == 0, done.output
    accuracy = summary(run_dir)["test"]["accuracy"]
    assert "accuracy" in done.stdout
    assert f"{accuracy:.3f}" in done.stdout or f"{100 * accuracy:.1f}" in done.stdout, done.stdout


def check_same_path(found: dict, alone: dict) -> None:
    assert found["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-4)
    assert found["test"]["accuracy"] == pytest.approx(alone["test"]["accuracy"], abs=0.005)
    assert found["examples_per_epoch"] == alone["examples_per_epoch"]
    assert found["steps"] == alone["steps"]


def test_two_ranks_take_the_path_of_one(two_ranks: Run, alone: Run) -> None:
    check_same_path(summary(two_ranks.folder), summary(alone.folder))


# A covering set: each world size, collective and way to hand out data; tests/acceptance runs every combination.
@pytest.mark.parametrize(
    ("ranks", "collective", "distribute"),
    [
        (3, "native", "scatter"),
        (3, "window", "shared"),
        (4, "halving_doubling", "scatter"),
        (5, "ring", "scatter"),
        (5, "window", "shared"),
    ],
)
def test_more_ranks_take_the_path_of_one(
    ranks: int, collective: str, distribute: str, alone: Run, tmp_path: Path
) -> None:
    run = train(tmp_path, ranks, f"strategy.collective={collective}", f"data.distribute={distribute}")
    check_same_path(summary(run.folder), summary(alone.folder))
    assert summary(run.folder)["world_size"] == ranks
