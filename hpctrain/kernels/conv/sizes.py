"""The arithmetic of a convolution's places: sizes, borders of zeros, and the phases of a spread."""

from __future__ import annotations

from typing import NamedTuple

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import keep_apart

Axes = tuple[int, int, int]


class Sizes(NamedTuple):
    """All sizes of a convolution.  Axes are d, h, w.

    x image, y output, k kernel, then stride, dilation and leading padding; image: the image with the border that the
    convolution reads; low: the zeros before the output, and border: the output with zeros on both sides, as a spread
    (`direct.py`) reads it; channels of the image and of the output; groups.
    """

    x_d: int
    x_h: int
    x_w: int
    y_d: int
    y_h: int
    y_w: int
    k_d: int
    k_h: int
    k_w: int
    stride_d: int
    stride_h: int
    stride_w: int
    dilation_d: int
    dilation_h: int
    dilation_w: int
    pad_d: int
    pad_h: int
    pad_w: int
    image_d: int
    image_h: int
    image_w: int
    low_d: int
    low_h: int
    low_w: int
    border_d: int
    border_h: int
    border_w: int
    in_channels: int
    out_channels: int
    groups: int


@kernel(no_cpython_wrapper=True)
def _phase(
    r: int, k: int, stride: int, dilation: int, pad: int, x_size: int
) -> tuple[int, int, int, int, int, int, int]:
    first = 0
    while first < k and (first * dilation) % stride != r:
        first += 1
    common, rest = stride, dilation % stride
    while rest:
        common, rest = rest, common % rest
    tap_step, place_step = stride // common, dilation // common
    taps = 0 if first == k else (k - 1 - first) // tap_step + 1
    turn = max(0, (pad - r + stride - 1) // stride)
    place = turn * stride + r - pad
    count = 0 if place >= x_size else (x_size - 1 - place) // stride + 1
    start = turn - (first * dilation - r) // stride - (taps - 1) * place_step
    return first, tap_step, taps, start, place_step, place, count


@kernel(no_cpython_wrapper=True)
def phase(
    r: int, k: int, stride: int, dilation: int, pad: int, x_size: int
) -> tuple[int, int, int, int, int, int, int]:
    """One phase of a spread along one axis: the places i of the image with (i + pad) mod stride = r.

    Returns the first tap that meets them, the step between such taps, their number; the place in the output that the
    *last* of them reads for the first i, and the step from there to the tap before; the first i and the number of i.
    """
    keep_apart()
    return _phase(r, k, stride, dilation, pad, x_size)


def output_size(x_size: int, k: int, stride: int, dilation: int, pad_low: int, pad_high: int) -> int:
    """floor((x + pads - dilation (k - 1) - 1) / stride) + 1; less than 1 where the kernel does not fit."""
    return (x_size + pad_low + pad_high - dilation * (k - 1) - 1) // stride + 1


def sizes_of(
    x: Axes, y: Axes, k: Axes, stride: Axes, dilation: Axes, pad: Axes, in_channels: int, out_channels: int, groups: int
) -> Sizes:
    """Work out all sizes; `pad` is the padding before each axis."""
    image = (
        max((n - 1) * s + (taps - 1) * d + 1, size + low)
        for size, n, taps, s, d, low in zip(x, y, k, stride, dilation, pad, strict=True)
    )
    borders = [_spread_border(*axis) for axis in zip(y, k, stride, dilation, pad, x, strict=True)]
    lows, borders = zip(*borders, strict=True)
    return Sizes(*x, *y, *k, *stride, *dilation, *pad, *image, *lows, *borders, in_channels, out_channels, groups)


def _spread_border(y_size: int, k: int, stride: int, dilation: int, pad: int, x_size: int) -> tuple[int, int]:
    """The zeros that a spread needs before an output axis, and that axis's length with zeros on both sides."""
    low, stop = 0, y_size
    for r in range(stride):
        _, _, taps, start, place_step, _, count = _phase.py_func(r, k, stride, dilation, pad, x_size)
        if taps > 0 and count > 0:
            low = max(low, -start)
            stop = max(stop, start + (taps - 1) * place_step + count)
    return low, low + stop
