"""Whole runs on one rank from Python: what a run writes, how it goes on, and what it refuses."""

import json
import math

import h5py
import numpy as np
import pytest

from hpctrain import Job, evaluate, train
from hpctrain.comm.single_group import SingleGroup
from hpctrain.errors import UserError
from hpctrain.monitor.base import Monitor
from hpctrain.nn.layers.activations import Tanh
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.layers.dropout import Dropout
from hpctrain.nn.layers.normalisation import BatchNorm

ROWS = 50


@pytest.fixture
def files(tmp_path):
    """Two small files: one with classes, one with real targets that a linear network can learn."""
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 6)).astype("f4")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = x
        file["label"] = (x[:, 0] > 0).astype("u1") + (x[:, 1] > 0)
        file["value"] = (x @ random.normal(size=(6, 2)) + 3.0).astype("f4")
    return tmp_path


def job(files, target="label", **sections):
    data = {"files": str(files / "data.h5"), "input": "x", "target": target, **sections.pop("data", {})}
    run = {"global_batch": 8, "epochs": 3, "progress": "none", **sections.pop("run", {})}
    sections.setdefault("model", {"layers": [Dense(units=7), Tanh(), Dropout(rate=0.2), Dense(units=3)]})
    return Job(data=data, run=run, **sections)


def run(job, folder, **options):
    return train(job, run_dir=folder, group=SingleGroup(), **options)


def test_a_run_writes_its_folder_and_returns_its_results(files):
    result = run(job(files, data={"split": {"validation": 0.1, "test": 0.2}}), files / "a")
    summary = json.loads((files / "a" / "summary.json").read_text())
    assert summary["weights_sha256"] == result.summary["weights_sha256"] == result.model.sha256
    assert summary["examples_per_epoch"] == ROWS - 5 - 10
    assert (summary["steps"], summary["epochs"]) == (3 * 5, 3)
    assert set(summary["test"]) == {"loss", "accuracy"}
    assert {"numpy", "numba", "h5py", "mpi4py", "mpi_library", "hdf5", "hpctrain"} <= set(summary["versions"])
    kinds = [json.loads(line)["kind"] for line in (files / "a" / "metrics.jsonl").read_text().splitlines()]
    assert kinds.count("epoch") == 3
    assert kinds.count("evaluation") == 4
    assert kinds[-1] == "end"
    assert [entry["epoch"] for entry in result.history] == [1, 2, 3]
    assert result.history[-1]["train_loss"] == summary["train_loss"]
    assert set(result.weights) == {"dense0.weight", "dense0.bias", "dense3.weight", "dense3.bias"}
    # The resolved job runs again, to the same weights.
    again = run(Job.load(files / "a" / "job.toml"), files / "b")
    assert again.summary["weights_sha256"] == summary["weights_sha256"]


def test_evaluate_gives_what_the_run_found(files):
    result = run(job(files, data={"split": {"test": 0.2}}), files / "a")
    found = evaluate(files / "a", group=SingleGroup())
    assert found["accuracy"] == result.summary["test"]["accuracy"]
    assert found["loss"] == pytest.approx(result.summary["test"]["loss"], rel=1e-12)
    everything = evaluate(files / "a", data=str(files / "data.h5"), group=SingleGroup())
    assert everything["examples"] == ROWS
    with h5py.File(files / "data.h5") as file:
        x, label = file["x"][:], file["label"][:]
    assert everything["accuracy"] == pytest.approx(np.mean(result.predict(x).argmax(1) == label))


def test_real_targets_have_the_mean_predictor_beside_them(files):
    layers = {"layers": [Dense(units=2)]}
    optimizer = {"name": "sgd", "lr": 0.1}
    result = run(
        job(files, "value", model=layers, optimizer=optimizer, data={"split": {"test": 0.2}}, run={"epochs": 60}),
        files / "a",
    )
    summary = result.summary
    assert summary["test"]["r2"] > 0.99
    # The mean of the training part is no better than the test part's own.
    assert summary["test_mean_predictor"]["r2"] <= 0
    assert summary["test"]["mae"] < 0.1 * summary["test_mean_predictor"]["mae"]


def test_stopped_and_resumed_runs_reach_the_same_bits(files):
    """Steps that end inside an epoch, then more of them: the same weights and epoch losses as in one go."""
    whole = run(job(files, run={"epochs": None, "steps": 20}), files / "whole")
    run(job(files, run={"epochs": None, "steps": 9}), files / "parts")
    rest = run(job(files, run={"epochs": None, "steps": 20}), files / "parts", resume=True)
    assert rest.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert rest.summary["train_loss"] == pytest.approx(whole.summary["train_loss"], rel=1e-12)
    assert rest.summary["resumed_from_step"] == 9
    assert rest.summary["examples_per_epoch"] == ROWS


