"""`Dense`: a fully connected layer on the last axis."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from hpctrain.kernels.dense import column_sums, relu_mask, relu_mask_sums
from hpctrain.kernels.matmul import matmul, matmul_bias, matmul_nt, matmul_relu, matmul_tn
from hpctrain.kernels.matmul_lanes import matmul_tn_lanes
from hpctrain.nn.initializers import InitializerName
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Layer, OnPadding, ParamSpec, Shape


class Dense(Layer):
    """y = x W + b with `units` outputs, without b if not `bias`; an input of several axes keeps its leading ones."""

    on_padding: ClassVar[OnPadding] = "features"

    units: PositiveInt
    initializer: InitializerName = "he_uniform"
    bias: bool = True

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`weight` (in, units), `bias` (units,); out_shape is in_shape with the last axis replaced by `units`.

        A ReLU that follows is computed in the same pass; its derivative with the sums of the bias gradient.
        """
        plain = self._built(in_shape, relu=False)
        return BuiltLayer(**{**plain.__dict__, "fused": {"relu": self._built(in_shape, relu=True)}})

    def _built(self, in_shape: Shape, relu: bool) -> BuiltLayer:
        features = in_shape[-1]
        dz = "dz" if relu else "dy"
        fixed = ("sum_weight", "scale_weight", "largest_weight")
        by_lane = Call(matmul_tn_lanes, ("x", dz, "d_weight", *fixed, "rows", "lane", "beta"))
        gradients = (*self._before_products(relu), Call(matmul_tn, ("x", dz, "d_weight", "beta"), by_lane=by_lane))
        params = (ParamSpec("weight", (features, self.units), self.initializer, fan_in=features, fan_out=self.units),)
        if self.bias:
            params += (ParamSpec("bias", (self.units,), decays=False),)
        wide, narrow = (self.units,), (features,)
        return BuiltLayer(
            out_shape=(*in_shape[:-1], self.units),
            forward=self._forward(relu),
            backward=(*gradients, Call(matmul_nt, (dz, "weight", "dx", 0.0))),
            backward_params=gradients,
            params=params,
            buffers={"dz": Buffer((*in_shape[:-1], self.units), kept=False, over="dy")} if relu else {},
            views={"x": narrow, "dx": narrow, "y": wide, "dy": wide, "dz": wide},
        )

    def _forward(self, relu: bool) -> Call:
        if self.bias:
            return Call(matmul_bias, ("x", "weight", "bias", "y", int(relu)))
        return Call(matmul_relu, ("x", "weight", "y")) if relu else Call(matmul, ("x", "weight", "y", 0.0))

    def _before_products(self, relu: bool) -> tuple[Call, ...]:
        """What turns dy into the gradient of x W + b, and sums the bias gradient."""
        if not relu:
            return (Call(column_sums, ("dy", "d_bias", "beta")),) if self.bias else ()
        if self.bias:
            return (Call(relu_mask_sums, ("y", "dy", "dz", "d_bias", "beta")),)
        return (Call(relu_mask, ("y", "dy", "dz")),)
