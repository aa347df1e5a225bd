"""Steps in a row: their order, columns and precision, and what is said of numbers that have no image."""

import pickle

import numpy as np
import pytest

from hpctrain.data.prepare.chain import Chain
from hpctrain.data.prepare.clip import Clip
from hpctrain.data.prepare.elements import Elements, find_columns
from hpctrain.data.prepare.fill import Fill
from hpctrain.data.prepare.log import Log
from hpctrain.data.prepare.min_max import MinMax
from hpctrain.data.prepare.one_hot import OneHot
from hpctrain.data.prepare.scale import Scale
from hpctrain.data.prepare.standardise import Standardise
from hpctrain.errors import UserError


def chain_of(*steps, shape=(4,), names=None):
    return Chain(steps, shape, "data.prepare", names)


def prepared(chain, raw):
    out = np.empty((len(raw), *chain.out_shape), np.float32)
    chain.apply(raw, out)
    return out


def refused(match, action, *args, **options):
    with pytest.raises(UserError, match=match) as caught:
        action(*args, **options)
    return caught.value.message


@pytest.mark.parametrize(
    ("wanted", "columns"),
    [
        (None, [0, 1, 2, 3, 4, 5]),
        ([4, 0], [0, 4]),
        ([-1], [5]),
        (["1:3"], [1, 2]),
        ([":2", 5], [0, 1, 5]),
        (["-2:"], [4, 5]),
        (["px", 0], [0, 2, 3]),
        (["0:1"], [1]),  # a name counts before a range
    ],
)
def test_columns_by_number_range_and_name(wanted, columns):
    names = ["e", "0:1", "px", "px", "a", "b"] if wanted in (["px", 0], ["0:1"]) else None
    assert list(find_columns(wanted, 6, names, "columns")) == columns


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ([6], "0 to 5"),
        ([-7], "0 to 5"),
        (["4:8"], "0 to 5"),
        (["3:3"], "out of range"),
        ([1, "0:2"], "column 1 twice"),
        (["mas"], "did you mean 'mass'"),
        (["-"], "no column '-'"),
    ],
)
def test_columns_that_are_not_there_are_refused(wanted, text):
    assert text in refused("columns", find_columns, wanted, 6, ["e", "px", "py", "pz", "mass", "q"], "columns")


