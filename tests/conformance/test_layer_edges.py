"""Every registered layer at the edges: no rows, one of everything, NaN, infinities, denormal numbers.

A value that is not finite in one row must stay in its row, and must not vanish there.  Batch norm is the exception by
rule: its rows share their statistics while it trains, so that it spreads within the micro-batch (`ACROSS_ROWS`); in
evaluation it does not.
"""

import numpy as np
import pytest
from conformance.cases import (
    ACROSS_ROWS,
    DEFINITIONS,
    EXAMPLES,
    FIRST_CASES,
    WHOLE_NUMBERS,
    calls_of,
    check_every_gradient,
    inputs_of,
    is_composite,
    layer_of,
)
from layer_calls import LayerCalls
from pydantic_core import PydanticUndefined

from hpctrain.errors import UserError
from hpctrain.nn import LAYERS

ROWS, BAD = 4, 1  # rows of a batch, and the one in which something is wrong
OTHERS = [row for row in range(ROWS) if row != BAD]
every_layer = pytest.mark.parametrize(("name", "shape"), FIRST_CASES)
by_rows = pytest.mark.parametrize(("name", "shape"), [case for case in FIRST_CASES if case[0] not in ACROSS_ROWS])
real_inputs = pytest.mark.parametrize(("name", "shape"), [case for case in FIRST_CASES if case[0] not in WHOLE_NUMBERS])


def defined(calls, name, options=None):
    """The layer's evaluation of the float32 inputs by its definition, in float64."""
    own = {spec.name: calls.values[spec.name].astype("f8") for spec in calls.built.params}
    options = EXAMPLES[name][0] if options is None else options
    with np.errstate(all="ignore"):
        return DEFINITIONS[name](calls.values["x"].astype("f8"), own, options).reshape(calls.values["y"].shape)


def passes(name, inputs, dy=None):
    """Outputs of evaluation and training, and all gradients, in float32."""
    calls = LayerCalls(layer_of(name), [inputs], np.float32)
    dy = np.random.default_rng(9).normal(size=calls.values["y"].shape) if dy is None else dy
    return calls.predict(), calls.forward(), calls.gradients(dy)


@every_layer
def test_no_rows_leave_gradients_as_they_are_or_store_zero(name, shape):
    calls = LayerCalls(layer_of(name), [np.empty((0, *shape))], np.float32)
    assert calls.predict().shape == calls.forward().shape == (0, *calls.built.out_shape)
    for spec in calls.built.state:
        assert not calls.values[f"d_{spec.name}"].any()
    for passing in (calls.built.backward, calls.built.backward_params):
        for beta, expected in ((1.0, 7.0), (0.0, 0.0)):
            if beta == 0.0 and not any("beta" in call.args for call in calls_in(passing)):
                continue  # such kernels only add; the composer zeroes before them
            for spec in calls.built.params:
                calls.values[f"d_{spec.name}"][...] = 7.0
            calls.run(passing, beta)
            for spec in calls.built.params:
                np.testing.assert_array_equal(calls.values[f"d_{spec.name}"], expected, err_msg=f"beta = {beta}")


def calls_in(passing):
    return passing if isinstance(passing, tuple) else () if passing is None else (passing,)


@by_rows
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(name, shape, bad):
    clean = inputs_of(name, shape, ROWS).astype("f8")
    dirty = clean.copy()
    dirty[BAD].flat[-1] = bad
    for found, expected in zip(passes(name, dirty)[:2], passes(name, clean)[:2], strict=True):
        np.testing.assert_array_equal(found[OTHERS], expected[OTHERS])
    if name not in WHOLE_NUMBERS:
        dx = passes(name, dirty)[2]["x"]
        np.testing.assert_array_equal(dx[OTHERS], passes(name, clean)[2]["x"][OTHERS])


@pytest.mark.parametrize(("name", "shape"), [case for case in FIRST_CASES if case[0] in ACROSS_ROWS])
def test_layers_across_rows_spread_it_in_training_alone(name, shape):
    clean = inputs_of(name, shape, ROWS)
    dirty = clean.copy()
    dirty[BAD].flat[-1] = np.nan
    (evaluated, trained, _), (expected, _, _) = passes(name, dirty), passes(name, clean)
    np.testing.assert_array_equal(evaluated[OTHERS], expected[OTHERS])
    assert np.isnan(evaluated[BAD]).any()
    assert np.isnan(trained).any(axis=tuple(range(1, trained.ndim))).all(), "every row shows it"


