"""Training on a user's own files, by command and from Python: several files, real targets, a model in Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from datasets import job_for, records, summary, write_arrays, write_classes, write_job
from launching import hpctrain, mpirun

from hpctrain import load_model

ROWS = 700
NOISE = 0.1


def write_plane(folder: Path) -> None:
    """Three files of unequal length with y = 3 x0 - 2 x1 + 1 + noise; the plane itself has R² = 1 - NOISE² / var(y)."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(ROWS, 4)).astype("f4")
    targets = 3 * inputs[:, 0] - 2 * inputs[:, 1] + 1 + NOISE * rng.normal(size=ROWS)
    for number, (lo, hi) in enumerate([(0, 100), (100, 101), (101, ROWS)]):
        write_arrays(folder / f"plane-{number}.h5", x=inputs[lo:hi], y=targets[lo:hi].astype("f4"))


def test_real_targets_from_several_files(tmp_path: Path) -> None:
    write_plane(tmp_path)
    job = job_for(
        "plane-*.h5",
        data={"split": {"validation": 0.1, "test": 0.2}},
        model={"layers": [{"type": "dense", "units": 1}]},
        metrics={"names": ["r2", "mae", "rmse"]},
        optimizer={"name": "adam", "lr": 0.05},
        clip={"norm": 10.0},
        run={"epochs": 15},
    )
    done = hpctrain(3, "train", write_job(tmp_path / "job.toml", job), "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.output
    test = summary(tmp_path / "run")["test"]
    assert test["r2"] > 0.99
    # The mean absolute value of normal noise is sqrt(2 / pi) of its deviation.
    assert test["mae"] == pytest.approx(NOISE * np.sqrt(2 / np.pi), rel=0.25)
    assert test["rmse"] == pytest.approx(NOISE, rel=0.25)
    tested = {record["part"]: record["examples"] for record in records(tmp_path / "run", "evaluation")}
    assert summary(tmp_path / "run")["examples_per_epoch"] == ROWS - tested["validation"] - tested["test"]


def test_files_of_its_own_for_the_test_and_more_ranks_than_rows(tmp_path: Path) -> None:
    """Three training rows on five ranks; the test part is a file of its own."""
    write_classes(tmp_path / "train.h5", rows=3)
    write_classes(tmp_path / "test.h5", rows=50, seed=1)
    job = write_job(tmp_path / "job.toml", job_for("train.h5", data={"test_files": "test.h5"}))
    done = hpctrain(5, "train", job, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert summary(tmp_path / "run")["examples_per_epoch"] == 3
    assert [record["examples"] for record in records(tmp_path / "run", "evaluation")] == [50]


def test_evaluate_other_data(tmp_path: Path) -> None:
    write_classes(tmp_path / "train.h5", rows=200)
    write_classes(tmp_path / "new.h5", rows=77, seed=2)
    job = write_job(tmp_path / "job.toml", job_for("train.h5", data={"split": {"test": 0.2}}, run={"epochs": 10}))
    assert hpctrain(2, "train", job, "--run-dir", "run", cwd=tmp_path).returncode == 0
    done = hpctrain(2, "evaluate", "run", "--data", "new.h5", cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert "77" in done.stdout, "says how many examples"
    assert "accuracy" in done.stdout


def test_channels_first_is_as_channels_last(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stored, labels = rng.normal(size=(120, 2, 3, 4)).astype("f4"), rng.integers(0, 3, 120)
    write_arrays(tmp_path / "first.h5", x=stored, y=labels)
    write_arrays(tmp_path / "last.h5", x=np.moveaxis(stored, 1, -1), y=labels)
    model = {"layers": ["flatten", {"type": "dense", "units": 3}]}
    shared = {"split": {"validation": 0.1, "test": 0.1}}
    said, results = {}, {}
    for name in ("first", "last"):
        data = {**shared, "channels_first": name == "first", "distribute": "scatter" if name == "first" else "shared"}
        job = write_job(tmp_path / f"{name}.toml", job_for(f"{name}.h5", data=data, model=model))
        done = hpctrain(3, "train", job, "--run-dir", name, cwd=tmp_path)
        assert done.returncode == 0, done.output
        said[name], results[name] = done.stdout, summary(tmp_path / name)
    assert results["first"]["weights_sha256"] == results["last"]["weights_sha256"]
    assert results["first"]["test"] == results["last"]["test"]
    assert "inputs are stored channels first, (2, 3, 4): turned to channels last, (3, 4, 2)" in said["first"]
    assert "channels first" not in said["last"]
    judged = [hpctrain(1, "evaluate", name, "--data", f"{name}.h5", cwd=tmp_path).stdout for name in said]
    assert judged[0].splitlines()[1:] == judged[1].splitlines()[1:] != []
    outputs = load_model(tmp_path / "first").predict(stored)
    assert np.array_equal(outputs, load_model(tmp_path / "last").predict(np.moveaxis(stored, 1, -1)))


SCRIPT = """
import json

from hpctrain import Job, evaluate, train
from hpctrain.nn.layers.activations import Relu
from hpctrain.nn.layers.dense import Dense

job = Job(
    data={"files": "data.h5", "input": "x", "target": "y", "split": {"test": 0.25}},
    model={"layers": [Dense(units=16), Relu(), Dense(units=3)]},
    optimizer={"name": "adam", "lr": 0.02},
    run={"epochs": 20, "global_batch": 16, "progress": "none"},
)
result = train(job, run_dir="run")
print(json.dumps({"summary": result.summary, "weights": sorted(result.weights), "epochs": len(result.history)}))
print(json.dumps(evaluate("run")))
"""


def test_from_python(tmp_path: Path) -> None:
    write_classes(tmp_path / "data.h5", rows=200)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = mpirun(0, "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.output
    trained, evaluated = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert trained["summary"] == summary(tmp_path / "run")
    assert trained["summary"]["test"]["accuracy"] > 0.8, "one in three by chance"
    assert evaluated["accuracy"] == pytest.approx(trained["summary"]["test"]["accuracy"])
    assert len(trained["weights"]) == 4, "two dense layers, a weight and a bias each"
    assert trained["epochs"] == 20


MODEL = """
from hpctrain.nn.layers.activations import Tanh
from hpctrain.nn.layers.dense import Dense


def build(input_shape, outputs):
    assert input_shape == (5,)
    return [Dense(units=7), Tanh(), Dense(units=outputs)]
"""


def test_model_in_a_python_file(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text(MODEL)
    job = job_for(write_classes(tmp_path / "data.h5"))
    job["model"] = {"python": "models/mine.py:build"}
    done = hpctrain(2, "train", write_job(tmp_path / "job.toml", job), "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert (tmp_path / "run" / "model.h5").exists()
