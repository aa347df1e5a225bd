"""`Conv1d`, `Conv2d`, `Conv3d` and their depthwise forms."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import PositiveInt

from hpctrain.errors import UserError
from hpctrain.kernels.conv.depthwise import depthwise_backward, depthwise_forward
from hpctrain.kernels.conv.kernels import IMAGE_GRADIENT, convolve, convolve_backward
from hpctrain.kernels.conv.sizes import Sizes, sizes_of
from hpctrain.kernels.conv.tile import BIAS, RELU
from hpctrain.nn.initializers import InitializerName
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Layer, OnPadding, ParamSpec, Shape
from hpctrain.nn.layers.conv_options import Padding, PerAxis, image_axes, output_axes, pads_of, per_axis, three


class _Conv(Layer):
    axes: ClassVar[int]
    on_padding: ClassVar[OnPadding] = "zeros"  # where it keeps the number of steps; else it is refused

    kernel: PerAxis
    stride: PerAxis = 1
    padding: Padding = "same"
    dilation: PerAxis = 1
    bias: bool = True
    initializer: InitializerName = "he_uniform"

    def _sizes(self, in_shape: Shape, channels: int, groups: int) -> tuple[Shape, Sizes]:
        """The shape of the output, and what the kernels are told."""
        x = image_axes(in_shape, self.axes)
        options = ((self.kernel, "kernel"), (self.stride, "stride"), (self.dilation, "dilation"))
        k, stride, dilation = (per_axis(value, self.axes, name) for value, name in options)
        pads = pads_of(self.padding, x, k, stride, dilation)
        y = output_axes(x, k, stride, dilation, pads)
        values = (three(x, 1), three(y, 1), three(k, 1), three(stride, 1), three(dilation, 1), three(pads[0], 0))
        return (*y, channels), sizes_of(*values, in_shape[-1], channels, groups)

    def _params(self, sizes: Sizes) -> tuple[ParamSpec, ...]:
        k = per_axis(self.kernel, self.axes, "kernel")
        fan_in, out = sizes.in_channels // sizes.groups, sizes.out_channels
        taps = math.prod(k)
        weight = ParamSpec(
            "weight",
            (*k, fan_in, out),
            self.initializer,
            fan_in=taps * fan_in,
            fan_out=max(1, taps * out // sizes.groups),
        )
        return (weight, ParamSpec("bias", (out,), decays=False)) if self.bias else (weight,)


class _FullConv(_Conv):
    channels: PositiveInt
    groups: PositiveInt = 1

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`weight` (kernel.., in / groups, channels), `bias` (channels,); see the class for the output's shape."""
        image_axes(in_shape, self.axes)
        if in_shape[-1] % self.groups or self.channels % self.groups:
            raise UserError(
                "the channels cannot be divided into groups",
                found=f"{in_shape[-1]} channels in, {self.channels} out, {self.groups} groups",
                allowed="groups that divide both",
            )
        out_shape, sizes = self._sizes(in_shape, self.channels, self.groups)
        if 1 < self.groups == in_shape[-1]:
            return depthwise(out_shape, sizes, self._params(sizes))
        return self._built(out_shape, sizes, fused="")

    def _built(self, out_shape: Shape, sizes: Sizes, fused: str) -> BuiltLayer:
        mode = BIAS * self.bias + RELU * bool(fused)
        # Without a bias or a ReLU the kernels do not look at these arguments: any array of the right type stands there.
        bias, d_bias = ("bias", "d_bias") if self.bias else ("weight", "d_weight")
        y = "y" if fused else "dy"
        params = self._params(sizes)
        image = sizes.image_d * sizes.image_h * sizes.image_w * sizes.in_channels
        border = sizes.border_d * sizes.border_h * sizes.border_w * sizes.out_channels
        scratch = {"image": image, "turned": math.prod(params[0].shape), "border": border}
        given = ("weight", "d_weight", d_bias, "image", "turned", "border", "rows")
        dx_args = ("x", y, "dy", "weight", "dx", *given[1:], mode | IMAGE_GRADIENT, "beta", *sizes)
        params_args = ("x", y, "dy", "weight", "dy", *given[1:], mode, "beta", *sizes)
        return BuiltLayer(
            out_shape=out_shape,
            forward=Call(convolve, ("x", "weight", bias, "y", "image", "rows", mode, *sizes)),
            backward=Call(convolve_backward, dx_args),
            backward_params=Call(convolve_backward, params_args),
            params=params,
            buffers={name: Buffer((size,), per_example=False, kept=False) for name, size in scratch.items()},
            views={name: () for name in ("x", "dx", "y", "dy")},
            fused={} if fused else {"relu": self._built(out_shape, sizes, fused="relu")},
        )


