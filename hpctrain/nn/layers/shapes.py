"""`Reshape`, `Permute`: the same numbers in another shape, or with their axes in another order."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt

from hpctrain.errors import UserError
from hpctrain.kernels.transpose import permute
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer, OnPadding, Shape

_MOST_AXES = 5


class Reshape(Layer):
    """Give each example another shape; moves no data.  One axis may be -1: what is left."""

    on_padding: ClassVar[OnPadding] = "each_step"  # where the first axis stays; else it is refused

    shape: Annotated[tuple[Annotated[int, Field(ge=-1)], ...], Field(min_length=1)]

    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape is `shape`."""  # noqa: D403 (a name in code)
        size, known = math.prod(in_shape), math.prod(axis for axis in self.shape if axis != -1)
        free = self.shape.count(-1)
        fits = 0 not in self.shape and free <= 1 and (size % known == 0 if free else size == known)
        if not fits:
            raise UserError(
                "it cannot be reshaped",
                found=f"{size} numbers, shape = {list(self.shape)}",
                allowed=f"a shape whose product is {size}, with one -1 at most",
            )
        out_shape = tuple(size // known if axis == -1 else axis for axis in self.shape)
        return BuiltLayer(out_shape=out_shape, forward=None, backward=None)


class Permute(Layer):
    """y[i_a0, i_a1, ...] = x[i_0, i_1, ...]: axis k of the output is axis `axes`[k] of the input, the batch aside."""

    axes: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=_MOST_AXES)]

    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape has the axes of in_shape in the order of `axes`."""  # noqa: D403 (a name in code)
        if sorted(self.axes) != list(range(len(in_shape))):
            raise UserError(
                "axes does not say where each axis goes",
                found=f"axes = {list(self.axes)}, input {in_shape}",
                allowed=f"the numbers 0 to {len(in_shape) - 1}, each once, in any order",
            )
        back = tuple(self.axes.index(axis) for axis in range(len(self.axes)))
        out_shape = tuple(in_shape[axis] for axis in self.axes)
        return BuiltLayer(
            out_shape=out_shape,
            forward=Call(permute, ("x", "y", "rows", *_walk(in_shape, self.axes))),
            backward=Call(permute, ("dy", "dx", "rows", *_walk(out_shape, back))),
            views={name: () for name in ("x", "dx", "y", "dy")},
        )


def _walk(shape: Shape, axes: Shape) -> Shape:
    """Return the lengths of the result's axes and the steps in the source, leading axes of length 1 put before them."""
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    filling = (1,) * (_MOST_AXES - len(shape))
    return (*filling, *(shape[axis] for axis in axes), *filling, *(steps[axis] for axis in axes))
