"""Every registered layer, by itself: gradients by finite differences in float64, forward by a plain numpy definition.

A new layer is picked up by its registration; a file of `layer_cases/` gives it an entry in `EXAMPLES` (options, and odd
shapes to try) and one in `DEFINITIONS` (its forward pass, written from the definition).
"""

import importlib
import math
import pkgutil

import numpy as np
import pytest
from conformance import layer_cases

from hpctrain.batch import Batch
from hpctrain.kernels.jit import kernel
from hpctrain.nn import LAYERS
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.layers.flatten import Flatten
from hpctrain.nn.model import Model

SEED, STEP = 11, 4

FAMILIES = [
    importlib.import_module(f"conformance.layer_cases.{module.name}")
    for module in pkgutil.iter_modules(layer_cases.__path__)
]
EXAMPLES = {name: example for module in FAMILIES for name, example in module.EXAMPLES.items()}
DEFINITIONS = {name: definition for module in FAMILIES for name, definition in module.DEFINITIONS.items()}
# Layers that take whole numbers, from 0 to the number here; nothing that learns can stand before them.
WHOLE_NUMBERS = {name: highest for module in FAMILIES for name, highest in getattr(module, "WHOLE_NUMBERS", {}).items()}
# Layers whose result for a row depends on the other rows: a batch cannot be split.
ACROSS_ROWS = {name for module in FAMILIES for name in getattr(module, "ACROSS_ROWS", ())}


@kernel
def half_squares(outputs, targets, weight, d_outputs):
    """0.5 sum_ij weight_i (output_ij - target_ij)^2."""
    total = 0.0
    for i in range(outputs.shape[0]):
        for j in range(outputs.shape[1]):
            error = outputs[i, j] - targets[i, j]
            total += 0.5 * weight[i] * error * error
            d_outputs[i, j] = weight[i] * error
    return total


class HalfSquares:
    """A loss that the composer takes, independent of the registered ones."""

    def kernel_for(self, target_kind):
        return half_squares

    def constants(self):
        return ()


def cases():
    return [(name, shape) for name, (_, shapes) in EXAMPLES.items() for shape in shapes]


def layer_of(name):
    """The layer of an example; "parallel multiply" is an example of parallel."""
    return LAYERS.get(name.split()[0])(**EXAMPLES[name][0])


def make(layers, shape, dtype=np.float64):
    model = Model(layers, shape, HalfSquares(), "real", seed=SEED, dtype=dtype)
    model.initialize()
    random = np.random.default_rng(5)
    for slot in model.layout:
        model.params[slot.offset : slot.stop] += 0.2 * random.normal(size=slot.size)
    return model


def batch(model, rows, dtype=np.float64, name=None):
    random = np.random.default_rng(rows)
    shape = (rows, *model.input_shape)
    inputs = random.integers(0, WHOLE_NUMBERS[name] + 1, shape) if name in WHOLE_NUMBERS else random.normal(size=shape)
    inputs = inputs.astype(dtype)
    targets = random.normal(size=(rows, model.out_shape[-1])).astype(np.float32)
    weight = (1 + np.arange(rows) % 3).astype(np.float32) / 2
    return Batch(inputs, targets, weight, np.arange(rows) + 100, STEP, 0)


def test_every_registered_layer_has_an_example_and_a_definition():
    # Merges of several values are tried as `parallel` uses them.
    assert (
        {name.split()[0] for name in EXAMPLES}
        == {name.split()[0] for name in DEFINITIONS}
        == set(LAYERS) - {"add", "concat", "multiply"}
    )


def test_families_do_not_name_a_layer_twice():
    assert len(EXAMPLES) == sum(len(module.EXAMPLES) for module in FAMILIES)


@pytest.mark.parametrize(("name", "shape"), cases())
@pytest.mark.parametrize("rows", [1, 3])
def test_gradients_equal_finite_differences(name, shape, rows):
    """The layer stands between two dense ones, whose gradients check its dx and its own parameters' derivatives."""
    size = math.prod(shape)
    before = [Dense(units=size)] if len(shape) == 1 else [Dense(units=shape[-1])]
    before = [] if name in WHOLE_NUMBERS else before
    model = make([*before, layer_of(name), Flatten(), Dense(units=2)], shape)
    data = batch(model, rows, name=name)
    model.loss_and_grad(data)
    gradient = model.grads.copy()

    model.grad_buffer[:] = 0
    step = 1e-6
    for slot in model.layout:
        for index in range(slot.offset, slot.stop):
            value = model.params[index]
            losses = []
            for sign in (1, -1):
                model.params[index] = value + sign * step
                losses.append(model.loss_and_grad(data))
            model.params[index] = value
            expected = (losses[0] - losses[1]) / (2 * step)
            assert gradient[index] == pytest.approx(expected, rel=2e-6, abs=2e-6), f"{slot.name}, element {index}"


@pytest.mark.parametrize(("name", "shape"), cases())
@pytest.mark.parametrize("rows", [1, 4])
def test_forward_equals_the_definition(name, shape, rows):
    options, _ = EXAMPLES[name]
    layer = layer_of(name)
    model = make([layer, Flatten(), Dense(units=2)], shape, np.float32)
    inputs = batch(model, rows, np.float32, name).inputs
    outputs = np.zeros((rows, 2), np.float32)
    model.predict(inputs, outputs)

    tensors = {key: value.astype("f8") for key, value in model.layout.views(model.params).items()}
    last = "dense2"
    own = {key.partition(".")[2]: value for key, value in tensors.items() if not key.startswith(f"{last}.")}
    hidden = DEFINITIONS[name](inputs.astype("f8"), own, options).reshape(rows, -1)
    expected = hidden @ tensors[f"{last}.weight"] + tensors[f"{last}.bias"]
    np.testing.assert_allclose(outputs, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "shape"), [case for case in cases() if case[0] not in ACROSS_ROWS])
def test_gradients_are_added_and_split_batches_sum_to_the_whole(name, shape):
    model = make([layer_of(name), Flatten(), Dense(units=2)], shape)
    data = batch(model, 5, name=name)
    loss = model.loss_and_grad(data)
    whole = model.grads.copy()
    model.grad_buffer[:] = 0
    parts = sum(model.loss_and_grad(data.slice(lo, hi)) for lo, hi in [(0, 2), (2, 2), (2, 5)])
    assert parts == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(model.grads, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", sorted(name for name, (_, shapes) in EXAMPLES.items() if (5,) in shapes))
def test_nan_stays_visible(name):
    model = make([layer_of(name), Dense(units=1)], (4,), np.float32)
    outputs = np.zeros((1, 1), np.float32)
    model.predict(np.array([[1.0, np.nan, 2.0, 3.0]], np.float32), outputs)
    assert np.isnan(outputs[0, 0])
