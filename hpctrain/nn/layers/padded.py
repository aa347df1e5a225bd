"""`Padded`: layers over sequences of which some steps are padding; and the mask that says which."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pydantic import Field

from hpctrain.errors import UserError
from hpctrain.kernels.embedding import no_gradient
from hpctrain.kernels.padding import padding_mask
from hpctrain.nn.layers.base import BuiltLayer, Call, Composite, Layer, Shape
from hpctrain.nn.layers.containers import LayerList, run_through


class Padded(Composite):
    """`layers`, where the steps of the input that equal `value` are padding: they change nothing for the others.

    A token is padding where it is `value`, a step with features where all of them are.  Every layer inside either
    treats each step by itself, or is told which steps are real and leaves the others out (attention, recurrent layers,
    global pooling, last_step); what mixes steps and cannot leave any out is refused.  See `Layer.on_padding`.
    """

    value: float = 0.0
    layers: LayerList = Field(min_length=1)

    def expand(self, add: Callable[..., Any], *values: Any) -> Any:
        """Take inputs (steps,) or (steps, ..): the mask goes with every value that has these steps."""
        (x,) = values
        with add.padding(x, PaddingMask(value=self.value)):
            return run_through(add, self.layers, x)


class PaddingMask(Layer):
    """1 where a step is real, 0 where all its numbers equal `value`."""

    value: float

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Input (steps, ..); out_shape is (steps,).  A mask has no gradient."""
        if not in_shape:
            raise UserError("padding is in sequences", found=f"an input of shape {in_shape}", allowed="(steps, ..)")
        return BuiltLayer(
            out_shape=in_shape[:1],
            forward=Call(padding_mask, ("x", "y", self.value)),
            backward=Call(no_gradient, ("dx",)),
            views={"x": (math.prod(in_shape[1:]),), "y": (), "dx": ()},
        )
