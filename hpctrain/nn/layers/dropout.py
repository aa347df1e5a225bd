"""`Dropout`: random features set to zero while training."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field

from hpctrain.kernels.dropout import dropout_apply
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer, OnPadding, Shape


class Dropout(Layer):
    """Zero each feature with probability `rate` and scale the rest by 1 / (1 - rate); evaluation changes nothing.

    The mask is keyed by seed, layer, step and example id, so that it is the same at any world size.
    """

    on_padding: ClassVar[OnPadding] = "each_step"

    rate: float = Field(ge=0.0, lt=1.0)

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Elementwise: out_shape is in_shape."""
        features = (math.prod(in_shape),)
        return BuiltLayer(
            out_shape=in_shape,
            forward=Call(dropout_apply, ("x", "y", "ids", "seed", "step", "layer", self.rate)),
            backward=Call(dropout_apply, ("dy", "dx", "ids", "seed", "step", "layer", self.rate)),
            predict="alias",
            views={"x": features, "y": features, "dx": features, "dy": features},
            in_place=True,
        )
