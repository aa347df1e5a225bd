"""`SqueezeExcite`: channels weighed by what the whole feature map holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import PositiveInt

from hpctrain.nn.layers.activations import Relu, Sigmoid
from hpctrain.nn.layers.base import Composite
from hpctrain.nn.layers.containers import Multiply
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.layers.pooling import GlobalAvgPool


class SqueezeExcite(Composite):
    """x times sigmoid(W2 relu(W1 mean(x))), one a channel (Hu et al. 2018); W1 has channels / `reduction` units."""

    reduction: PositiveInt = 16

    def expand(self, add: Callable[..., Any], *values: Any) -> Any:
        """Take inputs (..., channels); the output has their shape."""
        (x,) = values
        channels = add.shape(x)[-1]
        gate = add(GlobalAvgPool(), x)
        for layer in (Dense(units=max(1, channels // self.reduction)), Relu(), Dense(units=channels), Sigmoid()):
            gate = add(layer, gate)
        return add(Multiply(), x, gate)
