"""The examples and definitions of `layer_cases/`, one family a module, as the tests of layers use them."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest
from conformance import layer_cases
from layer_calls import LayerCalls

from hpctrain.nn import LAYERS
from hpctrain.nn.graph import INPUT, build_graph
from hpctrain.nn.layers.base import Composite

FAMILIES = [
    importlib.import_module(f"conformance.layer_cases.{module.name}")
    for module in pkgutil.iter_modules(layer_cases.__path__)
]
EXAMPLES = {name: example for module in FAMILIES for name, example in module.EXAMPLES.items()}
DEFINITIONS = {name: definition for module in FAMILIES for name, definition in module.DEFINITIONS.items()}
# Layers that take whole numbers, from 0 to the number here: their inputs have no gradient.
WHOLE_NUMBERS = {name: highest for module in FAMILIES for name, highest in getattr(module, "WHOLE_NUMBERS", {}).items()}
# Layers whose result for a row depends on the other rows: a batch cannot be split.
ACROSS_ROWS = {name for module in FAMILIES for name in getattr(module, "ACROSS_ROWS", ())}
MERGES = {"add", "concat", "multiply"}  # of several values: tried as `parallel` uses them


def layer_of(name):
    """The layer of an example; "parallel multiply" is an example of parallel."""
    return LAYERS.get(name.split()[0])(**EXAMPLES[name][0])


def is_composite(name):
    return issubclass(LAYERS.get(name.split()[0]), Composite)


CASES = [(name, shape) for name, (_, shapes) in EXAMPLES.items() for shape in shapes if not is_composite(name)]
COMPOSITES = [(name, shape) for name, (_, shapes) in EXAMPLES.items() for shape in shapes if is_composite(name)]
FIRST_CASES = [(name, shapes[0]) for name, (_, shapes) in EXAMPLES.items() if not is_composite(name)]


def inputs_of(name, shape, rows):
    random = np.random.default_rng(rows)
    size = (rows, *shape)
    return random.integers(0, WHOLE_NUMBERS[name] + 1, size) if name in WHOLE_NUMBERS else random.normal(size=size)


def calls_of(name, shape, rows, dtype=np.float64, fused=None):
    return LayerCalls(layer_of(name), [inputs_of(name, shape, rows)], dtype, fused=fused)


class GraphCalls:
    """A composite's layers one after another on its graph, uncompiled as a whole; to be used like `LayerCalls`.

    Gradients go backwards along the graph: those that reach a value on several ways are added up here.
    """

    def __init__(self, name, shape, rows):
        self.graph = build_graph([layer_of(name)], shape)
        self.values = {"x": inputs_of(name, shape, rows).astype("f8")}
        self._results = {INPUT: self.values["x"]}
        self._calls = []
        for node in self.graph.nodes:
            calls = LayerCalls.of_built(node.built, [self._results[value] for value in node.inputs])
            self._results[node.output] = calls.forward()
            self._calls.append(calls)
            self.values |= {f"{node.name}.{spec.name}": calls.values[spec.name] for spec in node.built.params}
        self.learned = list(self.values)
        self.values["y"] = self._results[self.graph.output]

    def forward(self):
        for node, calls in zip(self.graph.nodes, self._calls, strict=True):
            for name, value in zip(calls.inputs, node.inputs, strict=True):
                calls.values[name][...] = self._results[value]
            self._results[node.output] = calls.forward()
        return self._results[self.graph.output]

    def gradients(self, dy):
        reached, found = {self.graph.output: dy}, {}
        for node, calls in zip(reversed(self.graph.nodes), reversed(self._calls), strict=True):
            if node.output not in reached:
                continue
            own = calls.gradients(reached[node.output])
            found |= {f"{node.name}.{spec.name}": own[spec.name] for spec in node.built.params}
            for name, value in zip(calls.inputs, node.inputs, strict=True):
                reached[value] = reached.get(value, 0.0) + calls.values[f"d{name}"]
        return {**found, "x": reached[INPUT]}


def check_every_gradient(calls, name):
    """Compare each element of each gradient with central differences of sum(dy y)."""
    dy = np.random.default_rng(8).normal(size=calls.values["y"].shape)
    calls.forward()
    gradients = calls.gradients(dy)
    for learned in calls.learned:
        if learned[0] == "x" and name in WHOLE_NUMBERS:
            continue
        values, step = calls.values[learned], 1e-6
        for index in np.ndindex(values.shape):
            kept = values[index]
            sums = []
            for sign in (1, -1):
                values[index] = kept + sign * step
                sums.append(np.sum(dy * calls.forward()))
            values[index] = kept
            expected = (sums[0] - sums[1]) / (2 * step)
            assert gradients[learned][index] == pytest.approx(expected, rel=2e-6, abs=2e-6), f"{learned}{index}"
