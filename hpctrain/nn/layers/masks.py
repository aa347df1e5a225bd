"""`ZeroSteps`, and what layers with a mask as second input share; `padded.py` makes the masks."""

from __future__ import annotations

import math
from typing import ClassVar

from hpctrain.errors import UserError
from hpctrain.kernels.embedding import no_gradient
from hpctrain.kernels.padding import zero_steps
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Layer, Shape


def check_mask(in_shapes: tuple[Shape, ...]) -> None:
    """Refuse what is no sequence (steps, ..) and a mask (steps,)."""
    if len(in_shapes) != 2 or in_shapes[1] != in_shapes[0][:1]:
        raise UserError(
            "the second input is a mask",
            found=f"inputs of shape {' and '.join(map(str, in_shapes))}",
            allowed="(steps, ..) and (steps,): a number for each step, 0 for padding",
        )


def masked_layer(in_shape: Shape, out_shape: Shape, forward: Call, backward: Call, **buffers: Shape) -> BuiltLayer:
    """Return a layer of a sequence x0 and a mask x1 that puts one step in the place of all; buffers are scratch."""
    by_steps, step = (math.prod(in_shape[1:]),), (math.prod(out_shape),)
    return BuiltLayer(
        out_shape=out_shape,
        forward=forward,
        backward=(backward, Call(no_gradient, ("dx1",))),
        buffers={name: Buffer(shape, per_example=False, kept=False) for name, shape in buffers.items()},
        views={"x0": by_steps, "dx0": by_steps, "y": step, "dy": step, "x1": (), "dx1": ()},
    )


class ZeroSteps(Layer):
    """The first input, with zeros at the steps where the second, a mask (steps,), is 0."""

    inputs: ClassVar[int | None] = 2

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Take two inputs only: see `build_many`."""
        raise UserError("it takes two inputs", found="1 input")

    def build_many(self, in_shapes: tuple[Shape, ...]) -> BuiltLayer:
        """out_shape is the first input's."""  # noqa: D403 (a name in code)
        check_mask(in_shapes)
        by_steps = (math.prod(in_shapes[0][1:]),)
        return BuiltLayer(
            out_shape=in_shapes[0],
            forward=Call(zero_steps, ("x0", "x1", "y")),
            backward=(Call(zero_steps, ("dy", "x1", "dx0")), Call(no_gradient, ("dx1",))),
            views={**dict.fromkeys(("x0", "dx0", "y", "dy"), by_steps), "x1": (), "dx1": ()},
        )
