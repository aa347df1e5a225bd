"""`Flatten`: all axes of an example in one."""

from __future__ import annotations

import math
from typing import ClassVar

from hpctrain.nn.layers.base import BuiltLayer, Layer, OnPadding, Shape


class Flatten(Layer):
    """Reshape each example to one axis; moves no data."""

    on_padding: ClassVar[OnPadding] = "each_step"  # where a step has one feature; else the steps end, which is refused

    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape is (product of in_shape,)."""  # noqa: D403 (a name in code)
        return BuiltLayer(out_shape=(math.prod(in_shape),), forward=None, backward=None)
