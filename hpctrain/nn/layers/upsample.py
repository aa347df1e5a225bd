"""`Upsample1d`, `Upsample2d`, `Upsample3d`: larger images by repeated or interpolated values."""

from __future__ import annotations

from typing import ClassVar, Literal

from hpctrain.kernels import upsample
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer, Shape
from hpctrain.nn.layers.conv_options import PerAxis, image_axes, per_axis, three


class _Upsample(Layer):
    axes: ClassVar[int]

    size: PerAxis = 2
    method: Literal["nearest", "linear"] = "nearest"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape (positions x size.., channels)."""  # noqa: D403 (a name in code)
        x, size = image_axes(in_shape, self.axes), per_axis(self.size, self.axes, "size")
        nearest = self.method == "nearest"
        args = ("rows", *three(x, 1), *three(size, 1), in_shape[-1])
        forward = upsample.repeat_forward if nearest else upsample.interpolate_forward
        backward = upsample.repeat_backward if nearest else upsample.interpolate_backward
        return BuiltLayer(
            out_shape=(*(places * factor for places, factor in zip(x, size, strict=True)), in_shape[-1]),
            forward=Call(forward, ("x", "y", *args)),
            backward=Call(backward, ("dy", "dx", *args)),
            views={name: () for name in ("x", "dx", "y", "dy")},
        )


class Upsample1d(_Upsample):
    """`size` times as many places: "nearest" repeats each value, "linear" interpolates between the places' middles.

    Input (length, channels).  Linear is that of PyTorch and Keras: output place o lies at (o + 1/2) / size - 1/2 of the
    input, and the ends are held.
    """

    axes: ClassVar[int] = 1


class Upsample2d(_Upsample):
    """`Upsample1d` on two axes (bilinear); input (height, width, channels), `size` a number or [height, width]."""

    axes: ClassVar[int] = 2


class Upsample3d(_Upsample):
    """`Upsample1d` on three axes; input (depth, height, width, channels), `size` a number or [depth, height, width]."""

    axes: ClassVar[int] = 3
