"""Activations: functions without parameters, elementwise but for the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from hpctrain.kernels import activations as kernels
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer, OnPadding, Shape

_FLAT = {"x": (), "y": (), "dx": (), "dy": ()}


def _elementwise(
    in_shape: Shape, forward: Callable, backward: Callable, needs: str, constants: tuple[float, ...] = ()
) -> BuiltLayer:
    """Describe an activation; `needs` is the value that its derivative is computed from, "x" or "y"."""
    return BuiltLayer(
        out_shape=in_shape,
        forward=Call(forward, ("x", "y", *constants)),
        backward=Call(backward, (needs, "dy", "dx", *constants)),
        views=_FLAT,
        in_place=needs == "y",
    )


class _Elementwise(Layer):
    on_padding: ClassVar[OnPadding] = "each_step"


class Relu(_Elementwise):
    """max(x, 0)."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Elementwise: out_shape is in_shape."""
        return _elementwise(in_shape, kernels.relu_forward, kernels.relu_backward, "y")


class LeakyRelu(_Elementwise):
    """x where x > 0, else `slope` x."""

    slope: float = Field(0.01, gt=0.0, lt=1.0)

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Elementwise: out_shape is in_shape."""
        return _elementwise(in_shape, kernels.leaky_relu_forward, kernels.leaky_relu_backward, "y", (self.slope,))


class Tanh(_Elementwise):
    """Hyperbolic tangent."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Elementwise: out_shape is in_shape."""
        return _elementwise(in_shape, kernels.tanh_forward, kernels.tanh_backward, "y")


class Sigmoid(_Elementwise):
    """1 / (1 + exp(-x))."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Elementwise: out_shape is in_shape."""
        return _elementwise(in_shape, kernels.sigmoid_forward, kernels.sigmoid_backward, "y")


class Elu(_Elementwise):
    """x where x > 0, else `alpha` (exp(x) - 1)."""

    alpha: float = Field(1.0, gt=0.0)

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Elementwise: out_shape is in_shape."""
        return _elementwise(in_shape, kernels.elu_forward, kernels.elu_backward, "y", (self.alpha,))


class Softplus(_Elementwise):
    """log(1 + exp(x))."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Elementwise: out_shape is in_shape."""
        return _elementwise(in_shape, kernels.softplus_forward, kernels.softplus_backward, "y")


class Silu(_Elementwise):
    """x / (1 + exp(-x)), also called swish."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Elementwise: out_shape is in_shape."""
        return _elementwise(in_shape, kernels.silu_forward, kernels.silu_backward, "x")


class Gelu(_Elementwise):
    """x Phi(x) with the normal distribution function (exact, not the tanh approximation)."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Elementwise: out_shape is in_shape."""
        return _elementwise(in_shape, kernels.gelu_forward, kernels.gelu_backward, "x")


class Softmax(Layer):
    """exp(x) over its sum along the last axis.

    Not for a classifier's last layer: "softmax_cross_entropy" takes its inputs, the logits.
    """

    on_padding: ClassVar[OnPadding] = "features"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape is in_shape."""  # noqa: D403 (a name in code)
        row = in_shape[-1:]
        return BuiltLayer(
            out_shape=in_shape,
            forward=Call(kernels.softmax_forward, ("x", "y")),
            backward=Call(kernels.softmax_backward, ("y", "dy", "dx")),
            views={"x": row, "y": row, "dx": row, "dy": row},
            in_place=True,
        )