class Conv1d(_FullConv):
    """1-D convolution: y[o, n] = b[n] + sum_t,c x[o stride + t dilation - pad, c] weight[t, c, n].

    Input (length, channels).  padding "same": ceil(length / stride) places, an odd zero at the end, as in Keras;
    "valid": no zeros; a number: that many on both sides, as in PyTorch.  With `groups` = g, the channels are g separate
    convolutions side by side (Krizhevsky et al. 2012).
    """

    axes: ClassVar[int] = 1


class Conv2d(_FullConv):
    """2-D convolution: y[o, n] = b[n] + sum_t,c x[o stride + t dilation - pad, c] weight[t, c, n], o and t pairs.

    Input (height, width, channels); options as in `Conv1d`, each a number or a list [height, width].
    """

    axes: ClassVar[int] = 2


class Conv3d(_FullConv):
    """3-D convolution: y[o, n] = b[n] + sum_t,c x[o stride + t dilation - pad, c] weight[t, c, n], o and t triples.

    Input (depth, height, width, channels); options as in `Conv1d`, each a number or a list [depth, height, width].
    """

    axes: ClassVar[int] = 3


class _Depthwise(_Conv):
    multiplier: PositiveInt = 1

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`weight` (kernel.., 1, channels multiplier), `bias` (channels multiplier,); axes as in a full convolution."""
        image_axes(in_shape, self.axes)
        out_shape, sizes = self._sizes(in_shape, in_shape[-1] * self.multiplier, in_shape[-1])
        return depthwise(out_shape, sizes, self._params(sizes))


def depthwise(out_shape: Shape, sizes: Sizes, params: tuple[ParamSpec, ...]) -> BuiltLayer:
    """Return the layer of a convolution with a group for each channel."""
    has_bias = len(params) == 2
    bias, d_bias, mode = ("bias", "d_bias", BIAS) if has_bias else ("weight", "d_weight", 0)
    args = ("weight", "rows", mode | IMAGE_GRADIENT, "beta", *sizes)
    return BuiltLayer(
        out_shape=out_shape,
        forward=Call(depthwise_forward, ("x", "weight", bias, "y", "rows", mode, *sizes)),
        backward=Call(depthwise_backward, ("x", "dy", "weight", "dx", "d_weight", d_bias, *args[1:])),
        backward_params=Call(
            depthwise_backward, ("x", "dy", "weight", "dy", "d_weight", d_bias, "rows", mode, "beta", *sizes)
        ),
        params=params,
        views={name: () for name in ("x", "dx", "y", "dy")},
    )


class DepthwiseConv1d(_Depthwise):
    """1-D convolution of each channel by itself: y[o, c m + j] = b + sum_t x[o s + t d - p, c] weight[t, 0, c m + j].

    s, d, p: stride, dilation, padding; `multiplier` = m outputs a channel (Howard et al. 2017, arXiv:1704.04861); other
    options as in `Conv1d`.
    """

    axes: ClassVar[int] = 1


class DepthwiseConv2d(_Depthwise):
    """2-D convolution of each channel by itself; see `DepthwiseConv1d`, with axes as in `Conv2d`."""

    axes: ClassVar[int] = 2


class DepthwiseConv3d(_Depthwise):
    """3-D convolution of each channel by itself; see `DepthwiseConv1d`, with axes as in `Conv3d`."""

    axes: ClassVar[int] = 3