def test_micro_batches_sum_to_the_batch(files):
    whole = run(job(files), files / "whole")
    parts = run(job(files, run={"micro_batch": 3}), files / "parts")
    for name, value in whole.weights.items():
        np.testing.assert_allclose(parts.weights[name], value, rtol=1e-4, atol=1e-6)


def test_job_without_model_or_loss_takes_them_from_the_data(files):
    result = run(job(files, model={}), files / "a")
    assert [type(layer).__name__ for layer in result.job.model.layers] == ["Dense", "Relu", "Dense", "Relu", "Dense"]
    assert result.job.model.layers[-1].units == 3
    assert type(result.job.loss).__name__ == "SoftmaxCrossEntropy"
    real = run(job(files, "value", model={}), files / "b")
    assert real.job.model.layers[-1].units == 2
    assert type(real.job.loss).__name__ == "MeanSquaredError"


def test_model_written_in_python(files):
    (files / "net.py").write_text(
        "from hpctrain.nn.layers.activations import Relu\n"
        "from hpctrain.nn.layers.dense import Dense\n"
        "from hpctrain.nn.model import Sequential\n"
        "def build(input_shape, outputs):\n"
        "    assert input_shape == (6,)\n"
        "    return Sequential([Dense(units=9), Relu(), Dense(units=outputs)])\n"
    )
    result = run(job(files, model={"python": f"{files / 'net.py'}:build"}), files / "a")
    assert result.weights["dense0.weight"].shape == (6, 9)
    assert evaluate(files / "a", data=str(files / "data.h5"), group=SingleGroup())["examples"] == ROWS


def test_early_stop_ends_the_run_and_counts_as_finished(files):
    stopping = job(
        files,
        optimizer={"name": "sgd", "lr": 1e-9},
        data={"split": {"validation": 0.2}},
        run={"epochs": 50, "early_stop": {"patience": 2, "min_delta": 0.1}},
    )
    result = run(stopping, files / "a")
    assert result.summary["early_stop"]
    assert result.summary["epochs"] == 3
    again = run(stopping, files / "a", resume=True)
    assert again.summary["steps"] == result.summary["steps"]


def test_divergence_is_an_error_that_says_what_to_do(files):
    too_far = {"name": "sgd", "lr": 1e6}
    model = {"layers": [Dense(units=2)]}
    diverging = job(files, "value", model=model, optimizer=too_far, run={"checkpoint_every": "never"})
    with pytest.raises(UserError, match=r"not a number[\s\S]*lower optimizer.lr"):
        run(diverging, files / "a")


def test_a_run_that_fails_before_its_start_leaves_no_folder(files):
    with h5py.File(files / "data.h5", "a") as file:
        file["x"][17, 3] = math.nan
    with pytest.raises(UserError, match="row 17"):
        run(job(files), files / "new" / "a")
    assert not (files / "new" / "a").exists()


def test_monitors_of_the_user_are_told(files):
    class Count(Monitor):
        steps, ended, closed = 0, False, False

        def on_step(self, report):
            self.steps += 1

        def on_end(self, summary):
            self.ended = True

        def close(self):
            self.closed = True

    monitor = Count()
    run(job(files), files / "a", monitors=[monitor])
    assert (monitor.steps, monitor.ended, monitor.closed) == (3 * 7, True, True)


def test_data_that_changed_are_not_resumed_on(files):
    run(job(files, run={"epochs": 1}), files / "a")
    with h5py.File(files / "data.h5", "a") as file:
        for name in ("x", "label"):
            values = file[name][: ROWS - 1]
            del file[name]
            file[name] = values
    with pytest.raises(UserError, match="data have changed"):
        run(job(files, run={"epochs": 2}), files / "a", resume=True)


def test_labels_are_not_their_own_inputs_but_an_autoencoder_may_be(files):
    with pytest.raises(UserError, match="have a dataset in common"):
        run(job(files, data={"input": "/label"}), files / "a")
    result = run(job(files, "x", model={"layers": [Dense(units=6)]}, run={"epochs": 1}), files / "b")
    assert result.model.out_shape == (6,)


def test_weights_that_are_not_finite_are_never_saved(files):
    """The loss of the last step is still finite: only the weights behind it tell."""
    too_far = {"name": "sgd", "lr": 3e38}
    model = {"layers": [Dense(units=2)]}
    with pytest.raises(UserError, match="weights are not finite after step 1"):
        run(job(files, "value", model=model, optimizer=too_far, run={"epochs": None, "steps": 1}), files / "a")
    assert not list((files / "a" / "checkpoints").glob("*"))
    assert not (files / "a" / "model.h5").exists()


def test_running_statistics_are_among_the_results(files):
    layers = [Dense(units=7), BatchNorm(), Dense(units=3)]
    result = run(job(files, model={"layers": layers}, run={"epochs": 1}), files / "a")
    assert {name: values.shape for name, values in result.state.items()} == {
        "batch_norm1.running_mean": (7,),
        "batch_norm1.running_var": (7,),
    }
    assert all(values.any() for values in result.state.values())
