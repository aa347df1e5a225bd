"""What every registered layer does inside `padded`, as its `on_padding` says: real steps are never changed by padding.

What the masked layers should give is the plain layer's definition on the real steps alone.
"""

import numpy as np
import pytest
from conformance.cases import (
    CASES,
    DEFINITIONS,
    EXAMPLES,
    FIRST_CASES,
    WHOLE_NUMBERS,
    check_every_gradient,
    inputs_of,
    layer_of,
)
from layer_calls import LayerCalls

from hpctrain.errors import UserError
from hpctrain.nn import LAYERS
from hpctrain.nn.graph import build_graph
from hpctrain.nn.layers.attention import Attention
from hpctrain.nn.layers.conv import Conv1d, DepthwiseConv1d
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.layers.embedding import Embedding
from hpctrain.nn.layers.padded import Padded
from hpctrain.nn.layers.recurrent import Gru, Lstm

ROWS = 4


def keeps_steps(name, shape):
    """Whether a layer treats each step of an input of this shape by itself."""
    layer = layer_of(name)
    kind = layer.on_padding
    return (kind == "each_step" or (kind == "features" and len(shape) > 1)) and layer.build(shape).out_shape[:1] == (
        shape[:1]
    )


ALONE = [(name, shape) for name, shape in CASES if keeps_steps(name, shape)]
MASKED = [(layer_of(name), name, shape) for name, shape in FIRST_CASES if layer_of(name).on_padding.startswith("mask")]
MASKED += [
    (kind(units=3, return_sequences=sequences, bidirectional=both), name, (4, 2))
    for kind, name in ((Lstm, "lstm"), (Gru, "gru"))
    for sequences, both in ((False, False), (False, True), (True, True))
]


def mask_of(steps):
    """Padding behind, before, in the middle, everywhere."""
    mask = np.ones((ROWS, steps))
    mask[0, steps // 2 :] = 0
    mask[1, 0] = 0
    mask[2, 1:-1] = 0
    mask[3] = 0
    return mask


def own_parameters(calls):
    return {spec.name: calls.values[spec.name].astype("f8") for spec in calls.built.params}


@pytest.mark.parametrize(("name", "shape"), ALONE)
def test_steps_that_are_said_to_be_treated_by_themselves_are(name, shape):
    results = []
    for other in range(2):
        inputs = inputs_of(name, shape, 3)
        inputs[:, 0] = WHOLE_NUMBERS.get(name, 7) - other
        results.append(LayerCalls(layer_of(name), [inputs]).forward())
    np.testing.assert_array_equal(results[0][:, 1:], results[1][:, 1:])


@pytest.mark.parametrize("name", ["add", "concat", "multiply"])
def test_merges_treat_each_step_by_itself(name):
    assert LAYERS.get(name).on_padding == "each_step"
    one, two = (np.random.default_rng(seed).normal(size=(2, 3, 2)) for seed in (0, 1))
    before = LayerCalls(LAYERS.get(name)(), [one, two]).forward()
    one[:, 1], two[:, 1] = 5.0, 6.0
    after = LayerCalls(LAYERS.get(name)(), [one, two]).forward()
    np.testing.assert_array_equal(before[:, ::2], after[:, ::2])
    assert (before[:, 1] != after[:, 1]).any()


@pytest.mark.parametrize(("layer", "name", "shape"), MASKED, ids=str)
def test_masked_layers_are_their_definition_on_the_real_steps(layer, name, shape):
    mask, inputs = mask_of(shape[0]), np.random.default_rng(5).normal(size=(ROWS, *shape))
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 2e-5)):
        calls = LayerCalls(layer, [inputs, mask], dtype)
        x, found, parameters = calls.values["x0"].astype("f8"), calls.forward(), own_parameters(calls)
        for row in range(ROWS):
            real = x[row : row + 1, mask[row] != 0]
            found_row = found[row][mask[row] != 0] if layer.on_padding == "mask" else found[row]
            if real.size:
                expected = DEFINITIONS[name](real, parameters, {**EXAMPLES[name][0], **layer.model_dump()})[0]
                np.testing.assert_allclose(found_row, expected, rtol=tolerance, atol=tolerance)
            else:
                assert not found_row.any()


