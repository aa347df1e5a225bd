"""`LearnedPositions`, `SinusoidalPositions`: what tells attention where in a sequence a step stands."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from hpctrain.errors import UserError
from hpctrain.kernels.positions import (
    positions_backward,
    positions_backward_params,
    positions_forward,
    sinusoidal_table,
)
from hpctrain.nn.initializers import InitializerName
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Layer, OnPadding, ParamSpec, Shape


def _steps_and_features(in_shape: Shape) -> tuple[int, int]:
    if len(in_shape) != 2:
        raise UserError(
            "positions are added to a sequence",
            found=f"an input of shape {in_shape}",
            allowed="shape (steps, features)",
            hint='put an "embedding" or "dense" layer before it',
        )
    return in_shape


class LearnedPositions(Layer):
    """y[t] = x[t] + table[t] with a learned table, one row for each step."""

    on_padding: ClassVar[OnPadding] = "each_step"

    initializer: InitializerName = "zeros"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`table` (steps, features); out_shape is in_shape."""
        _, features = _steps_and_features(in_shape)
        return BuiltLayer(
            out_shape=in_shape,
            forward=Call(positions_forward, ("x", "table", "y")),
            backward=Call(positions_backward, ("dy", "dx", "d_table", "beta")),
            backward_params=Call(positions_backward_params, ("dy", "d_table", "beta")),
            params=(ParamSpec("table", in_shape, self.initializer, fan_in=features, fan_out=features),),
            in_place=True,
        )


class SinusoidalPositions(Layer):
    """y[t] = x[t] + sines and cosines of t, at wavelengths from 2 pi to 2 pi `base` (Vaswani et al. 2017)."""

    on_padding: ClassVar[OnPadding] = "each_step"

    base: float = Field(10000.0, gt=1.0)

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Nothing is learned: the gradient passes through; out_shape is in_shape."""
        _steps_and_features(in_shape)
        return BuiltLayer(
            out_shape=in_shape,
            forward=(Call(sinusoidal_table, ("table", self.base)), Call(positions_forward, ("x", "table", "y"))),
            backward=None,
            buffers={"table": Buffer(in_shape, per_example=False, kept=False)},
            in_place=True,
        )
