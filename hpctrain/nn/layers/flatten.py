"""`Flatten`: all axes of an example in one."""

from __future__ import annotations

import math

from hpctrain.nn.layers.base import BuiltLayer, Layer, Shape


class Flatten(Layer):
    """Reshape each example to one axis; moves no data."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape is (product of in_shape,)."""  # noqa: D403 (a name in code)
        return BuiltLayer(out_shape=(math.prod(in_shape),), forward=None, backward=None)