@every_layer
def test_nan_reaches_whatever_depends_on_it(name, shape):
    """A whole row of NaN: every output that other numbers would change is NaN, in both passes."""
    clean = inputs_of(name, shape, ROWS).astype("f8")
    changed, dirty = clean.copy(), clean.copy()
    random = np.random.default_rng(4)
    changed[BAD] = (clean[BAD] + 1) % 5 if name in WHOLE_NUMBERS else 3 + 10 * random.random(shape)
    dirty[BAD] = np.nan
    results = [passes(name, inputs) for inputs in (clean, changed, dirty)]
    for before, after, found in zip(*(result[:2] for result in results), strict=True):
        depends = before[BAD] != after[BAD]
        assert depends.any()
        assert np.isnan(found[BAD][depends]).all()


@every_layer
def test_a_gradient_that_is_nan_reaches_every_parameter_and_the_input(name, shape):
    inputs = 1 + np.abs(inputs_of(name, shape, ROWS))  # no ReLU that lets nothing through
    inputs = inputs - 1 if name in WHOLE_NUMBERS else inputs
    dy = np.random.default_rng(9).normal(size=(ROWS, *layer_of(name).build_many((shape,)).out_shape))
    clean = passes(name, inputs, dy)[2]
    dy[BAD] = np.nan
    gradients = passes(name, inputs, dy)[2]
    for key, gradient in gradients.items():
        if key != "x":
            assert np.isnan(gradient).any(), key
        elif name not in WHOLE_NUMBERS:
            assert np.isnan(gradient[BAD]).any()
            if name not in ACROSS_ROWS:
                np.testing.assert_array_equal(gradient[OTHERS], clean["x"][OTHERS])


@real_inputs
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinities_are_what_the_definition_makes_of_them(name, shape, bad):
    """Finite where float64 numpy is finite, and then equal; elsewhere infinite or NaN."""
    inputs = inputs_of(name, shape, ROWS)
    inputs[BAD].flat[-1] = bad
    calls = LayerCalls(layer_of(name), [inputs], np.float32)
    found, expected = calls.predict(), defined(calls, name)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=2e-5, atol=2e-5)


@real_inputs
def test_denormal_numbers_are_small_numbers(name, shape):
    tiny = 1e-40 * inputs_of(name, shape, ROWS)
    calls = LayerCalls(layer_of(name), [tiny], np.float32)
    np.testing.assert_allclose(calls.predict(), defined(calls, name), rtol=2e-5, atol=2e-5)
    assert np.isfinite(calls.forward()).all()
    for dy in (np.random.default_rng(9).normal(size=calls.values["y"].shape), 1e-40):
        calls.forward()
        for key, gradient in calls.gradients(dy).items():
            assert np.isfinite(gradient).all(), key


def single(name, number):
    """A layer whose needed options are all `number`, with an input whose axes are all 1; None where that is refused."""
    kind = LAYERS.get(name)
    needed = [key for key, field in kind.model_fields.items() if field.default is PydanticUndefined]
    for axes in (1, 2, 3, 4):
        special = {"rate": 0.5, "shape": [1], "axes": list(range(axes))}
        layer = kind(**{key: special.get(key, number) for key in needed})
        try:
            layer.build((1,) * axes)
        except UserError:
            continue
        return layer, (1,) * axes
    return None


ONES = [
    (name, number, *made)
    for name in LAYERS
    if name in EXAMPLES and not is_composite(name)
    for number in (1, 3)
    if (made := single(name, number))
]


def test_all_layers_have_a_case_of_ones():
    assert {name for name, *_ in ONES} == {name for name in EXAMPLES if name in LAYERS and not is_composite(name)}


@pytest.mark.parametrize(("name", "number", "layer", "shape"), ONES, ids=str)
def test_one_of_everything(name, number, layer, shape):
    """One step, one place, one channel, one unit; and kernels, units, heads of three where they fit a single place."""
    for rows in (1, 2):
        inputs = (
            np.zeros((rows, *shape)) if name in WHOLE_NUMBERS else np.random.default_rng(2).normal(size=(rows, *shape))
        )
        calls = LayerCalls(layer, [inputs])
        np.testing.assert_allclose(
            calls.predict(), defined(calls, name, layer.model_dump(exclude_none=True)), rtol=1e-9, atol=1e-11
        )
        check_every_gradient(calls, name)


@every_layer
def test_one_row_is_as_good_as_many(name, shape):
    """The float32 kernels of training, which work on blocks of rows, at a single row."""
    if name not in ACROSS_ROWS:
        many, one = calls_of(name, shape, 9, np.float32), calls_of(name, shape, 1, np.float32)
        many.values["x"][8] = one.values["x"][0]
        many.constants["ids"][8] = one.constants["ids"][0]
        np.testing.assert_allclose(one.forward()[0], many.forward()[8], rtol=2e-5, atol=2e-5)
