"""Whole runs on one rank: averaged weights, accumulation, clipping, and schedules that follow validation or workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpctrain import Job, evaluate, train
from hpctrain.comm.single_group import SingleGroup
from hpctrain.errors import UserError
from hpctrain.nn.layers.activations import Tanh
from hpctrain.nn.layers.dense import Dense
from hpctrain.optim.averaging import SLOT
from hpctrain.run.launch import TrainResult
from hpctrain.training import checkpoint

ROWS = 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 6)).astype("f4")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["label"] = x, (x[:, 0] > 0).astype("u1") + (x[:, 1] > 0)
    return tmp_path


def job(folder: Path, **sections: Any) -> Job:
    data = {"files": str(folder / "data.h5"), "input": "x", "target": "label", "split": {"validation": 0.2}}
    run = {"global_batch": 8, "epochs": 3, "progress": "none", **sections.pop("run", {})}
    return Job(data=data, run=run, model={"layers": [Dense(units=7), Tanh(), Dense(units=3)]}, **sections)


def run(job: Job, folder: Path, **options: Any) -> TrainResult:
    return train(job, run_dir=folder, group=SingleGroup(), **options)


def rates(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["lr"] for line in lines if line["kind"] == "step"]


def test_the_average_is_evaluated_and_handed_out(folder: Path) -> None:
    optimizer = {"name": "adam", "lr": 0.05}
    plain = run(job(folder, optimizer=optimizer), folder / "plain")
    result = run(job(folder, optimizer={**optimizer, "ema": 0.9}), folder / "a")
    saved = checkpoint.latest_valid(folder / "a" / "checkpoints", lambda path, reason: None)
    # Averaging changes no step: the checkpoint's weights are those of the run without it.
    for name, value in plain.weights.items():
        np.testing.assert_array_equal(saved.parameters[name], value)
    model = checkpoint.load_model(folder / "a" / "model.h5")
    for name, value in result.weights.items():
        np.testing.assert_array_equal(model.parameters[name], value)
        np.testing.assert_array_equal(saved.optimizer[SLOT][name], value)
        assert not np.array_equal(value, plain.weights[name])
    assert result.summary["weights_sha256"] == model.weights_sha256
    # The last validation saw the average; so does `evaluate`, from the model and from a checkpoint alone.
    found = evaluate(folder / "a", part="validation", group=SingleGroup())
    assert found["loss"] == pytest.approx(result.history[-1]["validation"]["loss"], rel=1e-12)
    (folder / "a" / "model.h5").unlink()
    assert evaluate(folder / "a", part="validation", group=SingleGroup()) == found


def test_resumed_runs_reach_the_same_average_rate_and_bits(folder: Path) -> None:
    """Stopped inside an epoch: the average, the plateau's state and the weights go on as if nothing had happened."""
    schedule = {"name": "reduce_on_plateau", "patience": 1, "factor": 0.5, "min_delta": 10.0}
    parts = {"optimizer": {"name": "sgd", "momentum": 0.9, "ema": 0.95}, "schedule": schedule}
    whole = run(job(folder, run={"epochs": None, "steps": 21, "log_every": "1 step"}, **parts), folder / "whole")
    run(job(folder, run={"epochs": None, "steps": 13, "log_every": "1 step"}, **parts), folder / "parts")
    again = job(folder, run={"epochs": None, "steps": 21, "log_every": "1 step"}, **parts)
    rest = run(again, folder / "parts", resume=True)
    assert rest.summary["weights_sha256"] == whole.summary["weights_sha256"]
    # Five steps an epoch; the first validation is the best so far, and each one after that halves the learning rate.
    assert rates(folder / "whole") == pytest.approx([0.01] * 10 + [0.005] * 5 + [0.0025] * 5 + [0.00125])
    assert rates(folder / "parts") == rates(folder / "whole")


