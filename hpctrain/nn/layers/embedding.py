"""`Embedding`: a learned vector for each of a number of tokens."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from hpctrain.kernels.embedding import embedding_backward, embedding_forward, no_gradient
from hpctrain.nn.initializers import InitializerName
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer, OnPadding, ParamSpec, Shape


class Embedding(Layer):
    """Each id, a whole number below `size`, becomes its row of a learned table (size, units).

    Ids arrive as floats, which are exact up to 2^24.  An id that is out of range gives NaN, never another token's row,
    so that the loss shows it.
    """

    on_padding: ClassVar[OnPadding] = "each_step"

    size: PositiveInt
    units: PositiveInt
    initializer: InitializerName = "lecun_normal"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`weight` (size, units), by default of variance 1 / units; out_shape is (*in_shape, units)."""
        backward_params = Call(embedding_backward, ("x", "dy", "d_weight"))
        return BuiltLayer(
            out_shape=(*in_shape, self.units),
            forward=Call(embedding_forward, ("x", "weight", "y")),
            backward=(backward_params, Call(no_gradient, ("dx",))),
            backward_params=backward_params,
            params=(
                ParamSpec("weight", (self.size, self.units), self.initializer, fan_in=self.units, fan_out=self.size),
            ),
            views={"x": (), "dx": (), "y": (self.units,), "dy": (self.units,)},
        )
