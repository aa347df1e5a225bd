"""Pooling layers: windows in one to three dimensions, and whole examples."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from hpctrain.errors import UserError
from hpctrain.kernels import padding, pooling
from hpctrain.kernels.columns import line_width
from hpctrain.kernels.conv.sizes import output_size
from hpctrain.kernels.pooling import Window, covers_once
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Layer, OnPadding, Shape
from hpctrain.nn.layers.conv_options import Padding, PerAxis, image_axes, pads_of, per_axis, three
from hpctrain.nn.layers.masks import check_mask, masked_layer

_FLAT: dict[str, Shape] = {name: () for name in ("x", "dx", "y", "dy")}


class _Pool(Layer):
    axes: ClassVar[int]

    size: PerAxis
    stride: PerAxis | None = None
    padding: Padding = "valid"

    def _window(self, in_shape: Shape) -> tuple[Shape, Window]:
        """The shape of the output, and what the kernels are told."""
        x, ones = image_axes(in_shape, self.axes), (1,) * self.axes
        k = per_axis(self.size, self.axes, "size")
        stride = k if self.stride is None else per_axis(self.stride, self.axes, "stride")
        low, high = pads_of(self.padding, x, k, stride, ones)
        y = tuple(output_size(*axis) for axis in zip(x, k, stride, ones, low, high, strict=True))
        if min(y) < 1:
            raise UserError(
                "the window is larger than the padded input",
                found=f"input {x}, size {k}, padding {low} before and {high} after",
                allowed="sizes of at most input + padding, on every axis",
                hint='use a smaller size, fewer layers that shrink the image, or padding = "same"',
            )
        if any(pad >= taps for pad, taps in zip(low, k, strict=True)):
            raise UserError(
                "a window could lie in the padding alone",
                found=f"size {k}, padding {low}",
                allowed="padding smaller than the size, on every axis",
            )
        once = all(covers_once(*axis) for axis in zip(x, y, k, stride, low, strict=True))
        values = (*three(x, 1), *three(y, 1), *three(k, 1), *three(stride, 1), *three(low, 0))
        return (*y, in_shape[-1]), Window(*values, in_shape[-1], int(once))


class _MaxPool(_Pool):
    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape (positions.., channels): floor((x + padding - size) / stride) + 1 positions on an axis."""
        return _max_pool(*self._window(in_shape))


def _max_pool(out_shape: Shape, window: Window) -> BuiltLayer:
    return BuiltLayer(
        out_shape=out_shape,
        forward=Call(pooling.max_pool_forward, ("x", "y", "rows", *window)),
        backward=Call(pooling.max_pool_backward, ("x", "y", "dy", "dx", "left", "rows", *window)),
        buffers={"left": Buffer((window.y_w * window.channels,), per_example=False, kept=False)},
        views=_FLAT,
    )


class MaxPool1d(_MaxPool):
    """y[o, c] = max of x[o stride - pad + t, c] over 0 <= t < size; of equal values the first has the gradient.

    Input (length, channels).  stride: `size` by default.  padding "valid": none; "same": ceil(length / stride) places;
    a number: that many on both sides.  Padding never is the largest.
    """

    axes: ClassVar[int] = 1


class MaxPool2d(_MaxPool):
    """The largest values of windows; input (height, width, channels), options as in `MaxPool1d`, a number or two."""

    axes: ClassVar[int] = 2


class MaxPool3d(_MaxPool):
    """The largest values of windows; input (depth, height, width, channels), options as in `MaxPool1d`."""

    axes: ClassVar[int] = 3


class _AvgPool(_Pool):
    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape (positions.., channels): floor((x + padding - size) / stride) + 1 positions on an axis."""
        out_shape, window = self._window(in_shape)
        return BuiltLayer(
            out_shape=out_shape,
            forward=Call(pooling.avg_pool_forward, ("x", "y", "rows", *window)),
            backward=Call(pooling.avg_pool_backward, ("dy", "dx", "left", "rows", *window)),
            buffers={"left": Buffer((window.y_w * window.channels,), per_example=False, kept=False)},
            views=_FLAT,
        )


class AvgPool1d(_AvgPool):
    """y[o, c] = mean of x[o stride - pad + t, c] over the 0 <= t < size that meet the input: padding is not counted.

    Input (length, channels); options as in `MaxPool1d`.
    """

    axes: ClassVar[int] = 1


class AvgPool2d(_AvgPool):
    """The means of windows; input (height, width, channels), options as in `AvgPool1d`, a number or two."""

    axes: ClassVar[int] = 2


class AvgPool3d(_AvgPool):
    """The means of windows; input (depth, height, width, channels), options as in `AvgPool1d`."""

    axes: ClassVar[int] = 3


def _positions(in_shape: Shape) -> int:
    if len(in_shape) < 2:
        raise UserError(
            "global pooling needs positions to pool over", found=str(in_shape), allowed="(positions.., channels)"
        )
    return math.prod(in_shape[:-1])


class _GlobalPool(Layer):
    inputs: ClassVar[int | None] = None
    on_padding: ClassVar[OnPadding] = "mask_ends"

    def build_many(self, in_shapes: tuple[Shape, ...]) -> BuiltLayer:
        """Take a mask (steps,) as a second input: positions whose first place it has 0 for are left out."""
        if len(in_shapes) == 1:
            return self.build(in_shapes[0])
        _positions(in_shapes[0])
        check_mask(in_shapes)
        return self._masked(in_shapes[0])

    @abstractmethod
    def _masked(self, in_shape: Shape) -> BuiltLayer: ...


class GlobalAvgPool(_GlobalPool):
    """y[c] = mean of x[.., c] over all positions (Lin et al. 2013, arXiv:1312.4400); any number of axes."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape is (channels,)."""  # noqa: D403 (a name in code)
        _positions(in_shape)
        channels = in_shape[-1]
        width = line_width(channels)
        return BuiltLayer(
            out_shape=(channels,),
            forward=Call(pooling.global_avg_forward, ("x", "y", "totals")),
            backward=Call(pooling.global_avg_backward, ("dy", "dx", "line")),
            buffers={
                "totals": Buffer((2 * width,), per_example=False, kept=False),
                "line": Buffer((width,), per_example=False, kept=False),
            },
            views={"x": (), "dx": ()},
        )

    def _masked(self, in_shape: Shape) -> BuiltLayer:
        steps, channels = in_shape[0], in_shape[-1]
        forward = Call(padding.masked_mean_forward, ("x0", "x1", "y", "totals", steps))
        backward = Call(padding.masked_mean_backward, ("x1", "dy", "dx0", steps))
        return masked_layer(in_shape, (channels,), forward, backward, totals=(2 * channels,))


class GlobalMaxPool(_GlobalPool):
    """y[c] = max of x[.., c] over all positions; any number of axes."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape is (channels,)."""  # noqa: D403 (a name in code)
        positions, one = _positions(in_shape), (1, 1, 1)
        line = (1, 1, positions)
        return _max_pool(in_shape[-1:], Window(*line, *one, *line, *line, 0, 0, 0, in_shape[-1], 1))

    def _masked(self, in_shape: Shape) -> BuiltLayer:
        steps, channels = in_shape[0], in_shape[-1]
        forward = Call(padding.masked_max_forward, ("x0", "x1", "y", steps))
        backward = Call(padding.masked_max_backward, ("x0", "x1", "y", "dy", "dx0", "left", steps))
        return masked_layer(in_shape, (channels,), forward, backward, left=(channels,))
