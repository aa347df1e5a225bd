"""Whole runs with labels for each position, weights, masks and labels that do not count, from Python on one rank."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain import Job, evaluate, train
from hpctrain.comm.single_group import SingleGroup
from hpctrain.nn.layers.activations import Tanh
from hpctrain.nn.layers.dense import Dense

ROWS, T, CLASSES = 48, 5, 3


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Sequences whose labels follow from the inputs; in the second file what does not count is nonsense."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, T, 6)).astype("f4")
    labels = (x @ random.normal(size=(6, CLASSES))).argmax(-1)
    mask = random.integers(0, 2, (ROWS, T))
    weight = random.integers(0, 3, ROWS).astype("f4")
    tables = {"x": x, "y": labels, "mask": mask, "weight": weight, "late": (np.arange(ROWS) >= 40).astype("f4")}
    write(folder / "data.h5", **tables)
    counts = (mask * weight[:, None]) > 0
    write(folder / "nonsense.h5", **{**tables, "y": np.where(counts, labels, -7)})
    write(folder / "ignored.h5", **{**tables, "y": np.where(counts, labels, 9), "mask": np.ones((ROWS, T))})
    write(folder / "twice.h5", **{name: np.repeat(values, 2, 0) for name, values in tables.items()})
    return folder


def write(path: Path, **tables: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        for name, values in tables.items():
            file[name] = values


def job(files: Path, name: str = "data", run: dict | None = None, loss: object = None, **data: object) -> Job:
    return Job(
        data={"files": str(files / f"{name}.h5"), "input": "x", "target": "y", **data},
        model={"layers": [Dense(units=7), Tanh(), Dense(units=CLASSES)]},
        loss=loss,
        metrics={"names": ["accuracy", "perplexity", "f1", "confusion_matrix"]},
        run={"global_batch": 16, "progress": "none", **(run or {"epochs": 3})},
        optimizer={"name": "adam", "lr": 0.03},
    )


def run(job: Job, folder: Path):
    return train(job, run_dir=folder, group=SingleGroup())


def test_what_does_not_count_changes_nothing(files, tmp_path):
    plain = run(job(files, weight="weight", mask="mask"), tmp_path / "a")
    nonsense = run(job(files, "nonsense", weight="weight", mask="mask"), tmp_path / "b")
    ignored = run(job(files, "ignored", weight="weight", ignore_label=9), tmp_path / "c")
    for other in (nonsense, ignored):
        assert other.summary["weights_sha256"] == plain.summary["weights_sha256"]
        assert other.summary["train_loss"] == plain.summary["train_loss"]
    assert plain.summary["examples_per_epoch"] == ROWS  # an example that does not count is used up like the others


def test_sequences_are_learnt_and_judged_by_position(files, tmp_path):
    result = run(job(files, run={"epochs": 40}, split={"test": 0.25}), tmp_path / "a")
    test = result.summary["test"]
    assert test["accuracy"] > 0.8
    assert np.sum(test["confusion_matrix"]) == ROWS * T // 4
    assert test["perplexity"] == pytest.approx(np.exp(test["loss"]), rel=1e-6)
    everything = evaluate(tmp_path / "a", data=str(files / "data.h5"), group=SingleGroup())
    with h5py.File(files / "data.h5") as file:
        right = result.predict(file["x"][:]).argmax(-1) == file["y"][:]
    assert everything["accuracy"] == pytest.approx(right.mean())


def test_the_loss_is_the_mean_over_what_counts(files, tmp_path):
    options = {"weight": "weight", "mask": "mask"}
    result = run(job(files, run={"epochs": 1, "global_batch": ROWS}, **options), tmp_path / "a")
    with h5py.File(files / "data.h5") as file:
        x, y, weight = file["x"][:], file["y"][:], file["weight"][:][:, None] * file["mask"][:]
    # One step over all rows: the loss is that of the initial weights, which a run without an update still has.
    initial = run(job(files, run={"steps": 1}, weight="late", shuffle="none"), tmp_path / "b")
    logs = initial.predict(x).astype(np.float64)
    losses = np.log(np.exp(logs).sum(-1)) - np.take_along_axis(logs, y[..., None], -1)[..., 0]
    assert result.summary["train_loss"] == pytest.approx(np.average(losses, weights=weight), rel=1e-5)


def test_batches_in_which_nothing_counts_update_nothing(files, tmp_path):
    one, two, three = (
        run(job(files, run={"steps": steps}, weight="late", shuffle="none"), tmp_path / str(steps))
        for steps in (1, 2, 3)
    )
    assert one.summary["weights_sha256"] == two.summary["weights_sha256"] != three.summary["weights_sha256"]
    assert np.isnan(two.summary["train_loss"])
    assert np.isfinite(three.summary["train_loss"])


def test_class_weights_divide_by_themselves(files, tmp_path):
    """Weights of all classes times a constant change nothing but rounding, and 0 leaves a class out."""
    options = {"name": "softmax_cross_entropy"}
    plain = run(job(files, loss=options), tmp_path / "a")
    scaled = run(job(files, loss={**options, "class_weights": [4, 4, 4]}), tmp_path / "b")
    assert scaled.summary["train_loss"] == pytest.approx(plain.summary["train_loss"], rel=1e-5)
    blind = run(job(files, run={"epochs": 40}, loss={**options, "class_weights": [1, 0, 1]}), tmp_path / "c")
    with h5py.File(files / "data.h5") as file:
        said = blind.predict(file["x"][:]).argmax(-1)
    assert (said == 1).mean() < 0.05


def test_the_step_is_warm_before_it_is_taken(files, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("hpctrain_generated_")]:
        monkeypatch.delitem(sys.modules, name)  # other networks of the same kinds of layers share it
    result = run(job(files, weight="weight", mask="mask"), tmp_path / "a")
    compiled = result.model._compiled
    assert len(compiled.loss_and_grad.signatures) == len(compiled.predict.signatures) == 1
