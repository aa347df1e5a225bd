"""Layers made of layers: sequence, residual, parallel branches; and the merges of several values into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, SerializeAsAny

from hpctrain.errors import UserError
from hpctrain.kernels.elementwise import add_arrays
from hpctrain.kernels.merge import (
    copy_columns,
    multiply_backward,
    multiply_forward,
    take_columns,
)
from hpctrain.nn.layers.base import BuiltLayer, Call, Composite, Layer, OnPadding, Shape
from hpctrain.options import part_from, spec_of
from hpctrain.registry import family


def _read_layers(specs: Any) -> Any:
    if not isinstance(specs, (list, tuple)):
        return specs
    return tuple(part_from(family("layer"), spec, f"layers.{index}", "type") for index, spec in enumerate(specs))


LayerItem = Annotated[SerializeAsAny[Layer], PlainSerializer(lambda layer: spec_of(family("layer"), layer, "type"))]
LayerList = Annotated[tuple[LayerItem, ...], BeforeValidator(_read_layers)]


def _read_branches(branches: Any) -> Any:
    return tuple(_read_layers(branch) for branch in branches) if isinstance(branches, (list, tuple)) else branches


BranchList = Annotated[tuple[tuple[LayerItem, ...], ...], BeforeValidator(_read_branches), Field(min_length=2)]


def run_through(add: Callable[..., Any], layers: tuple[Layer, ...], value: Any) -> Any:
    """Put layers one after another into the graph and return the last one's output."""
    for layer in layers:
        value = add(layer, value)
    return value


class Residual(Composite):
    """layers(x) + shortcut(x); without a shortcut that is x itself (He et al. 2016)."""

    layers: LayerList
    shortcut: LayerList = ()

    def expand(self, add: Callable[..., Any], *values: Any) -> Any:
        """Add both ways and their sum."""
        (x,) = values
        return add(Add(), run_through(add, self.layers, x), run_through(add, self.shortcut, x))


class Parallel(Composite):
    """Several branches from one input; `merge` is "concat" (on the last axis), "add" or "multiply".

    An empty branch passes the input on.
    """

    branches: BranchList
    merge: Literal["concat", "add", "multiply"] = "concat"

    def expand(self, add: Callable[..., Any], *values: Any) -> Any:
        """Add every branch and the merge."""
        (x,) = values
        merge = {"concat": Concat, "add": Add, "multiply": Multiply}[self.merge]()
        return add(merge, *[run_through(add, branch, x) for branch in self.branches])


class Add(Layer):
    """Sum of its inputs, which have one shape."""

    inputs: ClassVar[int | None] = None
    on_padding: ClassVar[OnPadding] = "each_step"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Describe the sum of one input: the input."""
        return self.build_many((in_shape,))

    def build_many(self, in_shapes: tuple[Shape, ...]) -> BuiltLayer:
        """Inputs and output have the same shape; each input's gradient is the output's."""
        _same_shapes(in_shapes)
        calls = [Call(add_arrays, ("x0", "x1", "y"))] if len(in_shapes) > 1 else []
        calls += [Call(add_arrays, ("y", f"x{index}", "y")) for index in range(2, len(in_shapes))]
        names = [f"x{index}" for index in range(len(in_shapes))]
        return BuiltLayer(
            out_shape=in_shapes[0],
            forward=tuple(calls) or None,
            backward=None,
            views=dict.fromkeys([*names, "y"], ()),
            in_place=len(in_shapes) == 2,
        )


class Multiply(Layer):
    """Product of two inputs; the second may have axes of length 1, or none but the last, where it is spread out."""

    inputs: ClassVar[int | None] = 2
    on_padding: ClassVar[OnPadding] = "each_step"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Take two inputs only: see `build_many`."""
        raise UserError("it takes two inputs", found="1 input")

    def build_many(self, in_shapes: tuple[Shape, ...]) -> BuiltLayer:
        """out_shape is the first input's; the second has that shape or only its last axis (a gate for each channel)."""
        if len(in_shapes) != 2:
            raise UserError("it takes two inputs", found=f"{len(in_shapes)} inputs")
        shape, gate = in_shapes
        channels = shape[-1]
        if gate != shape and (gate[-1] != channels or any(axis != 1 for axis in gate[:-1])):
            raise UserError(
                "its second input must have the shape of the first, or one number for each channel", found=gate
            )
        gate_size = 1
        for axis in gate:
            gate_size *= axis
        size = 1
        for axis in shape:
            size *= axis
        views = {"x0": (size // gate_size, gate_size), "y": (size // gate_size, gate_size), "x1": (gate_size,)}
        views |= {"dx0": views["x0"], "dy": views["y"], "dx1": views["x1"]}
        return BuiltLayer(
            out_shape=shape,
            forward=Call(multiply_forward, ("x0", "x1", "y")),
            backward=Call(multiply_backward, ("x0", "x1", "dy", "dx0", "dx1")),
            views=views,
        )


class Concat(Layer):
    """Its inputs side by side on the last axis; the other axes agree."""

    inputs: ClassVar[int | None] = None
    on_padding: ClassVar[OnPadding] = "each_step"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Describe the concatenation of one input: the input."""
        return self.build_many((in_shape,))

    def build_many(self, in_shapes: tuple[Shape, ...]) -> BuiltLayer:
        """out_shape has the sum of the last axes."""
        _same_shapes(tuple(shape[:-1] for shape in in_shapes))
        widths = [shape[-1] for shape in in_shapes]
        starts = [sum(widths[:index]) for index in range(len(widths))]
        numbered = list(enumerate(starts))
        views = {f"x{index}": (width,) for index, width in enumerate(widths)}
        views |= {f"dx{index}": (width,) for index, width in enumerate(widths)}
        return BuiltLayer(
            out_shape=(*in_shapes[0][:-1], sum(widths)),
            forward=tuple(Call(copy_columns, (f"x{index}", "y", start)) for index, start in numbered),
            backward=tuple(Call(take_columns, ("dy", f"dx{index}", start)) for index, start in numbered),
            views=views | {"y": (sum(widths),), "dy": (sum(widths),)},
        )


def _same_shapes(shapes: tuple[Shape, ...]) -> None:
    if len(set(shapes)) > 1:
        raise UserError("its inputs must have one shape", found=" and ".join(map(str, shapes)))
