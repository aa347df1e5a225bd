"""Statistics leave out what does not count in training: rows and positions of weight 0, rows that are dropped."""

import numpy as np
import pytest
from sources import refused, write

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.fields.examples import Windows
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.prepare import fit as fit_module
from hpctrain.data.prepare.fill import Fill
from hpctrain.data.prepare.fit import find_sizes, fit
from hpctrain.data.prepare.min_max import MinMax
from hpctrain.data.prepare.one_hot import OneHot
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.prepare.standardise import Standardise
from hpctrain.data.sharding import TRAIN, Split

ROWS = 300


def learned(path, inputs=None, targets=None, split=None, target="y", **options):
    """What the steps learn, by name."""
    with Hdf5Source([path], "x", target, **options) as source:
        form = source.stored_format
        preparation = Preparation.of(inputs, targets, form.input_shape, form.target_shape)
        fit(SingleGroup(), source, split or Split(len(source), 0), preparation, shared=False)
    return preparation.tensors()


@pytest.fixture
def random(monkeypatch):
    monkeypatch.setattr(fit_module, "BLOCK_ROWS", 64)
    return np.random.default_rng(5)


def test_rows_of_weight_0(tmp_path, random):
    x, y, weight = random.normal(size=(ROWS, 3)), random.normal(size=(ROWS, 2)), random.integers(0, 3, ROWS) / 2
    x[weight == 0] = 1e6
    y[weight == 0] = np.inf
    split = Split(ROWS, 1, 0.0, 0.3)
    path = write(tmp_path / "a.h5", x=x, y=y, w=weight)
    found = learned(path, [Standardise()], [Standardise(), MinMax()], split, weight="w")
    counts = (split.part_of(0, ROWS) == TRAIN) & (weight > 0)
    np.testing.assert_allclose(found["inputs.0.mean"], x[counts].mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["inputs.0.std"], x[counts].std(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["targets.0.mean"], y[counts].mean(axis=0), rtol=1e-11)
    prepared = (y[counts] - y[counts].mean(axis=0)) / y[counts].std(axis=0)
    np.testing.assert_allclose(found["targets.1.max"], prepared.max(axis=0), rtol=1e-12)


@pytest.mark.parametrize("how", ["mask", "ignore_label"])
def test_padding_of_sequences(tmp_path, random, how):
    mask = np.arange(9) < random.integers(2, 10, ROWS)[:, None]
    x = np.where(mask[..., None], 5 + random.normal(size=(ROWS, 9, 2)), 0)
    labels = np.where(mask, random.integers(0, 3, (ROWS, 9)), -1 if how == "ignore_label" else 0)
    path = write(tmp_path / "a.h5", x=x, y=labels, m=mask)
    options = {"mask": "m"} if how == "mask" else {"ignore_label": -1}
    found = learned(path, [Standardise(axis="channel")], **options)
    np.testing.assert_allclose(found["inputs.0.mean"], x[mask].mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["inputs.0.std"], x[mask].std(axis=0), rtol=1e-12)
    found = learned(path, [Standardise()], **options)  # each number has its own
    wanted = np.stack([x[mask[:, at], at].mean(axis=0) for at in range(9)])
    np.testing.assert_allclose(found["inputs.0.mean"].reshape(9, 2), wanted, rtol=1e-12)


def test_masked_places_of_images_and_of_their_targets(tmp_path, random):
    mask = random.integers(0, 2, (ROWS, 4, 5))
    x, y = random.normal(size=(2, ROWS, 4, 5, 3))
    path = write(tmp_path / "a.h5", x=x, y=y, m=mask)
    found = learned(path, [Standardise(axis="channel")], [Standardise(axis="all")], mask="m")
    np.testing.assert_allclose(found["inputs.0.std"], x[mask == 1].std(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["targets.0.mean"], [y[mask == 1].mean()], rtol=1e-10)


def test_a_mask_of_other_axes_leaves_out_whole_rows_alone(tmp_path, random):
    """Targets of which some are missing say nothing of the inputs, nor do the horizons of a window."""
    x, y, mask = random.normal(size=(ROWS, 4)), random.normal(size=(ROWS, 3)), random.integers(0, 2, (ROWS, 3))
    path = write(tmp_path / "a.h5", x=x, y=y, m=mask)
    found = learned(path, [Standardise()], mask="m")
    np.testing.assert_allclose(found["inputs.0.mean"], x[mask.any(axis=1)].mean(axis=0), rtol=1e-10)
    path = write(tmp_path / "b.h5", x=x, y=y[:, 0], m=mask[:, 0])
    found = learned(path, [Standardise(axis="channel")], mask="m", windows=Windows(2, (1, 2)))
    rows = [i for i in range(ROWS - 3) if mask[i + 2, 0] or mask[i + 3, 0]]
    wanted = np.concatenate([x[i : i + 2] for i in rows]).mean(axis=0)
    np.testing.assert_allclose(found["inputs.0.mean"], wanted, rtol=1e-10)


def test_rows_that_are_dropped(tmp_path, random):
    x, y = random.normal(size=(ROWS, 3)), random.normal(size=(ROWS, 2))
    x[::7, 1], y[::5, 0] = np.nan, np.nan
    whole = ~(np.isnan(x).any(axis=1) | np.isnan(y).any(axis=1))
    path = write(tmp_path / "a.h5", x=x, y=y)
    found = learned(path, [Standardise()], [Standardise()], missing="drop")
    np.testing.assert_allclose(found["inputs.0.mean"], x[whole].mean(axis=0), rtol=1e-11)
    np.testing.assert_allclose(found["targets.0.std"], y[whole].std(axis=0), rtol=1e-12)
    plain = learned(path, [Standardise()])
    np.testing.assert_allclose(plain["inputs.0.mean"], np.nanmean(x, axis=0), rtol=1e-11)


def test_what_does_not_count_is_left_out_behind_other_steps_too(tmp_path, random):
    x, weight = random.normal(size=(ROWS, 1)), random.integers(0, 2, ROWS)
    x[::3] = np.nan
    x[weight == 0] = 40
    path = write(tmp_path / "a.h5", x=x, y=np.zeros(ROWS, int), w=weight)
    found = learned(path, [Fill(), Standardise()], weight="w")
    counted = x[weight == 1]
    filled = np.where(np.isnan(counted), np.nanmean(counted), counted)
    np.testing.assert_allclose(found["inputs.1.std"], [filled.std()], rtol=1e-12)


def test_kinds_are_those_of_all_rows(tmp_path, random):
    """What does not count is prepared too, and needs a column."""
    path = write(tmp_path / "a.h5", x=np.array([0, 1, 4]), y=np.zeros(3, int), w=np.array([1, 1, 0]))
    with Hdf5Source([path], "x", "y", weight="w") as source:
        preparation = Preparation.of([OneHot()], None, (1,), ())
        find_sizes(source, Split(3, 0), preparation.inputs, {})
    assert preparation.inputs.out_shape == (5,)


def test_nothing_that_counts_is_refused(tmp_path, random):
    path = write(tmp_path / "a.h5", x=np.ones((4, 2)), y=np.zeros(4, int), w=np.zeros(4))
    assert "in every row of the training part that counts" in refused(
        "nothing to take", learned, path, [Standardise()], weight="w"
    )


@pytest.mark.parametrize(("step", "column"), [(Standardise(), 0), (Standardise(), 1), (MinMax(), 2)])
def test_statistics_that_float64_does_not_hold_are_refused(tmp_path, random, step, column):
    x = random.normal(size=(ROWS, 3)) * [1e200, 1e-300, 1]
    x[:2, 2] = -1.5e308, 1.5e308
    step = step.model_copy(update={"columns": (column,)})
    path = write(tmp_path / "a.h5", x=x, y=np.zeros(ROWS, int))
    message = refused(f"statistics of column {column} are beyond what float64 holds", learned, path, [step])
    assert "scale" in message
