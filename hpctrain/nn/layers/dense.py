"""`Dense`: a fully connected layer on the last axis."""

from __future__ import annotations

from pydantic import PositiveInt

from hpctrain.kernels.dense import dense_backward, dense_backward_params, dense_forward
from hpctrain.nn.initializers import InitializerName
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer, ParamSpec, Shape


class Dense(Layer):
    """y = x W + b with `units` outputs; an input of more than one axis keeps its leading axes."""

    units: PositiveInt
    initializer: InitializerName = "he_uniform"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`weight` (in, units), `bias` (units,); out_shape is in_shape with the last axis replaced by `units`."""
        features = in_shape[-1]
        return BuiltLayer(
            out_shape=(*in_shape[:-1], self.units),
            forward=Call(dense_forward, ("x", "weight", "bias", "y")),
            backward=Call(dense_backward, ("x", "dy", "weight", "dx", "d_weight", "d_bias")),
            backward_params=Call(dense_backward_params, ("x", "dy", "d_weight", "d_bias")),
            params=(
                ParamSpec("weight", (features, self.units), self.initializer, fan_in=features, fan_out=self.units),
                ParamSpec("bias", (self.units,), decays=False),
            ),
            views={"x": (features,), "dx": (features,), "y": (self.units,), "dy": (self.units,)},
        )
