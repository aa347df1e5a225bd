"""Pooling: the largest or the average value of windows on one to three axes, and of all positions of an example.

Images are flat, channels last.  Work goes by rows of the output: one tap of the window after the other is taken for a
whole row, which stays in the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpctrain.kernels.columns import column_sums, place_sum
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.pieces import add_rows, copy_rows, maximum_rows, take_rows, take_rows_added
from hpctrain.kernels.views import keep_apart, view


class Window(NamedTuple):
    """Sizes of a pooling; axes are d, h, w: image x, output y, window k, stride, padding before; channels.

    once: 1 where every place of the image lies in exactly one window (see `covers_once`).
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
    pad_d: int
    pad_h: int
    pad_w: int
    channels: int
    once: int


def covers_once(x: int, y: int, k: int, stride: int, pad: int) -> bool:
    """Whether windows cover every place of an axis exactly once."""
    return k == stride and pad == 0 and y * k == x


@kernel(no_cpython_wrapper=True)
def _inside(place: int, k: int, stride: int, pad: int, size: int) -> tuple[int, int]:
    """The places [first, stop) of the image that an output place's window holds."""
    first = place * stride - pad
    return max(first, 0), min(first + k, size)


@kernel(no_cpython_wrapper=True)
def _met(tap: int, stride: int, pad: int, size: int, places: int) -> tuple[int, int, int]:
    """The output places [first, stop) whose tap meets the image, and the image's place for the first."""
    first = (pad - tap + stride - 1) // stride if tap < pad else 0
    return first, min(places, (size - 1 + pad - tap) // stride + 1), first * stride - pad + tap


@kernel
def max_pool_forward(x, y, rows, *sizes):  # noqa: ANN001, ANN002, ANN201
    """y[i, o, c] = max over the window's places u = o stride - pad + t inside the image of x[i, u, c]; NaN wins.

    x, y: flat; sizes: the fields of `Window`.
    """
    keep_apart()
    s = Window(*sizes)
    n = s.channels
    for line in range(rows * s.y_d * s.y_h):
        image, o_d, o_h = line // (s.y_d * s.y_h), line // s.y_h % s.y_d, line % s.y_h
        at = line * s.y_w * n
        out = view(y, at, (s.y_w * n,))
        for j in range(out.size):
            out[j] = -np.inf
        d_0, d_1 = _inside(o_d, s.k_d, s.stride_d, s.pad_d, s.x_d)
        h_0, h_1 = _inside(o_h, s.k_h, s.stride_h, s.pad_h, s.x_h)
        for d in range(d_0, d_1):
            for h in range(h_0, h_1):
                start = ((image * s.x_d + d) * s.x_h + h) * s.x_w * n
                for t in range(s.k_w):
                    first, stop, w = _met(t, s.stride_w, s.pad_w, s.x_w, s.y_w)
                    maximum_rows(x, y, start + w * n, s.stride_w * n, at + first * n, n, stop - first, n)


@kernel
def max_pool_backward(x, y, dy, dx, left, rows, *sizes):  # noqa: ANN001, ANN002, ANN201
    """dx[i, u, c] = sum of dy[i, o, c] over the windows o whose first largest value (in the order of places) is at u.

    left (y_w channels,): scratch, what of a row of dy has not found its place yet; sizes as in the forward pass.
    """
    keep_apart()
    s = Window(*sizes)
    n, zero = s.channels, dx.dtype.type(0)
    if s.once == 0:
        for j in range(dx.size):
            dx[j] = zero
    for line in range(rows * s.y_d * s.y_h):
        image, o_d, o_h = line // (s.y_d * s.y_h), line // s.y_h % s.y_d, line % s.y_h
        at = line * s.y_w * n
        given = view(dy, at, (s.y_w * n,))
        for j in range(given.size):
            left[j] = given[j]
        d_0, d_1 = _inside(o_d, s.k_d, s.stride_d, s.pad_d, s.x_d)
        h_0, h_1 = _inside(o_h, s.k_h, s.stride_h, s.pad_h, s.x_h)
        for d in range(d_0, d_1):
            for h in range(h_0, h_1):
                start = ((image * s.x_d + d) * s.x_h + h) * s.x_w * n
                for t in range(s.k_w):
                    first, stop, w = _met(t, s.stride_w, s.pad_w, s.x_w, s.y_w)
                    u, v = start + w * n, first * n
                    if s.once:
                        take_rows(x, y, left, dx, u, s.stride_w * n, at + v, v, stop - first, n)
                    else:
                        take_rows_added(x, y, left, dx, u, s.stride_w * n, at + v, v, stop - first, n)


@kernel
def avg_pool_forward(x, y, rows, *sizes):  # noqa: ANN001, ANN002, ANN201
    """y[i, o, c] = mean over the window's places inside the image of x[i, u, c]: padding is not counted."""
    keep_apart()
    s = Window(*sizes)
    n, one, zero = s.channels, x.dtype.type(1), x.dtype.type(0)
    for line in range(rows * s.y_d * s.y_h):
        image, o_d, o_h = line // (s.y_d * s.y_h), line // s.y_h % s.y_d, line % s.y_h
        at = line * s.y_w * n
        out = view(y, at, (s.y_w, n))
        for o in range(s.y_w):
            for j in range(n):
                out[o, j] = zero
        d_0, d_1 = _inside(o_d, s.k_d, s.stride_d, s.pad_d, s.x_d)
        h_0, h_1 = _inside(o_h, s.k_h, s.stride_h, s.pad_h, s.x_h)
        for d in range(d_0, d_1):
            for h in range(h_0, h_1):
                start = ((image * s.x_d + d) * s.x_h + h) * s.x_w * n
                for t in range(s.k_w):
                    first, stop, w = _met(t, s.stride_w, s.pad_w, s.x_w, s.y_w)
                    add_rows(x, y, start + w * n, s.stride_w * n, at + first * n, n, stop - first, n)
        for o in range(s.y_w):
            w_0, w_1 = _inside(o, s.k_w, s.stride_w, s.pad_w, s.x_w)
            part = one / x.dtype.type((d_1 - d_0) * (h_1 - h_0) * (w_1 - w_0))
            for j in range(n):
                out[o, j] *= part


@kernel
def avg_pool_backward(dy, dx, left, rows, *sizes):  # noqa: ANN001, ANN002, ANN201
    """dx[i, u, c] = sum over the windows o that hold u of dy[i, o, c] / places of o inside the image.

    left (y_w channels,): scratch, a row of dy / places.
    """
    keep_apart()
    s = Window(*sizes)
    n, one, zero = s.channels, dx.dtype.type(1), dx.dtype.type(0)
    if s.once == 0:
        for j in range(dx.size):
            dx[j] = zero
    share = view(left, np.int64(0), (s.y_w, n))
    for line in range(rows * s.y_d * s.y_h):
        image, o_d, o_h = line // (s.y_d * s.y_h), line // s.y_h % s.y_d, line % s.y_h
        given = view(dy, line * s.y_w * n, (s.y_w, n))
        d_0, d_1 = _inside(o_d, s.k_d, s.stride_d, s.pad_d, s.x_d)
        h_0, h_1 = _inside(o_h, s.k_h, s.stride_h, s.pad_h, s.x_h)
        for o in range(s.y_w):
            w_0, w_1 = _inside(o, s.k_w, s.stride_w, s.pad_w, s.x_w)
            part = one / dx.dtype.type((d_1 - d_0) * (h_1 - h_0) * (w_1 - w_0))
            for j in range(n):
                share[o, j] = given[o, j] * part
        for d in range(d_0, d_1):
            for h in range(h_0, h_1):
                start = ((image * s.x_d + d) * s.x_h + h) * s.x_w * n
                for t in range(s.k_w):
                    first, stop, w = _met(t, s.stride_w, s.pad_w, s.x_w, s.y_w)
                    u = start + w * n
                    if s.once:
                        copy_rows(left, dx, first * n, n, u, s.stride_w * n, stop - first, n)
                    else:
                        add_rows(left, dx, first * n, n, u, s.stride_w * n, stop - first, n)


@kernel
def global_avg_forward(x, y, totals):  # noqa: ANN001, ANN201
    """y[i, c] = mean over the positions of x[i, u, c]; x flat, y (rows, channels); sums end in float64.

    totals (2 width,): scratch, width = columns.line_width(channels).
    """
    keep_apart()
    rows, channels = y.shape
    width = totals.size // 2
    sums = view(totals.view(np.float64), np.int64(0), (width,))
    size = x.size // max(rows, 1)
    positions = size // channels
    for i in range(rows):
        column_sums(x, i * size, size, width, sums)
        for c in range(channels):
            y[i, c] = place_sum(sums, c, channels) / positions


@kernel
def global_avg_backward(dy, dx, line):  # noqa: ANN001, ANN201
    """dx[i, u, c] = dy[i, c] / positions; dx flat, dy (rows, channels); line (width,): scratch."""
    keep_apart()
    rows, channels = dy.shape
    size = dx.size // max(rows, 1)
    part = dx.dtype.type(1.0 / max(size // channels, 1))
    for i in range(rows):
        for c in range(channels):
            line[c] = dy[i, c] * part
        for j in range(channels, line.size):
            line[j] = line[j - channels]
        for at in range(0, size, line.size):
            out = view(dx, i * size + at, (min(line.size, size - at),))
            for j in range(out.size):
                out[j] = line[j]