@pytest.mark.parametrize("shape", [(6,), (4, 3), (5, 7, 2), (1,), (1025, 3)])
@pytest.mark.parametrize("axis", ["column", "channel", "all"])
def test_elements_gather_and_spread_alike(shape, axis):
    columns = tuple(range(0, shape[-1], 2))
    elements = Elements(shape, columns, axis)
    rows = np.random.default_rng(0).normal(size=(3, elements.size))
    values = elements.values(rows)
    chosen = rows.reshape(3, *shape)[..., columns]
    assert values.shape[1] == elements.count
    assert np.array_equal(np.sort(values, axis=None), np.sort(chosen, axis=None))
    # The mean of each statistic's numbers, spread out again, stands at every number that it was taken of.
    line = elements.spread(values.mean(axis=0), np.nan)
    assert elements.size % elements.width == 0
    spread = np.broadcast_to(line, (elements.size // elements.width, elements.width)).reshape(shape)
    axes = {"column": (0,), "channel": tuple(range(chosen.ndim - 1)), "all": None}[axis]
    expected = np.broadcast_to(chosen.mean(axis=axes, keepdims=True), (1, *chosen.shape[1:]))[0]
    np.testing.assert_allclose(spread[..., columns], expected, rtol=1e-12)
    assert np.isnan(np.delete(spread, columns, axis=-1)).all()


def test_steps_are_taken_in_order():
    raw = np.array([[1.0, 2, 3, 4]])
    assert prepared(chain_of(Scale(factor=2), Clip(high=5)), raw).tolist() == [[2, 4, 5, 5]]
    assert prepared(chain_of(Clip(high=2), Scale(factor=2)), raw).tolist() == [[2, 4, 4, 4]]
    assert prepared(chain_of(Scale(factor=[10, 100], offset=[1, 2], columns=[0, 3])), raw).tolist() == [[11, 2, 3, 402]]


def test_numbers_keep_their_digits_until_the_last_cast():
    rng = np.random.default_rng(0)
    small = rng.normal(size=(500, 4))
    raw = 1e6 + small
    chain = chain_of(Standardise())
    chain.steps[0].fit({"mean": raw.mean(axis=0), "std": raw.std(axis=0)})
    expected = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    assert np.array_equal(prepared(chain, raw), expected.astype("f4"))
    assert np.abs(prepared(chain, raw.astype("f4")) - expected).max() > 1e-3  # what a cast before would have cost


@pytest.mark.parametrize("dtype", ["i2", ">f4", "u1", "f2", "bool", "i8"])
def test_stored_types_of_all_kinds(dtype):
    raw = np.arange(12).reshape(3, 4).astype(dtype)
    expected = 0.25 * raw.astype("f8") + 1
    assert np.array_equal(prepared(chain_of(Scale(factor=0.25, offset=1)), raw), expected.astype("f4"))


def test_constant_columns_become_zero_or_the_low_end():
    raw = np.array([[0.0, 5, 1e6, 1], [0, 5, 1e6, 3]])
    chain = chain_of(Standardise())
    chain.steps[0].fit({"mean": raw.mean(axis=0), "std": raw.std(axis=0)})
    assert prepared(chain, raw).tolist() == [[0, 0, 0, -1], [0, 0, 0, 1]]
    chain = chain_of(MinMax(to=(-1, 1)))
    chain.steps[0].fit({"min": raw.min(axis=0), "max": raw.max(axis=0)})
    assert prepared(chain, raw).tolist() == [[-1, -1, -1, -1], [-1, -1, -1, 1]]


def test_one_hot_columns_stand_in_their_place_and_are_left_alone():
    raw = np.array([[2.0, 10, 0, 20], [0, 30, 1, 40]])
    # Whatever its place in the list, `scale` is about what is not one-hot.
    chain = chain_of(OneHot(columns=(0, 2), size=(3, 2)), Scale(factor=10))
    assert chain.out_shape == (7,)
    assert prepared(chain, raw).tolist() == [[0, 0, 1, 100, 1, 0, 200], [1, 0, 0, 300, 0, 1, 400]]
    filled = chain_of(Fill(value=1), OneHot(columns=(3,), size=2))
    assert prepared(filled, np.array([[np.nan, 5, 6, np.nan]])).tolist() == [[1, 5, 6, 0, 1]]
    message = refused("data.prepare.1", chain_of, OneHot(columns=(0,), size=2), Clip(low=0, columns=(0, 1)))
    assert "data.prepare.0 made one-hot" in message


def test_one_hot_of_images_is_by_position():
    raw = np.random.default_rng(1).integers(0, 3, (4, 5, 6, 1))
    chain = chain_of(OneHot(size=3), shape=(5, 6, 1))
    assert np.array_equal(prepared(chain, raw), np.eye(3)[raw[..., 0]])


@pytest.mark.parametrize(
    ("steps", "row", "text"),
    [
        ([Log()], [0, -2, 1, 1], "-2 in column 1, of which data.prepare.0 (log) makes no number"),
        (
            [Scale(), OneHot(columns=(2,), size=3)],
            [1, 1, 3, 1],
            "3 in column 2, of which data.prepare.1 (one_hot, which",
        ),
        ([OneHot(columns=(2,), size=3)], [1, 1, 0.5, 1], "0.5 in column 2"),
        ([OneHot(columns=(0,), size=3)], [-1, 1, 0.5, 1], "knows 0 to 2) makes no number"),
        ([Log()], [0, np.nan, 1, 1], None),
        ([Log(), Scale(factor=2)], [0, 1, 1, 1], None),
    ],
)
def test_a_number_without_an_image_is_explained(steps, row, text):
    chain, raw = chain_of(*steps), np.array(row, np.float64)
    found = chain.explain(raw)
    assert (found is None) if text is None else (text in found)
    assert np.isfinite(prepared(chain, raw[None])).all() == (text is None and np.isfinite(raw).all())


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({}, Clip, "low, high or both"),
        ({"low": 2, "high": 1}, Clip, "low <= high"),
        ({"to": [1, 1]}, MinMax, "low below high"),
        ({"factor": 0}, Scale, "must not be 0"),
        ({"factor": "2"}, Scale, "factor"),
        ({"value": "median"}, Fill, 'a number or "mean"'),
        ({"value": float("nan")}, Fill, 'a number or "mean"'),
        ({"value": 1.0, "file": "a.h5"}, Fill, 'value must be "mean"'),
        ({"mean": "m"}, Standardise, "dataset of file, which is not given"),
        ({"size": 0}, OneHot, "above 0"),
        ({"base": 1}, Log, "must not be 1"),
        ({"columns": []}, Log, "list of columns"),
        ({"columns": [True]}, Log, "list of columns"),
        ({"axis": "row"}, Standardise, "'column', 'channel' or 'all'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, kind, text):
    message = refused("data.prepare.3", kind.checked, options, "data.prepare.3")
    assert text in message


def test_examples_larger_than_a_tile_are_prepared_line_by_line():
    raw = np.random.default_rng(0).lognormal(size=(2, 60, 70, 50, 2)).astype("f4")  # 420,000 numbers each: 3.4 MB
    chain = chain_of(Log(), Standardise(axis="channel"), shape=raw.shape[1:])
    logged = np.log1p(raw.astype("f8"))
    mean, std = logged.mean(axis=(0, 1, 2, 3)), logged.std(axis=(0, 1, 2, 3))
    chain.steps[1].fit({"mean": mean, "std": std})
    np.testing.assert_allclose(prepared(chain, raw), (logged - mean) / std, rtol=1e-6, atol=1e-6)
    assert chain.passing_bytes < 1.1 * 2**20
    turned = np.moveaxis(np.ascontiguousarray(np.moveaxis(raw, -1, 1)), 1, -1)  # as predict has it, channels first
    assert np.array_equal(prepared(chain, turned), prepared(chain, raw))


def test_volumes_share_statistics():
    shape = (128, 128, 128, 4)
    message = refused(r"data.prepare.0 \(standardise\)", chain_of, Standardise(), shape=shape)
    assert 'axis = "channel"' in message
    assert [step.elements.count for step in chain_of(Standardise(axis="channel"), Log(), shape=shape).steps] == [4, 4]


def test_as_many_numbers_as_columns():
    refused("3 numbers for 4 columns", chain_of, Scale(factor=(1, 2, 3)))
    refused("2 numbers for 4 columns", chain_of, OneHot(size=(2, 2)))


def test_a_chain_travels_between_ranks_with_what_it_has_learned():
    raw = np.random.default_rng(2).normal(size=(10, 4))
    chain = chain_of(Fill(), Standardise(columns=(1, 2)))
    assert not chain.is_fitted
    chain.steps[0].fit({"mean": 0.5})
    chain.steps[1].fit({"mean": [1.0, 2], "std": [3.0, 4]})
    expected = prepared(chain, raw)
    assert np.array_equal(prepared(pickle.loads(pickle.dumps(chain)), raw), expected)
