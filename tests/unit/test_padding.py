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
EMBED = [{"type": "embedding", "size": TOKENS, "units": 4}, "learned_positions"]
ATTEND = {"type": "residual", "layers": ["layer_norm", {"type": "attention", "heads": 2}]}
ENDS = [
    ["global_avg_pool"],
    ["last_step"],
    [{"type": "lstm", "units": 3, "return_sequences": False, "bidirectional": True}],
]
ENCODER = [
    {"type": "padded", "layers": [*EMBED, ATTEND, {"type": "parallel", "branches": ENDS}]},
    {"type": "dense", "units": CLASSES},
]


def layers_of(specs):
    return [part_from(family("layer"), spec, "layers", "type") for spec in specs]


def own_values(name, shape):
    """Random values of a tensor; the positions' table is as long as the sequences: its first rows are the same."""
    random = np.random.default_rng(len(name))
    return 0.5 * random.normal(size=(LONG, *shape[1:]) if name.endswith("table") else shape)[: shape[0]]


def outputs_of(specs, inputs):
    """The outputs of a network, layer by layer and without compiling a model."""
    graph, values = build_graph(layers_of(specs), inputs.shape[1:]), {0: inputs}
    for node in graph.nodes:
        calls = LayerCalls.of_built(node.built, [values[value] for value in node.inputs])
        for spec in node.built.params:
            calls.values[spec.name][...] = own_values(f"{node.name}.{spec.name}", spec.shape)
        values[node.output] = calls.forward()
    return values[graph.output]


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
def encoder():
    """The compiled network for long sequences, in float64."""
    model = Model(layers_of(ENCODER), (LONG,), SoftmaxCrossEntropy(), "class", dtype=np.float64)
    for slot in model.layout:
        model.layout.view(model.params, slot.name)[...] = own_values(slot.name, slot.shape)
    return model


def test_more_padding_changes_no_output(encoder):
    out = np.empty((4, CLASSES))
    encoder.predict(sequences(LONG), out)
    np.testing.assert_allclose(out, outputs_of(ENCODER, sequences(SHORT)), rtol=0, atol=1e-12)
    # Rows of other lengths beside it change nothing for a row either.
    alone = np.empty((1, CLASSES))
    encoder.predict(sequences(LONG)[1:2], alone)
    np.testing.assert_allclose(alone[0], out[1], rtol=0, atol=1e-12)


def test_gradients_equal_finite_differences_and_padding_has_none(encoder):
    inputs = sequences(LONG)
    _, gradients = loss_and_gradients(encoder, inputs)
    gradients = {name: gradient.copy() for name, gradient in gradients.items()}
    assert not gradients["padded0.embedding0.weight"][0].any()
    assert not gradients["padded0.learned_positions1.table"][SHORT:].any()
    random = np.random.default_rng(2)
    for name, gradient in gradients.items():
        values = encoder.layout.view(encoder.params, name)
        kept, direction, sums = values.copy(), random.normal(size=values.shape), []
        for sign in (1, -1):
            values[...] = kept + sign * 1e-6 * direction
            sums.append(loss_and_gradients(encoder, inputs)[0])
        values[...] = kept
        assert np.sum(gradient * direction) == pytest.approx((sums[0] - sums[1]) / 2e-6, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("preset", ["gpt", "lstm"])
def test_presets_take_padding_as_an_option(preset):
    options = {"gpt": {"width": 8, "heads": 2, "depth": 1}, "lstm": {"width": 3, "each_step": True}}[preset]
    results = []
    for steps in (SHORT, LONG):
        specs = PRESETS.get(preset)(padding=0, **options).specs((steps,), TOKENS)
        assert [spec["type"] for spec in specs] == ["padded"]
        given = sequences(steps)
        given[2, 0] = given[2, 3] = 0  # padding before real tokens, and between them
        outputs = outputs_of(specs, given)
        assert outputs.shape == (len(given), steps, TOKENS)
        results.append(outputs[given != 0])
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-12)
