"""Moments of columns: exact to the last digits, in blocks of any cut of the ranks, and what they learn from."""

import math

import h5py
import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.prepare import fit as fit_module
from hpctrain.data.prepare.clip import Clip
from hpctrain.data.prepare.fill import Fill
from hpctrain.data.prepare.fit import block_rows, find_sizes, fit
from hpctrain.data.prepare.log import Log
from hpctrain.data.prepare.min_max import MinMax
from hpctrain.data.prepare.moments import Tree, finished, moments_of
from hpctrain.data.prepare.one_hot import OneHot
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.prepare.standardise import Standardise
from hpctrain.data.sharding import TRAIN, Split
from hpctrain.errors import UserError


def exact(column):
    """Mean and deviation of numbers by exact sums."""
    mean = math.fsum(column) / len(column)
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in column) / len(column))


def tree_of(values, rows):
    tree = Tree()
    for number, lo in enumerate(range(0, len(values), rows)):
        tree.add(0, number, moments_of(np.ascontiguousarray(values[lo : lo + rows])))
    return tree


@pytest.mark.parametrize("columns", [1, 3, 300])
def test_moments_are_exact_where_the_mean_is_large(columns):
    x = 1e6 + np.random.default_rng(columns).normal(size=(9000 if columns < 4 else 1200, columns))
    found = finished(tree_of(x, 512).total())
    for column in range(min(columns, 5)):
        mean, std = exact(x[:, column])
        assert abs(found.mean[column] - mean) <= 2e-16 * mean
        assert abs(found.std[column] - std) <= 1e-14 * std
    assert np.array_equal(found.minimum, x.min(axis=0))
    assert np.array_equal(found.maximum, x.max(axis=0))


def test_what_is_missing_is_left_out():
    x = np.random.default_rng(0).normal(size=(300, 4))
    x[::3, 1] = np.nan
    x[:, 2] = np.nan
    x[5:, 3] = np.nan
    found = finished(tree_of(x, 64).total())
    assert found.count.tolist() == [300, 200, 0, 5]
    for column in (0, 1, 3):
        assert found.mean[column] == pytest.approx(np.nanmean(x[:, column]), rel=1e-14)
        assert found.std[column] == pytest.approx(np.nanstd(x[:, column]), rel=1e-13)
    assert found.minimum[2] == math.inf


@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 8, 13])
@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_a_tree_that_goes_on_from_another_has_the_same_bits(blocks, cut):
    x = 1e6 + np.random.default_rng(blocks).normal(size=(blocks * 16, 3))
    cut = min(cut, blocks)
    whole = tree_of(x, 16)
    first, later = Tree(), Tree()
    for number in range(blocks):
        (first if number < cut else later).add(0, number, moments_of(x[16 * number : 16 * number + 16]))
    for node in later.nodes:
        first.add(*node)
    assert first.total().tobytes() == whole.total().tobytes()
    assert len(whole.nodes) == bin(blocks).count("1")