@pytest.mark.parametrize(("layer", "name", "shape"), MASKED, ids=str)
def test_gradients_of_masked_layers_equal_finite_differences(layer, name, shape):
    mask = mask_of(shape[0])
    calls = LayerCalls(layer, [np.random.default_rng(5).normal(size=(ROWS, *shape)), mask])
    check_every_gradient(calls, name)
    assert not calls.values["dx1"].any(), "masks have no gradient"
    if layer.on_padding == "mask_ends":
        assert not calls.values["dx0"][mask == 0].any()


@pytest.mark.parametrize(("layer", "name", "shape"), MASKED, ids=str)
def test_all_steps_real_is_no_mask(layer, name, shape):
    inputs = np.random.default_rng(5).normal(size=(ROWS, *shape))
    masked, plain = LayerCalls(layer, [inputs, np.ones((ROWS, shape[0]))]), LayerCalls(layer, [inputs])
    np.testing.assert_allclose(masked.forward(), plain.forward(), rtol=1e-12)
    dy = np.random.default_rng(6).normal(size=plain.values["y"].shape)
    found, expected = masked.gradients(dy), plain.gradients(dy)
    for key, gradient in expected.items():
        np.testing.assert_allclose(found["x0" if key == "x" else key], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [Conv1d(channels=3, kernel=3), Conv1d(channels=2, kernel=2, dilation=2, padding=1), DepthwiseConv1d(kernel=3)],
    ids=str,
)
def test_convolutions_take_padding_for_the_zeros_beyond_the_end(layer):
    """A row padded behind is the shorter row, and zeros around it."""
    inputs = np.random.default_rng(3).normal(size=(2, 6, 2))
    inputs[0, 4:] = inputs[1, 3:] = -9.0
    graph = build_graph([Padded(value=-9.0, layers=(layer,))], (6, 2))
    values, parameters = {0: inputs}, {}
    for node in graph.nodes:
        calls = LayerCalls.of_built(node.built, [values[value] for value in node.inputs])
        values[node.output] = calls.forward()
        parameters |= own_parameters(calls)
        if node.kind == "zero_steps":
            calls.check_gradients()
            assert not calls.values["dx1"].any()
    plain = "conv1d" if isinstance(layer, Conv1d) else "depthwise_conv1d"
    for row, length in ((0, 4), (1, 3)):
        expected = DEFINITIONS[plain](inputs[row : row + 1, :length], parameters, layer.model_dump())[0]
        np.testing.assert_allclose(values[graph.output][row, :length], expected, rtol=1e-10, atol=1e-12)


REFUSED = [
    (name, shape) for name, shape in FIRST_CASES if layer_of(name).on_padding == "refuse" or name == "conv1d"
] + [("flatten", (2, 3)), ("dense", (5,)), ("reshape", (2, 6)), ("softmax", (5,)), ("concat", (4,))]


@pytest.mark.parametrize(("name", "shape"), REFUSED)
def test_what_mixes_steps_is_refused(name, shape):
    layer = LAYERS.get("parallel")(branches=[["relu"], []]) if name == "concat" else layer_of(name)
    with pytest.raises(UserError, match="mixes the steps of a sequence with padding"):
        build_graph([Padded(layers=(layer,))], shape)


def test_every_layer_is_in_one_of_the_tests():
    tried = {name.split()[0] for cases in (ALONE, REFUSED) for name, _ in cases} | {
        name.split()[0] for _, name, _ in MASKED
    }
    convolutions = {name for name in LAYERS if "conv" in name}
    composites = {"padded", "parallel", "residual", "squeeze_excite"}
    assert tried | convolutions | composites | {"add", "concat", "multiply"} == set(LAYERS)


def test_padded_inside_padded_is_refused():
    inner = Padded(layers=(Dense(units=2),))
    with pytest.raises(UserError, match="padded layers inside padded layers"):
        build_graph([Padded(layers=(Dense(units=2), inner))], (3, 2))


def test_the_mask_ends_with_the_layers():
    graph = build_graph([Padded(layers=(Embedding(size=3, units=2),)), Attention(heads=1)], (3,))
    assert [len(node.inputs) for node in graph.nodes] == [1, 1, 1]
    build_graph([Padded(layers=(Attention(heads=1),)), LAYERS.get("flatten")()], (3, 2))
