"""Attention by itself: blocks, masks, what a step may see, edges; against the definition in float64."""

import numpy as np
import pytest
from conformance.layer_cases.sequence import attention
from layer_calls import LayerCalls

from hpctrain.errors import UserError
from hpctrain.nn.layers.attention import Attention


def sequence(rows, steps, features, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, steps, features))


def parameters(calls):
    return {spec.name: calls.values[spec.name].astype("f8") for spec in calls.built.params}


# One step; fewer and more steps than a block of queries (32) and of keys (64); widths that are no multiple of 32, more.
SHAPES = [(1, 1, 1, 1), (2, 7, 2, 6), (1, 33, 1, 5), (2, 65, 2, 8), (1, 131, 1, 40), (1, 64, 2, 64)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "steps", "heads", "features"), SHAPES)
def test_equals_the_definition_and_its_gradients(rows, steps, heads, features, causal):
    layer = Attention(heads=heads, causal=causal)
    calls = LayerCalls(layer, [sequence(rows, steps, features)])
    expected = attention(calls.values["x"], parameters(calls), layer.model_dump())
    np.testing.assert_allclose(calls.forward(), expected, rtol=1e-12, atol=1e-12)
    calls.check_gradients()


def test_other_widths_than_the_input_has_and_no_biases():
    layer = Attention(heads=3, units=6, bias=False)
    calls = LayerCalls(layer, [sequence(2, 5, 4)])
    assert [spec.shape for spec in calls.built.params] == [(4, 18), (6, 4)]
    expected = attention(calls.values["x"], parameters(calls), layer.model_dump())
    np.testing.assert_allclose(calls.forward(), expected, rtol=1e-12, atol=1e-12)
    calls.check_gradients()


def test_float32_is_as_good_as_float32_allows():
    layer = Attention(heads=2, causal=True)
    calls = LayerCalls(layer, [sequence(2, 70, 24)], np.float32)
    expected = attention(calls.values["x"].astype("f8"), parameters(calls), layer.model_dump())
    np.testing.assert_allclose(calls.forward(), expected, rtol=2e-5, atol=5e-5)
    exact = LayerCalls(layer, [calls.values["x"]])
    exact.values.update({name: array for name, array in parameters(calls).items()})
    dy = sequence(2, 70, 24, 1)
    exact.forward()
    for name, gradient in exact.gradients(dy).items():
        found = calls.gradients(dy)[name]
        assert np.abs(found - gradient).max() < 2e-5 * np.abs(gradient).max(), name


def test_large_scores_do_not_overflow():
    calls = LayerCalls(Attention(heads=1), [200 * sequence(1, 70, 4)], np.float32)
    assert np.isfinite(calls.forward()).all()
    assert all(np.isfinite(part).all() for part in calls.gradients(1.0).values())


def test_causal_attention_sees_nothing_of_what_comes():
    calls = LayerCalls(Attention(heads=2, causal=True), [sequence(1, 70, 8)])
    before = calls.forward().copy()
    for step in (69, 64, 33, 1):
        calls.values["x"][0, step] += 5.0
        after = calls.forward()
        np.testing.assert_array_equal(after[0, :step], before[0, :step])
        assert np.abs(after[0, step:] - before[0, step:]).max(axis=1).min() > 1e-6


@pytest.mark.parametrize("causal", [False, True])
def test_masked_steps_count_for_nobody(causal):
    """A masked sequence gives what the sequence without the masked steps gives, at the steps that are left."""
    x, mask = sequence(2, 75, 6), np.random.default_rng(2).random((2, 75)) < 0.6
    mask[:, 0] = True
    calls = LayerCalls(Attention(heads=2, causal=causal), [x, mask])
    found = calls.forward().copy()
    gradients = calls.check_gradients()
    for row in range(2):
        kept = mask[row]
        short = LayerCalls(Attention(heads=2, causal=causal), [x[row : row + 1, kept]])
        np.testing.assert_allclose(found[row, kept], short.forward()[0], rtol=1e-11, atol=1e-12)
    assert (calls.values["dx1"] == 0).all()
    assert set(gradients) == {"qkv_weight", "qkv_bias", "out_weight", "out_bias", "x0"}


def test_a_row_of_padding_gives_the_bias_and_no_nan():
    mask = np.zeros((2, 5))
    mask[1, 2:] = 1  # the first two steps of the second row see nothing, being causal
    calls = LayerCalls(Attention(heads=1, causal=True), [sequence(2, 5, 4), mask])
    y = calls.forward()
    np.testing.assert_array_equal(y[0], np.broadcast_to(calls.values["out_bias"], (5, 4)))
    np.testing.assert_array_equal(y[1, :2], np.broadcast_to(calls.values["out_bias"], (2, 4)))
    calls.check_gradients()


def test_nan_reaches_every_step_that_sees_it():
    calls = LayerCalls(Attention(heads=2, causal=True), [sequence(1, 5, 4)], np.float32)
    calls.values["x"][0, 2, 1] = np.nan
    bad = np.isnan(calls.forward()[0]).any(axis=1)
    assert bad[2:].all()


def test_no_rows_give_zero_gradients():
    calls = LayerCalls(Attention(heads=2), [sequence(0, 3, 4)])
    calls.forward()
    gradients = calls.gradients(0.0)
    assert all((gradients[spec.name] == 0).all() for spec in calls.built.params)


def test_gradients_are_added_where_asked():
    calls = LayerCalls(Attention(heads=2), [sequence(2, 3, 4)])
    calls.forward()
    once = calls.gradients(1.0)
    twice = calls.gradients(1.0, beta=1.0)
    for spec in calls.built.params:
        np.testing.assert_allclose(twice[spec.name], 2 * once[spec.name], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(twice["x"], once["x"])


def test_memory_grows_with_the_steps_and_not_with_their_square():
    def floats(steps):
        built = Attention(heads=4).build((steps, 32))
        return sum(int(np.prod(spec.shape)) for spec in built.buffers.values())

    assert floats(4096) - floats(2048) == floats(2048) - floats(0)


@pytest.mark.parametrize(
    ("layer", "shapes", "word"),
    [
        (Attention(heads=3), [(5, 4)], "4 units in 3 heads"),
        (Attention(heads=1), [(4,)], "(steps, features)"),
        (Attention(heads=1), [(5, 4), (4,)], "mask"),
        (Attention(heads=1), [(5, 4), (5,), (5,)], "(steps,)"),
    ],
)
def test_mistakes_are_explained(layer, shapes, word):
    with pytest.raises(UserError) as caught:
        layer.build_many(tuple(shapes))
    assert word in str(caught.value)
