"""Preparation as a part of the model: trained with, resumed with, evaluated with and predicted with."""

import h5py
import numpy as np
import pytest

from hpctrain import Job, evaluate, load_model, train
from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.prepare import fit as fit_module
from hpctrain.data.sharding import TEST, TRAIN, Split
from hpctrain.errors import UserError
from hpctrain.run.master import resolve
from hpctrain.training import checkpoint

ROWS, SEED = 600, 4
LAYERS = [{"type": "dense", "units": 8}, "tanh", {"type": "dense", "units": 2}]


def table(rows, seed):
    """Columns of large numbers, of a wide spread, with holes, and of kinds; two targets far from 0."""
    rng = np.random.default_rng(seed)
    x = 1e6 + rng.normal(size=(rows, 4))
    x[:, 1] = rng.lognormal(3, 1, rows)
    kinds = rng.integers(0, 3, rows)
    x[:, 3] = kinds
    signal = (x[:, 0] - 1e6) + np.log1p(x[:, 1]) + kinds
    x[::9, 2] = np.nan
    y = np.stack([5e5 + 3 * signal, np.exp(signal / 4)], axis=1)
    return x, y


def write(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return path


def job_of(path, prepare=None, prepare_target=None, **sections):
    data = {"files": path, "input": "x", "target": "y", "split": {"validation": 0.1, "test": 0.2}}
    data |= {"prepare": prepare, "prepare_target": prepare_target}
    run = {"epochs": 4, "seed": SEED, "progress": "none", **sections.pop("run", {})}
    model = {"layers": sections.pop("layers", LAYERS)}
    return Job(data={**data, **sections.pop("data", {})}, model=model, run=run, **sections)


INPUTS = [{"name": "one_hot", "columns": [3]}, {"name": "log", "columns": [1]}, "fill", "standardise"]
TARGETS = [{"name": "log", "columns": [1]}, "standardise"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with preparation, and one on numbers that numpy prepared in float64 as the job says."""
    folder = tmp_path_factory.mktemp("prepared")
    x, y = table(ROWS, 0)
    train_rows = Split(ROWS, SEED, 0.1, 0.2).part_of(0, ROWS) == TRAIN
    plain = x[:, :3].copy()
    plain[:, 1] = np.log1p(plain[:, 1])
    plain[np.isnan(plain[:, 2]), 2] = np.nanmean(plain[train_rows, 2])
    plain = (plain - plain[train_rows].mean(axis=0)) / plain[train_rows].std(axis=0)
    goals = np.stack([y[:, 0], np.log1p(y[:, 1])], axis=1)
    mean, std = goals[train_rows].mean(axis=0), goals[train_rows].std(axis=0)
    by_hand = np.hstack([plain, np.eye(3)[x[:, 3].astype(int)]]).astype("f4"), ((goals - mean) / std).astype("f4")
    first = job_of(write(folder / "a.h5", x=x, y=y), INPUTS, TARGETS)
    second = job_of(write(folder / "b.h5", x=by_hand[0], y=by_hand[1]))
    results = [train(job, run_dir=folder / name, group=SingleGroup()) for job, name in ((first, "a"), (second, "b"))]

    def back(outputs):
        found = outputs.astype("f8") * std + mean
        return np.stack([found[:, 0], np.expm1(found[:, 1])], axis=1)

    return folder, results, (x, y), by_hand, back


def test_the_network_sees_what_numpy_would_have_made(run):
    _, (first, second), _, _, _ = run
    for name, tensor in first.weights.items():
        np.testing.assert_allclose(tensor, second.weights[name], rtol=1e-4, atol=1e-5)
    assert first.summary["train_loss"] == pytest.approx(second.summary["train_loss"], rel=1e-5)
    assert first.summary["test"]["loss"] == pytest.approx(second.summary["test"]["loss"], rel=1e-5)


def test_predictions_and_metrics_are_in_the_targets_own_units(run):
    folder, (first, second), (x, y), by_hand, back = run
    found = first.predict(x)
    assert found.dtype == np.float64
    # The outputs are float32: of a deviation of 6, that of 5e5 + 6 z has 1e-6.
    np.testing.assert_allclose(found, back(second.predict(by_hand[0])), rtol=1e-6, atol=1e-4)
    test = Split(ROWS, SEED, 0.1, 0.2).part_of(0, ROWS) == TEST
    assert first.summary["test"]["mae"] == pytest.approx(np.abs(found - y)[test].mean(), rel=1e-6)
    wanted = 1 - ((found - y)[test] ** 2).sum(axis=0) / ((y[test] - y[test].mean(axis=0)) ** 2).sum(axis=0)
    assert first.summary["test"]["r2"] == pytest.approx(wanted.mean(), rel=1e-6)
    mean = y[Split(ROWS, SEED, 0.1, 0.2).part_of(0, ROWS) == TRAIN].mean(axis=0)
    assert first.summary["test_mean_predictor"]["mae"] == pytest.approx(np.abs(mean - y)[test].mean(), rel=1e-6)
    np.testing.assert_array_equal(load_model(folder / "a").predict(x), found)


def test_evaluation_prepares_by_itself(run):
    folder, (first, _), _, _, _ = run
    own = evaluate(folder / "a", group=SingleGroup())
    assert own == {**first.summary["test"], "examples": 120}
    x, y = table(50, 1)
    x[0, 1] = 1e4  # statistics of these rows would be others
    other = evaluate(folder / "a", data=write(folder / "new.h5", x=x, y=y), group=SingleGroup())
    assert other["mae"] == pytest.approx(np.abs(first.predict(x) - y).mean(), rel=1e-6)


def test_the_model_keeps_what_was_learned(run):
    folder, _, (x, _), _, _ = run
    kept = checkpoint.load_model(folder / "a" / "model.h5").preparation
    train_rows = Split(ROWS, SEED, 0.1, 0.2).part_of(0, ROWS) == TRAIN
    assert list(kept["inputs.0.size"]) == [3]
    np.testing.assert_allclose(kept["inputs.2.mean"][0], x[train_rows, 0].mean(), rtol=1e-15)
    assert {name for name in kept if name.startswith("targets")} == {"targets.1.mean", "targets.1.std"}
    assert all(values.dtype == np.float64 for values in kept.values())
    assert [step.name for step in Job.load(folder / "a" / "job.toml").data.prepare] == [
        "one_hot",
        "log",
        "fill",
        "standardise",
    ]


def test_a_resumed_run_learns_nothing_again(run, monkeypatch, tmp_path):
    folder, (first, _), (x, y), _, _ = run
    path = write(tmp_path / "a.h5", x=x, y=y)
    train(job_of(path, INPUTS, TARGETS, run={"epochs": 2}), run_dir=tmp_path / "run", group=SingleGroup())

    def fail(*args):
        raise AssertionError("statistics are taken again")

    monkeypatch.setattr(fit_module, "_moments", fail)
    job = job_of(path, INPUTS, TARGETS)
    again = train(job, run_dir=tmp_path / "run", resume=True, group=SingleGroup())
    assert again.summary["weights_sha256"] == first.summary["weights_sha256"]
    np.testing.assert_array_equal(again.predict(x), first.predict(x))
    finished = train(job, run_dir=tmp_path / "run", resume=True, group=SingleGroup())
    np.testing.assert_array_equal(finished.predict(x), first.predict(x))


def test_a_resumed_run_must_have_the_same_preparation_and_kinds(run, tmp_path):
    _, _, (x, y), _, _ = run
    path = write(tmp_path / "a.h5", x=x, y=y)
    train(job_of(path, INPUTS, TARGETS, run={"epochs": 1}), run_dir=tmp_path / "run", group=SingleGroup())
    other = job_of(path, INPUTS[:3], TARGETS)
    with pytest.raises(UserError, match="data.prepare.3.name was 'standardise', is now not given"):
        train(other, run_dir=tmp_path / "run", resume=True, group=SingleGroup())
    x = x.copy()
    x[:, 3] += x[:, 3] == 2
    write(path, x=x, y=y)
    with pytest.raises(UserError, match=r"one-hot columns have other sizes\s+found: +\[4\]\s+allowed: +\[3\]"):
        train(job_of(path, INPUTS, TARGETS), run_dir=tmp_path / "run", resume=True, group=SingleGroup())


def test_a_kind_that_no_training_row_has_is_told(run):
    folder, (first, _), (x, y), _, _ = run
    x = x[:4].copy()
    x[2, 3] = 3
    with pytest.raises(
        UserError, match=r"inputs' row 2\s+found: +3 in column 3, of which data.prepare.0 \(one_hot, which"
    ):
        first.predict(x)
    path = write(folder / "strange.h5", x=x, y=y[:4])
    with pytest.raises(UserError, match=r"no finite number: row 2 of 'x' in[\s\S]*knows 0 to 2\) makes no number"):
        evaluate(folder / "a", data=path, group=SingleGroup())
    missing = np.nan_to_num(x, nan=1e6)
    missing[2] = (np.nan, np.nan, 0, 0)
    path = write(folder / "missing.h5", x=missing, y=y[:4])
    with pytest.raises(UserError, match="NaN in the data: row 2 of 'x'"):
        evaluate(load_run_without_fill(folder, run), data=path, group=SingleGroup())


def load_run_without_fill(folder, run):
    """A run whose preparation leaves missing numbers missing."""
    _, _, (x, y), _, _ = run
    path = write(folder / "whole.h5", x=np.nan_to_num(x, nan=1e6), y=y)
    train(job_of(path, ["standardise"], run={"epochs": 1}), run_dir=folder / "whole", group=SingleGroup())
    return folder / "whole"


def test_missing_examples_are_dropped_but_not_what_a_step_cannot_take(tmp_path):
    x, y = table(100, 3)
    data = {"missing": "drop", "split": None}
    job = job_of(write(tmp_path / "a.h5", x=x, y=y), ["standardise"], ["standardise"], data=data, run={"epochs": 1})
    assert np.isfinite(train(job, run_dir=tmp_path / "a", group=SingleGroup()).summary["train_loss"])
    x[5, 0] = -3
    job = job_of(write(tmp_path / "b.h5", x=x, y=y), ["log"], None, data=data, run={"epochs": 1})
    with pytest.raises(UserError, match="no finite number: row 5 of 'x'"):
        train(job, run_dir=tmp_path / "b", group=SingleGroup())


def test_a_number_for_missing_ones_is_put_in_before_preparation(tmp_path):
    x, y = table(100, 3)
    data = {"missing": 7.0, "split": None}
    job = job_of(write(tmp_path / "a.h5", x=x, y=y), ["standardise"], None, data=data, run={"epochs": 1})
    result = train(job, run_dir=tmp_path / "a", group=SingleGroup())
    filled = np.where(np.isnan(x), 7.0, x)
    np.testing.assert_allclose(result.preparation.tensors()["inputs.0.mean"], filled.mean(axis=0), rtol=1e-14)


def test_quantiles_are_turned_back_level_by_level(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype("f4")
    y = np.stack([1e4 + 100 * rng.normal(size=200), 5 * rng.normal(size=200)], axis=1)
    layers = [{"type": "dense", "units": 6}]
    job = job_of(write(tmp_path / "a.h5", x=x, y=y), None, ["standardise"], loss="quantile", layers=layers)
    result = train(job, run_dir=tmp_path / "a", group=SingleGroup())
    weight, bias = (tensor.astype("f8") for tensor in result.weights.values())
    outputs = (x @ weight + bias).reshape(200, 2, 3)
    learned = result.preparation.tensors()
    expected = outputs * learned["targets.0.std"][:, None] + learned["targets.0.mean"][:, None]
    np.testing.assert_allclose(result.predict(x), expected.reshape(200, 6), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("prepare_target", "loss", "dtype", "text"),
    [
        (["standardise"], "poisson", "f8", "does not go with the loss poisson"),
        (["standardise"], None, "i8", "but the targets are class labels"),
        (["clip"], None, "f8", "clip needs low, high or both"),
        ([{"name": "fill"}], None, "f8", "could not be turned back"),
    ],
)
def test_targets_that_cannot_be_prepared(tmp_path, prepare_target, loss, dtype, text):
    x, y = table(60, 0)
    path = write(tmp_path / "a.h5", x=x, y=np.abs(y[:, 0]).clip(0, 1).astype(dtype))
    with pytest.raises(UserError, match=text):
        resolve(job_of(path, None, prepare_target, **({"loss": loss} if loss else {})))


def test_examples_that_are_files_with_statistics_beside_them(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.normal((3, -40), (2, 9), (12, 4, 5, 2)).astype("f4")
    labels = rng.integers(0, 3, 12)
    for number in range(12):
        write(tmp_path / f"data-{number}.h5", climate=images[number], label=labels[number])
    table = np.array([[-3, 9, 3, 2], [-70, 0, -40, 9.0]])  # a row for each channel: min, max, mean, std
    write(tmp_path / "stats.h5", **{"climate/stats": table})
    step = {"name": "standardise", "axis": "channel", "file": "stats.h5"}
    step |= {"mean": "climate/stats[:, 2]", "std": "climate/stats[:, 3]"}
    data = {"files": ".", "exclude": "stats.h5", "input": "climate", "target": "label", "examples": "files"}
    layers = ["flatten", {"type": "dense", "units": 3}]
    job = Job.from_dict(
        {"data": {**data, "prepare": [step]}, "model": {"layers": layers}, "run": {"epochs": 1}}, tmp_path
    )
    result = train(job, run_dir=tmp_path / "run", group=SingleGroup())
    (tmp_path / "stats.h5").unlink()
    trained = load_model(tmp_path / "run")
    weight, bias = (tensor.astype("f8") for tensor in trained.weights.values())
    expected = ((images - table[:, 2]) / table[:, 3]).reshape(12, -1) @ weight + bias
    np.testing.assert_allclose(trained.predict(images), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(trained.predict(images), result.predict(images))


def test_text_is_one_hot_with_a_column_for_each_category(tmp_path):
    rng = np.random.default_rng(0)
    carriers = np.array(["AA", "B6", "UA"])[rng.integers(0, 2, 60)]
    carriers[-1] = "UA"  # the last of the categories, and in no training row
    path = tmp_path / "a.h5"
    write(path, x=rng.normal(size=60), y=rng.normal(size=60), train=np.arange(50), test=np.arange(50, 60))
    with h5py.File(path, "a") as file:
        file.create_dataset("carrier", data=carriers.tolist(), dtype=h5py.string_dtype())
    data = {"input": ["x", "carrier"], "split": {"index": {"train": "train", "test": "test"}}}
    steps = [{"name": "one_hot", "columns": ["carrier"]}, "standardise"]
    job = job_of(path, steps, data=data, layers=[{"type": "dense", "units": 1}], run={"epochs": 1})
    result = train(job, run_dir=tmp_path / "run", group=SingleGroup())
    assert result.preparation.inputs.out_shape == (4,)
    assert result.summary["test"]["mae"] > 0
    assert evaluate(tmp_path / "run", data=path, group=SingleGroup())["examples"] == 60


def test_columns_by_the_names_of_datasets_and_fields(tmp_path):
    rng = np.random.default_rng(0)
    events = np.zeros(50, [("pt", "f8"), ("eta", "f4")])
    events["pt"], events["eta"] = rng.lognormal(size=50), rng.normal(size=50)
    path = write(tmp_path / "a.h5", events=events, **{"more/mass": rng.normal(100, 5, 50), "y": rng.normal(size=50)})
    data = {"input": ["events[pt, eta]", "more/mass"], "split": None}
    steps = [{"name": "log", "columns": ["pt"]}, {"name": "standardise", "columns": ["mass"]}]
    prepared = resolve(job_of(path, steps, data=data, layers=[{"type": "dense", "units": 1}]))
    chain = prepared.preparation.inputs
    assert [bound.elements.columns for bound in chain.steps] == [(0,), (2,)]
    with pytest.raises(UserError, match="no column 'phi'"):
        resolve(job_of(path, [{"name": "log", "columns": ["phi"]}], data=data))


def test_a_number_below_0_is_no_kind_and_is_told_with_its_row(tmp_path):
    kinds = np.tile([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]], (4, 1))
    write(tmp_path / "a.h5", x=kinds, y=np.zeros(12))
    kinds[[7, 9], 0] = -2
    write(tmp_path / "b.h5", x=kinds, y=np.zeros(12))
    prepare = [{"name": "one_hot", "columns": [0]}]
    with pytest.raises(
        UserError, match=r"one_hot\): column 0 has a number below 0\s+found: +-2; .*row 7 of 'x' in .*b\.h5"
    ):
        resolve(job_of(str(tmp_path / "*.h5"), prepare, data={"split": None}))
