"""`ConvTranspose1d`, `ConvTranspose2d`, `ConvTranspose3d`."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import PositiveInt

from hpctrain.errors import UserError
from hpctrain.kernels.conv.kernels import IMAGE_GRADIENT, transposed, transposed_backward
from hpctrain.kernels.conv.sizes import Sizes, sizes_of
from hpctrain.kernels.conv.tile import BIAS, RELU
from hpctrain.nn.initializers import InitializerName
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Layer, ParamSpec, Shape
from hpctrain.nn.layers.conv_options import Padding, PaddingPerAxis, PerAxis, image_axes, pads_of, per_axis, three


class _ConvTranspose(Layer):
    axes: ClassVar[int]

    channels: PositiveInt
    kernel: PerAxis
    stride: PerAxis = 1
    padding: Padding = "same"
    output_padding: PaddingPerAxis = 0
    bias: bool = True
    initializer: InitializerName = "he_uniform"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`weight` (kernel.., channels, in), `bias` (channels,); see the class for the output's shape."""
        x = image_axes(in_shape, self.axes)
        k, stride = (per_axis(getattr(self, name), self.axes, name) for name in ("kernel", "stride"))
        out, pad = self._out_axes(x, k, stride)
        ones = (1, 1, 1)
        # The convolution whose gradient this is: from the output to the input.
        values = (three(out, 1), three(x, 1), three(k, 1), three(stride, 1), ones, three(pad, 0))
        sizes = sizes_of(*values, self.channels, in_shape[-1], 1)
        taps = math.prod(k)
        weight = ParamSpec(
            "weight",
            (*k, self.channels, in_shape[-1]),
            self.initializer,
            # A place of the output meets one tap in stride^axes.
            fan_in=max(1, taps * in_shape[-1] // math.prod(stride)),
            fan_out=taps * self.channels,
        )
        params = (weight, ParamSpec("bias", (self.channels,), decays=False)) if self.bias else (weight,)
        return self._built((*out, self.channels), sizes, params, fused="")

    def _out_axes(self, x: Shape, k: Shape, stride: Shape) -> tuple[Shape, Shape]:
        """The output's axes and the padding before them, in the sense of the convolution from output to input."""
        extra = per_axis(self.output_padding, self.axes, "output_padding")
        if any(more >= step for more, step in zip(extra, stride, strict=True) if more):
            raise UserError(
                "output_padding is too large", found=str(list(extra)), allowed=f"less than the stride {list(stride)}"
            )
        if self.padding == "same":
            if any(extra):
                raise UserError(
                    'output_padding has no meaning with padding = "same"', found=str(list(extra)), allowed="0"
                )
            out = tuple(size * step for size, step in zip(x, stride, strict=True))
            return out, pads_of("same", out, k, stride, (1,) * self.axes)[0]
        pad, _ = pads_of(self.padding, x, k, stride, (1,) * self.axes)
        out = tuple(
            (size - 1) * step + taps - 2 * low + more
            for size, step, taps, low, more in zip(x, stride, k, pad, extra, strict=True)
        )
        if min(out) < 1:
            raise UserError(
                "nothing is left of the output",
                found=f"input {x}, kernel {k}, stride {stride}, padding {pad}: output {out}",
                allowed="(input - 1) * stride + kernel - 2 * padding + output_padding at least 1, on every axis",
                hint="use less padding or a larger kernel",
            )
        return out, pad

    def _built(self, out_shape: Shape, sizes: Sizes, params: tuple[ParamSpec, ...], fused: str) -> BuiltLayer:
        mode = BIAS * self.bias + RELU * bool(fused)
        bias, d_bias = ("bias", "d_bias") if self.bias else ("weight", "d_weight")
        y = "y" if fused else "dy"
        scratch = {
            "image": sizes.image_d * sizes.image_h * sizes.image_w * sizes.in_channels,
            "turned": math.prod(params[0].shape),
            "border": sizes.border_d * sizes.border_h * sizes.border_w * sizes.out_channels,
        }
        given = ("d_weight", d_bias, "image", "rows")
        dx_args = ("x", y, "dy", "weight", "dx", *given, mode | IMAGE_GRADIENT, "beta", *sizes)
        params_args = ("x", y, "dy", "weight", "dy", *given, mode, "beta", *sizes)
        return BuiltLayer(
            out_shape=out_shape,
            forward=Call(transposed, ("x", "weight", bias, "y", "turned", "border", "rows", mode, *sizes)),
            backward=Call(transposed_backward, dx_args),
            backward_params=Call(transposed_backward, params_args),
            params=params,
            buffers={name: Buffer((size,), per_example=False, kept=False) for name, size in scratch.items()},
            views={name: () for name in ("x", "dx", "y", "dy")},
            fused={} if fused else {"relu": self._built(out_shape, sizes, params, fused="relu")},
        )


class ConvTranspose1d(_ConvTranspose):
    """1-D transposed convolution: y[u, c] = b[c] + sum over t, n and o stride + t - pad = u of x[o, n] weight[t, c, n].

    The gradient of a convolution with respect to its input (Zeiler et al. 2010), for making images larger.  Input
    (length, channels).  padding "same": length * stride places; "valid": (length - 1) * stride + kernel; a number p:
    2 p fewer; output_padding: that many more at the end, less than the stride, as in PyTorch.
    """

    axes: ClassVar[int] = 1


class ConvTranspose2d(_ConvTranspose):
    """2-D transposed convolution; see `ConvTranspose1d`; each option is a number or a list [height, width]."""

    axes: ClassVar[int] = 2


class ConvTranspose3d(_ConvTranspose):
    """3-D transposed convolution; see `ConvTranspose1d`; each option is a number or a list [depth, height, width]."""

    axes: ClassVar[int] = 3