def test_blocks_of_large_examples_have_fewer_rows():
    assert block_rows(1) == block_rows(784) == block_rows(1024) == 4096
    assert [block_rows(size) for size in (1025, 128**3 * 4)] == [2048, 1]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A table of 1,000 rows in two files, and what its training part is."""
    rng = np.random.default_rng(7)
    x = 1e6 + rng.normal(size=(1000, 4))
    x[:, 1] = rng.lognormal(2, 1, 1000)
    x[:, 2] = rng.integers(0, 5, 1000)
    x[::7, 3] = np.nan
    y = 300 + 40 * rng.normal(size=(1000, 2))
    folder, paths = tmp_path_factory.mktemp("statistics"), []
    for name, rows in (("a", slice(0, 333)), ("b", slice(333, 1000))):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["x"], file["y"] = x[rows], y[rows]
        paths.append(str(folder / f"{name}.h5"))
    split = Split(1000, 3, 0.1, 0.2)
    return paths, split, x, y, split.part_of(0, 1000) == TRAIN


def fitted(data, inputs, targets=None):
    paths, split, x, y, _ = data
    preparation = Preparation.of(inputs, targets, x.shape[1:], y.shape[1:])
    with Hdf5Source(paths, "x", "y") as source:
        fit(SingleGroup(), source, split, preparation, shared=False)
    return preparation


def test_only_the_training_part_is_looked_at(data, monkeypatch):
    monkeypatch.setattr(fit_module, "BLOCK_ROWS", 64)
    _, _, x, y, train = data
    found = fitted(data, [Standardise(columns=(0, 1))], [MinMax()]).tensors()
    np.testing.assert_allclose(found["inputs.0.mean"], x[train][:, :2].mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(found["inputs.0.std"], x[train][:, :2].std(axis=0), rtol=2e-12)
    assert found["targets.0.min"].tolist() == y[train].min(axis=0).tolist()
    assert found["targets.0.max"].tolist() == y[train].max(axis=0).tolist()
    assert (np.abs(found["inputs.0.mean"] - x[:, :2].mean(axis=0)) > 1e-3).all()


def test_a_step_learns_from_what_the_steps_before_it_leave(data):
    _, _, x, _, train = data
    steps = [Fill(columns=(3,)), Log(columns=(1,)), Clip(high=3.0, columns=(1,)), Standardise(columns=(1, 3))]
    found = fitted(data, steps).tensors()
    logged = np.minimum(np.log1p(x[train, 1]), 3.0)
    filled = np.where(np.isnan(x[train, 3]), np.nanmean(x[train, 3]), x[train, 3])
    assert found["inputs.0.mean"] == pytest.approx(np.nanmean(x[train, 3]), rel=1e-14)
    np.testing.assert_allclose(found["inputs.3.mean"], [logged.mean(), filled.mean()], rtol=1e-13)
    np.testing.assert_allclose(found["inputs.3.std"], [logged.std(), filled.std()], rtol=2e-12)


def test_a_source_reads_prepared_rows(data):
    paths, _, x, y, _ = data
    preparation = fitted(data, [OneHot(columns=(2,), size=5), Fill(), Standardise()], [Standardise()])
    learned = preparation.tensors()
    with Hdf5Source(paths, "x", "y", preparation=preparation) as source:
        assert source.format.input_shape == (8,)
        assert source.stored_format.input_shape == (4,)
        inputs, targets, _ = source.read(300, 400)
        source.check_values(inputs, targets, np.empty((100, 0)), 300)
    plain = x[300:400][:, [0, 1, 3]]
    plain = np.where(np.isnan(plain), learned["inputs.1.mean"], plain)
    plain = (plain - learned["inputs.2.mean"]) / learned["inputs.2.std"]
    np.testing.assert_allclose(inputs[:, [0, 1, 7]], plain, rtol=1e-6)
    assert np.array_equal(inputs[:, 2:7], np.eye(5)[x[300:400, 2].astype(int)])
    np.testing.assert_allclose(targets, (y[300:400] - y.mean(axis=0)) / y.std(axis=0), atol=0.3)


def test_sizes_of_one_hot_columns_are_found_in_the_training_part(data):
    paths, split, x, _, train = data
    preparation = Preparation.of([Fill(value=9, columns=(2,)), OneHot(columns=(2,))], None, (4,), (2,))
    assert not preparation.inputs.has_shape
    with Hdf5Source(paths, "x", "y") as source:
        find_sizes(source, split, preparation.inputs, {})
    assert preparation.inputs.out_shape == (4 + x[train, 2].max(),)
    for number, text in ((1e7, "10000000 is the largest"), (-1, "a number below 0")):
        preparation = Preparation.of([Fill(value=number, columns=(3,)), OneHot(columns=(3,))], None, (4,), (2,))
        with Hdf5Source(paths, "x", "y") as source, pytest.raises(UserError, match=text):
            find_sizes(source, split, preparation.inputs, {})
    with pytest.raises(UserError, match=r"data.prepare.1 \(one_hot\) finds its size in numbers that data.prepare.0"):
        Preparation.of([Standardise(), OneHot(columns=(2,))], None, (4,), (2,))


def test_statistics_from_a_file(data, tmp_path):
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        file["jets/mean"], file["jets/std"] = np.arange(4.0), np.arange(1.0, 5)
        file["wrong"], file["below"] = np.arange(3.0), np.full(4, -1.0)
        file["table"] = np.stack([np.arange(4.0), np.arange(10.0, 14)], axis=1)
    file = str(tmp_path / "stats.h5")
    step = Standardise(file=file, mean="jets/mean", std="jets/std", columns=(1, 3))
    found = fitted(data, [step]).tensors()
    assert {name: values.tolist() for name, values in found.items()} == {
        "inputs.0.mean": [1, 3],
        "inputs.0.std": [2, 4],
    }
    step = Standardise(file=file, mean="table[:, 1]", std="jets/std[2]")
    found = fitted(data, [step]).tensors()
    assert (found["inputs.0.mean"].tolist(), found["inputs.0.std"].tolist()) == ([10, 11, 12, 13], [3, 3, 3, 3])
    for options, text in (
        ({"mean": "table[:, 2]", "std": "jets/std"}, "mean = 'table[:, 2]' cannot be taken of (4, 2) numbers"),
        ({"mean": "wrong", "std": "jets/std"}, "3 numbers"),
        ({"mean": "jets/mean", "std": "below"}, "no std"),
        ({"mean": "jets", "std": "below"}, "no dataset of numbers"),
    ):
        with pytest.raises(UserError, match=r"data.prepare.0 \(standardise\)") as caught:
            fitted(data, [Standardise(file=file, **options)])
        assert text in caught.value.message


def test_statistics_of_what_is_not_there_or_infinite_are_refused(tmp_path):
    x = np.arange(30.0).reshape(10, 3)
    x[:, 1] = np.nan
    x[6, 2] = np.inf
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = x, np.zeros(10, int)
    with Hdf5Source([str(tmp_path / "a.h5")], "x", "y") as source:
        for columns, text in (([0, 1], "column 1 is missing (NaN) in every row"), ([2], "row 6 of 'x' in")):
            preparation = Preparation.of([Standardise(columns=columns)], None, (3,), ())
            with pytest.raises(UserError, match=r"data.prepare.0 \(standardise\)") as caught:
                fit(SingleGroup(), source, Split(10, 0), preparation, shared=False)
            assert text in caught.value.message
        preparation = Preparation.of([Log(offset=0, columns=(0,)), Standardise(columns=(0,))], None, (3,), ())
        with pytest.raises(UserError, match="0 in column 0, of which data.prepare.0 .log. makes no number"):
            fit(SingleGroup(), source, Split(10, 0), preparation, shared=False)


def test_bad_rows_are_told_by_the_step_that_makes_them(tmp_path):
    x = np.arange(8.0).reshape(4, 2)
    x[2, 1] = -5
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = x, np.zeros(4, int)
    preparation = Preparation.of([Log()], None, (2,), ())
    with (
        Hdf5Source([str(tmp_path / "a.h5")], "x", "y", preparation=preparation) as source,
        pytest.raises(UserError, match="no finite number: row 2 of 'x'") as caught,
    ):
        source.check_values(*source.read(0, 4), 0)
    assert "-5 in column 1" in caught.value.message


def test_what_was_learned_is_taken_back_or_refused(data):
    _, _, x, y, _ = data
    learned = fitted(data, [OneHot(columns=(2,), size=5), Standardise()], [MinMax()]).tensors()
    again = Preparation.of([OneHot(columns=(2,), size=5), Standardise()], [MinMax()], x.shape[1:], y.shape[1:])
    assert not again.is_fitted
    again.put_back(learned)
    assert again.is_fitted
    assert {name: a.tobytes() for name, a in again.tensors().items()} == {n: a.tobytes() for n, a in learned.items()}
    for wrong in ({}, {**learned, "inputs.1.mean": np.zeros(4)}):
        other = Preparation.of([OneHot(columns=(2,), size=5), Standardise()], None, x.shape[1:], y.shape[1:])
        with pytest.raises(UserError, match=r"data.prepare.1 \(standardise\) has learned is not in the file"):
            other.put_back(wrong)
