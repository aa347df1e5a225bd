"""The graph of a network: layers as nodes, values between them, composites taken apart.

Nothing here knows where values live (`plan.py`) or how code is written (`compose.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hpctrain.errors import UserError
from hpctrain.nn import LAYERS
from hpctrain.nn.flat import Layout
from hpctrain.nn.layers.base import BuiltLayer, Composite, Layer, Shape
from hpctrain.nn.layers.masks import ZeroSteps

INPUT = 0  # number of the value that the network is given


@dataclass(frozen=True)
class Node:
    """A layer in its place: number, name, what it built, and the numbers of its input values and its output value."""

    index: int
    name: str
    kind: str  # registered name of the layer, or the class's
    built: BuiltLayer
    inputs: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can be computed; `shapes` of all values for one example; `output`, the result."""

    nodes: tuple[Node, ...]
    shapes: tuple[Shape, ...]
    output: int

    @property
    def output_shape(self) -> Shape:
        """Shape of the result for one example."""
        return self.shapes[self.output]

    @property
    def positions(self) -> int:
        """The most positions (of a sequence, an image) that a value has for one example; 1 where there are none."""
        return max(math.prod(shape[:-1]) for shape in self.shapes)

    @property
    def by_micro_batch(self) -> bool:
        """Whether running statistics are taken over whole micro-batches: there are some, and no ranks meet for them."""
        return any(node.built.state for node in self.nodes) and not any(node.built.meets for node in self.nodes)

    @property
    def tokens(self) -> int | None:
        """How many tokens the network's inputs may name, 0, 1, ...; None where they are plain numbers."""
        sizes = [
            node.built.params[0].shape[0] for node in self.nodes if node.kind == "embedding" and INPUT in node.inputs
        ]
        return min(sizes, default=None)

    def layout(self) -> Layout:
        """Lay all parameters out in one buffer, in the order of the nodes."""
        return Layout((f"{node.name}.{spec.name}", spec.shape) for node in self.nodes for spec in node.built.params)

    def state_layout(self) -> Layout:
        """Lay all running statistics out in one buffer, in the order of the nodes."""
        return Layout((f"{node.name}.{spec.name}", spec.shape) for node in self.nodes for spec in node.built.state)


def build_graph(layers: Sequence[Layer], input_shape: Shape) -> Graph:
    """Build the graph of a chain of layers, composites taken apart; a shape that does not fit names the layer."""
    builder = _Builder(input_shape)
    value = INPUT
    for layer in layers:
        value = builder(layer, value)
    return Graph(tuple(builder.nodes), tuple(builder.shapes), value)


def kind_of(layer: Layer) -> str:
    """Return the name under which a layer is registered, or its class's in small letters."""
    try:
        return LAYERS.name_of(type(layer))
    except ValueError:
        return type(layer).__name__.lower()


def layer_name(layers: Sequence[Layer], index: int) -> str:
    """Return the name of a layer of a chain in messages and files: its kind and place, "dense1"."""
    return f"{kind_of(layers[index])}{index}"


class _Builder:
    """What composites call `add`: puts layers into the graph; names tell the way to a layer ("residual2.conv2d0")."""

    def __init__(self, input_shape: Shape) -> None:
        self.nodes: list[Node] = []
        self.shapes: list[Shape] = [input_shape]
        self._place: list[tuple[str, int]] = []  # (prefix, next number) of the composites that are being expanded
        self._level = ("", 0)
        self._masks: dict[int, int] = {}  # value of which some steps are padding -> the value that says which

    def __call__(self, layer: Layer, *values: int) -> int:
        """Add a layer and return the number of its output value."""
        kind = kind_of(layer)
        prefix, number = self._level
        self._level = (prefix, number + 1)
        name = f"{prefix}{kind}{number}"
        if isinstance(layer, Composite):
            self._place.append(self._level)
            self._level = (f"{name}.", 0)
            value = layer.expand(self, *values)
            self._level = self._place.pop()
            return value
        mask = next((self._masks[value] for value in values if value in self._masks), None)
        if mask is not None and layer.on_padding in ("mask", "mask_ends"):
            values = (*values, mask)
        if mask is not None and layer.on_padding == "zeros":
            values = (self._put(f"{name}.zeros", "zero_steps", ZeroSteps(), (*values, mask)),)
        output = self._put(name, kind, layer, values)
        if mask is not None and layer.on_padding != "mask_ends":
            self._check_steps(name, layer, values[0], output)
            self._masks[output] = mask
        return output

    @contextmanager
    def padding(self, value: int, mask_layer: Layer) -> Iterator[None]:
        """Say that some steps of a value are padding, for the layers that are added inside the `with`.

        `mask_layer` makes of the value a mask (steps,), 0 for padding.  The mask goes with each value that comes from
        this one and has its steps.
        """
        if self._masks:
            raise UserError(
                f"model.layers.{self._top()} has padded layers inside padded layers",
                allowed='one "padded" around the layers that work on a sequence',
            )
        self._masks[value] = self._put(f"{self._level[0]}mask", kind_of(mask_layer), mask_layer, (value,))
        yield
        self._masks.clear()

    def _put(self, name: str, kind: str, layer: Layer, values: tuple[int, ...]) -> int:
        """Build a layer, add it, and return the number of its output value."""
        shapes = tuple(self.shapes[value] for value in values)
        try:
            built = layer.build_many(shapes)
        except UserError as error:
            shown = " and ".join(map(str, shapes))
            raise UserError(
                f"model.layers.{self._top()} ({name}) cannot take inputs of shape {shown}: {error.message}"
            ) from None
        self.shapes.append(built.out_shape)
        self.nodes.append(Node(len(self.nodes), name, kind, built, values, len(self.shapes) - 1))
        return self.nodes[-1].output

    def _check_steps(self, name: str, layer: Layer, value: int, output: int) -> None:
        """Refuse a layer that would let padded steps into others: see `Layer.on_padding`."""
        before, after = self.shapes[value], self.shapes[output]
        alone = layer.on_padding != "refuse" and (layer.on_padding != "features" or len(before) > 1)
        if not alone or after[:1] != before[:1]:
            raise UserError(
                f"model.layers.{self._top()} ({name}) mixes the steps of a sequence with padding in it",
                found=f"an input of shape {before}, its first axis the steps",
                allowed='inside "padded": layers that treat each step by itself (embedding, positions, dense on '
                "features, activations, dropout, layer_norm, rms_norm), convolutions that keep the number of steps "
                "(for which padding is zeros), and attention, lstm, gru, last_step, global_avg_pool and "
                "global_max_pool, which leave padding out",
                hint="put the layer behind the one that ends the steps (global_avg_pool, last_step), or outside padded",
            )

    def shape(self, value: int) -> Shape:
        """Return a value's shape for one example."""
        return self.shapes[value]

    def _top(self) -> int:
        """Return the number of the outermost layer that is being added."""
        return (self._place[0][1] if self._place else self._level[1]) - 1
