"""Embedding, positions and recurrent layers by themselves: edges that the conformance tests leave out."""

import numpy as np
import pytest
from conformance.layer_cases.sequence import gru_states, lstm_states, recurrent
from layer_calls import LayerCalls

from hpctrain.errors import UserError
from hpctrain.kernels.positions import sinusoidal_table
from hpctrain.nn.layers.embedding import Embedding
from hpctrain.nn.layers.positions import LearnedPositions, SinusoidalPositions
from hpctrain.nn.layers.recurrent import Gru, LastStep, Lstm


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_embedding_gives_nan_for_what_is_no_token():
    ids = np.array([[0.0, 2.0, 3.0, -1.0, 1.5, np.nan, np.inf, 1.0]])
    calls = LayerCalls(Embedding(size=3, units=2), [ids], np.float32)
    bad = np.isnan(calls.forward()[0]).all(axis=1)
    np.testing.assert_array_equal(bad, [False, False, True, True, True, True, True, False])
    calls.values["d_weight"][...] = 0.0  # this layer's backward pass only adds
    gradient = calls.gradients(1.0)["weight"]
    np.testing.assert_array_equal(gradient, np.ones((3, 2)))


def test_embedding_adds_up_what_repeated_tokens_get():
    ids = np.array([[1.0, 1.0, 0.0], [1.0, 2.0, 2.0]])
    calls = LayerCalls(Embedding(size=4, units=5), [ids])
    dy = normal(2, 3, 5)
    calls.values["d_weight"][...] = 0.0
    expected = np.zeros((4, 5))
    np.add.at(expected, ids.astype(int), dy)
    gradients = calls.gradients(dy)
    np.testing.assert_allclose(gradients["weight"], expected, rtol=1e-14)
    np.testing.assert_array_equal(gradients["x"], np.zeros((2, 3)))


def test_sinusoids_stay_exact_over_long_sequences():
    table = np.empty((5000, 6))
    sinusoidal_table(table, 10000.0)
    angle = np.arange(5000)[:, None] / 10000.0 ** (np.array([0, 2, 4]) / 6)
    np.testing.assert_allclose(table[:, ::2], np.sin(angle), atol=1e-11)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angle), atol=1e-11)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(("kind", "states"), [(Lstm, lstm_states), (Gru, gru_states)])
@pytest.mark.parametrize(("rows", "steps", "features", "units"), [(1, 1, 1, 1), (3, 6, 2, 17)])
def test_recurrent_layers_equal_their_equations(rows, steps, features, units, kind, states, every, both):
    layer = kind(units=units, return_sequences=every, bidirectional=both)
    calls = LayerCalls(layer, [normal(rows, steps, features)])
    params = {spec.name: calls.values[spec.name] for spec in calls.built.params}
    expected = recurrent(states)(calls.values["x"], params, layer.model_dump())
    np.testing.assert_allclose(calls.forward(), expected, rtol=1e-12, atol=1e-13)
    calls.check_gradients()


@pytest.mark.parametrize("kind", [Lstm, Gru])
def test_recurrent_layers_without_rows(kind):
    calls = LayerCalls(kind(units=3, bidirectional=True), [normal(0, 4, 2)])
    calls.forward()
    gradients = calls.gradients(0.0)
    assert all((gradients[spec.name] == 0).all() for spec in calls.built.params)


@pytest.mark.parametrize("kind", [Lstm, Gru])
def test_saturated_gates_and_nan(kind):
    calls = LayerCalls(kind(units=2), [1e4 * normal(2, 3, 2)], np.float32)
    assert np.isfinite(calls.forward()).all()
    assert all(np.isfinite(part).all() for part in calls.gradients(1.0).values())
    calls.values["x"][1, 1, 0] = np.nan
    bad = np.isnan(calls.forward()).all(axis=2)
    np.testing.assert_array_equal(bad, [[False, False, False], [False, True, True]])


def test_gradients_are_added_where_asked():
    for layer in (Lstm(units=3), Gru(units=3, return_sequences=False), LearnedPositions()):
        calls = LayerCalls(layer, [normal(2, 4, 3)])
        calls.forward()
        once = calls.gradients(1.0)
        twice = calls.gradients(1.0, beta=1.0)
        for spec in calls.built.params:
            np.testing.assert_allclose(twice[spec.name], 2 * once[spec.name], rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(twice["x"], once["x"])


@pytest.mark.parametrize("layer", [Lstm(units=2), Gru(units=2), LastStep(), LearnedPositions(), SinusoidalPositions()])
def test_what_is_no_sequence_is_refused(layer):
    with pytest.raises(UserError, match=r"shape \(steps, "):
        layer.build((4,))