def test_accumulated_batches_are_one_larger_batch(folder: Path) -> None:
    larger = run(job(folder, run={"global_batch": 16, "micro_batch": 8}), folder / "larger")
    accumulated = run(job(folder, run={"accumulate": 2}), folder / "accumulated")
    assert accumulated.summary["steps"] == 3 * 3  # 40 rows in updates of 16
    assert accumulated.summary["weights_sha256"] == larger.summary["weights_sha256"]


def test_clipping_by_value_bounds_every_step(folder: Path) -> None:
    parts = {"optimizer": {"name": "sgd", "lr": 1.0}, "clip": {"value": 1e-4}, "run": {"epochs": None, "steps": 1}}
    first = run(job(folder, **parts), folder / "a")
    parts["run"]["steps"] = 2
    second = run(job(folder, **parts), folder / "a", resume=True)
    steps = [np.abs(second.weights[name] - value) for name, value in first.weights.items()]
    assert max(step.max() for step in steps) == pytest.approx(1e-4, rel=1e-2)


def test_the_number_of_workers_is_written_down(folder: Path) -> None:
    scaled = job(folder, schedule={"name": "constant", "scale_with_workers": "linear", "base_workers": 2})
    result = run(scaled, folder / "a")
    assert result.job.schedule.workers == 1
    assert Job.load(folder / "a" / "job.toml").schedule.workers == 1
    assert rates(folder / "a")[0] == pytest.approx(0.001 / 2)


@pytest.mark.parametrize("metric", ["acuracy", "r2"])
def test_a_schedule_follows_a_metric_that_the_job_has(folder: Path, metric: str) -> None:
    with pytest.raises(UserError, match=f"unknown metric in schedule '{metric}'"):
        run(job(folder, schedule={"name": "reduce_on_plateau", "metric": metric}), folder / "a")


def test_a_schedule_that_follows_validation_needs_some(folder: Path) -> None:
    data = {"files": str(folder / "data.h5"), "input": "x", "target": "label"}
    with pytest.raises(UserError, match="the schedule watches the validation part, but the job has none"):
        Job(data=data, schedule={"name": "reduce_on_plateau"})


def test_groups_choose_tensors_by_name(folder: Path) -> None:
    groups = [{"pattern": "dense0.*", "frozen": True}, {"pattern": "dense2.weight", "lr_factor": 0.0}]
    optimizer = {"name": "adamw", "lr": 0.05, "ema": 0.9, "groups": groups}
    plain = run(job(folder, run={"epochs": None, "steps": 1}), folder / "plain")
    result = run(job(folder, optimizer=optimizer, run={"epochs": None, "steps": 6}), folder / "a")
    assert Job.load(folder / "a" / "job.toml").optimizer == result.job.optimizer
    assert result.model.table.tensors.tolist() == [2, 3]
    assert result.model.table.lr_factor.tolist() == [0, 1]
    assert plain.model.table.decay_factor.tolist() == [1, 0, 1, 0]  # biases do not decay
    # What does not move is still as it was initialised, in the average too.
    start = run(job(folder, optimizer={"name": "sgd", "lr": 1e-30}, run={"epochs": None, "steps": 1}), folder / "start")
    for name in ("dense0.weight", "dense0.bias", "dense2.weight"):
        np.testing.assert_allclose(result.weights[name], start.weights[name], rtol=1e-6, atol=1e-20)
        assert not np.array_equal(plain.weights[name], start.weights[name])
    assert not np.allclose(result.weights["dense2.bias"], start.weights["dense2.bias"])


def test_a_group_that_fits_no_tensor_is_refused_before_training(folder: Path) -> None:
    optimizer = {"name": "sgd", "groups": [{"pattern": "conv*", "lr_factor": 0.1}]}
    with pytest.raises(UserError, match=r"optimizer.groups.0.pattern fits no tensor") as caught:
        run(job(folder, optimizer=optimizer), folder / "a")
    assert "dense0.weight, dense0.bias, dense2.weight, dense2.bias" in caught.value.message
