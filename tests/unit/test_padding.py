"""Whole networks on padded sequences: how much padding a row has, and what stands in other rows, changes nothing."""

import numpy as np
import pytest
from layer_calls import LayerCalls

from hpctrain.batch import Batch
from hpctrain.nn import PRESETS
from hpctrain.nn.graph import build_graph
from hpctrain.nn.losses import SoftmaxCrossEntropy
from hpctrain.nn.model import Model
from hpctrain.options import part_from
from hpctrain.registry import family

TOKENS, CLASSES, SHORT, LONG = 9, 3, 7, 12
BLOCK = [
    {"type": "residual", "layers": ["layer_norm", {"type": "attention", "heads": 2}]},
    {"type": "parallel", "branches": [[], [{"type": "conv1d", "channels": 4, "kernel": 3}, "relu"]], "merge": "add"},
]
EMBED = [{"type": "embedding", "size": TOKENS, "units": 4}, "learned_positions"]
ENDS = [
    ["global_avg_pool"],
    ["global_max_pool"],
    ["last_step"],
    [{"type": "lstm", "units": 3, "return_sequences": False, "bidirectional": True}],
    [{"type": "gru", "units": 3}, {"type": "gru", "units": 4, "return_sequences": False}],
]
ENCODER = [
    {"type": "padded", "layers": [*EMBED, *BLOCK, {"type": "parallel", "branches": ENDS}]},
    {"type": "dense", "units": CLASSES},
]


def own_values(name, shape):
    """Random values of a tensor; the positions' table is as long as the sequences: its first rows are the same."""
    random = np.random.default_rng(len(name))
    return 0.5 * random.normal(size=(LONG, *shape[1:]) if name.endswith("table") else shape)[: shape[0]]


def network(specs, steps):
    layers = [part_from(family("layer"), spec, "layers", "type") for spec in specs]
    model = Model(layers, (steps,), SoftmaxCrossEntropy(), "class", dtype=np.float64)
    for slot in model.layout:
        model.layout.view(model.params, slot.name)[...] = own_values(slot.name, slot.shape)
    return model


def sequences(steps, lengths=(1, 3, SHORT, 5)):
    tokens = np.random.default_rng(1).integers(1, TOKENS, (len(lengths), SHORT))
    padded = np.zeros((len(lengths), steps))
    for row, length in enumerate(lengths):
        padded[row, :length] = tokens[row, :length]
    return padded


def loss_and_gradients(model, inputs):
    rows = len(inputs)
    batch = Batch(inputs, np.arange(rows) % CLASSES, np.ones(rows), np.arange(rows), 0, 0)
    loss = model.loss_and_grad(batch, 0.0)
    return loss, {slot.name: model.layout.view(model.grads, slot.name) for slot in model.layout}


@pytest.fixture(scope="module")
def encoders():
    """The same network for short and for long sequences; two for all tests, since compiling takes time."""
    return [network(ENCODER, steps) for steps in (SHORT, LONG)]


def test_more_padding_changes_no_output_and_no_gradient(encoders):
    outputs, losses, gradients = [], [], []
    for model, steps in zip(encoders, (SHORT, LONG), strict=True):
        inputs = sequences(steps)
        out = np.empty((len(inputs), CLASSES))
        model.predict(inputs, out)
        outputs.append(out)
        loss, found = loss_and_gradients(model, inputs)
        losses.append(loss)
        gradients.append(found)
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=0, atol=1e-12)
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    for name, expected in gradients[0].items():
        np.testing.assert_allclose(gradients[1][name][: len(expected)], expected, rtol=0, atol=1e-12, err_msg=name)
        assert not gradients[1][name][len(expected) :].any()
    # Rows of other lengths beside it change nothing for a row either.
    alone = np.empty((1, CLASSES))
    encoders[1].predict(sequences(LONG)[1:2], alone)
    np.testing.assert_allclose(alone[0], outputs[0][1], rtol=0, atol=1e-12)


def test_gradients_equal_finite_differences(encoders):
    model, inputs = encoders[1], sequences(LONG)
    _, gradients = loss_and_gradients(model, inputs)
    gradients = {name: gradient.copy() for name, gradient in gradients.items()}
    random = np.random.default_rng(2)
    for name, gradient in gradients.items():
        values = model.layout.view(model.params, name)
        kept, direction, sums = values.copy(), random.normal(size=values.shape), []
        for sign in (1, -1):
            values[...] = kept + sign * 1e-6 * direction
            sums.append(loss_and_gradients(model, inputs)[0])
        values[...] = kept
        assert np.sum(gradient * direction) == pytest.approx((sums[0] - sums[1]) / 2e-6, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("preset", ["gpt", "lstm"])
def test_presets_take_padding_as_an_option(preset):
    """Whatever stands at padded steps and however many there are: found layer by layer, without compiling a model."""
    options = {"gpt": {"width": 8, "heads": 2, "depth": 1}, "lstm": {"width": 3, "each_step": True}}[preset]
    results = []
    for steps in (SHORT, LONG):
        specs = PRESETS.get(preset)(padding=0, **options).specs((steps,), TOKENS)
        assert [spec["type"] for spec in specs] == ["padded"]
        layers = [part_from(family("layer"), spec, "layers", "type") for spec in specs]
        graph, given = build_graph(layers, (steps,)), sequences(steps)
        given[2, 0] = given[2, 3] = 0  # padding before real tokens, and between them
        values = {0: given}
        for node in graph.nodes:
            calls = LayerCalls.of_built(node.built, [values[value] for value in node.inputs])
            for spec in node.built.params:
                calls.values[spec.name][...] = own_values(spec.name, spec.shape)
            values[node.output] = calls.forward()
        assert values[graph.output].shape == (len(given), steps, TOKENS)
        results.append(values[graph.output][given != 0])
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-12)
