"""Every registered preparation: what it does by its definition in numpy, alone and on some columns, and turned back."""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain.data.prepare import PREPARATIONS
from hpctrain.data.prepare.base import Moments
from hpctrain.data.prepare.chain import Chain
from hpctrain.job.data import DataSection
from hpctrain.options import part_from, spec_of

RNG = np.random.default_rng(5)
ROWS = 37
SHAPES = [(5,), (2, 3, 4)]


def over(x, axis, reduce):
    """A statistic of each number, each column or all of them, in a shape that broadcasts."""
    axes = {"column": 0, "channel": tuple(range(x.ndim - 1)), "all": None}[axis]
    return reduce(x, axis=axes, keepdims=True)


def squashed(x, axis, to=(0.0, 1.0)):
    low, high = over(x, axis, np.min), over(x, axis, np.max)
    return to[0] + (to[1] - to[0]) * (x - low) / (high - low)


# Name -> (options, the definition: float64 in, float64 out); several examples of one by "name: what".
CASES = {
    "clip": ({"low": -0.5, "high": 1.0}, lambda x: np.minimum(np.maximum(x, -0.5), 1.0)),
    "clip: one side": ({"high": 0.25}, lambda x: np.minimum(x, 0.25)),
    "fill": ({}, lambda x: np.where(np.isnan(x), np.nanmean(x, axis=0, keepdims=True), x)),
    "fill: value": ({"value": -7.5}, lambda x: np.where(np.isnan(x), -7.5, x)),
    "log": ({}, lambda x: np.log(x + 1)),
    "log: base": ({"offset": 2.5, "base": 10}, lambda x: np.log10(x + 2.5)),
    "min_max": ({}, lambda x: squashed(x, "column")),
    "min_max: channel": ({"axis": "channel", "to": [-1, 3]}, lambda x: squashed(x, "channel", (-1, 3))),
    "one_hot": ({"size": 4}, None),
    "scale": ({"factor": 0.5, "offset": -2}, lambda x: 0.5 * x - 2),
    "standardise": ({}, lambda x: (x - over(x, "column", np.mean)) / over(x, "column", np.std)),
    "standardise: all": ({"axis": "all"}, lambda x: (x - x.mean()) / x.std()),
    "standardise: channel": (
        {"axis": "channel"},
        lambda x: (x - over(x, "channel", np.mean)) / over(x, "channel", np.std),
    ),
}


def raw_of(case, shape, dtype=np.float64):
    """Numbers that the case can take: some are missing for `fill`, whole for `one_hot`, above 0 for `log`."""
    x = np.random.default_rng(3).normal(size=(ROWS, *shape)).astype(dtype)
    if case.startswith("fill"):
        x.reshape(-1)[::11] = np.nan
    if case.startswith("log"):
        x = np.abs(x)
    return np.floor(np.abs(x)).clip(0, 3).astype(dtype) if case == "one_hot" else x


def moments_of(x):
    """Statistics of the columns of (lines, count) by numpy."""
    return Moments(
        (~np.isnan(x)).sum(axis=0),
        np.nanmean(x, axis=0),
        np.nanstd(x, axis=0),
        np.nanmin(x, axis=0),
        np.nanmax(x, axis=0),
    )


def chain_of(case, raw, columns=None):
    """A chain of the one step, with what it learns from the rows that it is to prepare."""
    step = part_from(PREPARATIONS, {"name": case.split(":")[0], **CASES[case][0], "columns": columns}, "data.prepare.0")
    chain = Chain([step], raw.shape[1:], "data.prepare")
    bound = chain.steps[0]
    if bound.fitted is None:
        rows = np.ascontiguousarray(raw.reshape(len(raw), -1), np.float64)
        bound.fit(step.learn(moments_of(bound.elements.values(rows))))
    return chain


def prepared(chain, raw):
    out = np.empty((len(raw), *chain.out_shape), np.float32)
    chain.apply(raw, out)
    return out


def hot(x, size):
    """One-hot by definition: a comparison with each number, the last axis spread out."""
    return (x[..., None] == np.arange(size)).astype("f4").reshape(*x.shape[:-1], -1)


def test_there_is_a_case_for_every_registered_preparation():
    assert {case.split(":")[0] for case in CASES} == set(PREPARATIONS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_is_what_its_definition_says(case, shape):
    raw = raw_of(case, shape)
    found = prepared(chain_of(case, raw), raw)
    expected = hot(raw, 4) if case == "one_hot" else CASES[case][1](raw)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_leaves_other_columns_as_they_are(case, shape):
    raw = raw_of(case, shape, np.float32)
    chosen, others = [1, shape[-1] - 1], [i for i in range(shape[-1]) if i not in (1, shape[-1] - 1)]
    found = prepared(chain_of(case, raw, chosen), raw)
    alone = prepared(chain_of(case, np.ascontiguousarray(raw[..., chosen])), raw[..., chosen])
    if case == "one_hot":
        places = {column: column if column < 1 else column + 3 for column in others}
        assert np.array_equal(found[..., 1:5], alone[..., :4])
        assert np.array_equal(found[..., -4:], alone[..., 4:])
    else:
        places = {column: column for column in others}
        # "all" is all of the columns that are meant.
        np.testing.assert_allclose(found[..., chosen], alone, rtol=1e-6)
    for column, place in places.items():
        assert np.array_equal(found[..., place], raw[..., column], equal_nan=True)


@pytest.mark.parametrize("case", CASES)
def test_a_row_has_the_same_bits_whatever_stands_beside_it(case):
    raw = raw_of(case, (7, 3))
    chain = chain_of(case, raw)
    whole = prepared(chain, raw)
    assert np.array_equal(np.concatenate([prepared(chain, raw[i : i + 5]) for i in range(0, ROWS, 5)]), whole)
    assert np.array_equal(prepared(chain, np.asfortranarray(raw)), whole)
    assert prepared(chain, raw[:0]).shape == (0, *chain.out_shape)


@pytest.mark.parametrize("case", [case for case in CASES if PREPARATIONS.get(case.split(":")[0]).turns_back])
def test_turns_back(case):
    raw = raw_of(case, (2, 3))
    chain = chain_of(case, raw, [0, 2])
    rows = raw.reshape(ROWS, -1).copy()
    chain.run(rows, chain.steps)
    back = chain.invert(rows)
    assert back.dtype == np.float64
    np.testing.assert_allclose(back.reshape(raw.shape), raw, rtol=1e-13, atol=1e-14)
    assert chain.invert(back[:0]).shape == (0, *back.shape[1:])
    # Predictions are float32, and come back in float64.
    np.testing.assert_allclose(chain.invert(prepared(chain, raw)), raw, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if not PREPARATIONS.get(case.split(":")[0]).turns_back])
def test_what_cannot_turn_back_prepares_no_targets(case):
    step = {"name": case.split(":")[0], **CASES[case][0]}
    with pytest.raises(Exception, match="turned back") as caught:
        DataSection(files="a.h5", input="x", target="y", prepare_target=[step])
    assert "standardise" in str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_is_written_and_read_back(case):
    spec = {"name": case.split(":")[0], **CASES[case][0], "columns": [0, "2:4", "energy"]}
    step = part_from(PREPARATIONS, spec, "data.prepare.0")
    written = spec_of(PREPARATIONS, step)
    assert part_from(PREPARATIONS, written, "data.prepare.0") == step
    assert written["columns"] == [0, "2:4", "energy"]
