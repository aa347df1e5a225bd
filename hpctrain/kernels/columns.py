"""Sums over the rows of a matrix, and linear maps of its columns: the two passes of every normalisation over positions.

A matrix (n, channels) of few channels makes short loops.  So it is seen as lines of `line_width(channels)` numbers,
which hold several rows side by side; a sum is taken for each place of a line, and the places of a channel are added at
the end.  What is left behind the last whole line is a line of its own, a short one.  Sums over eight lines are taken in
the array's type, everything else in float64.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import keep_apart, view

_LINE = 256
_SAMPLES = 16

# For maps: a number's bits do not depend on its place in a line.
_AS_WRITTEN = {"contract"}


def line_width(channels: int) -> int:
    """Return the numbers of a line: the largest multiple of `channels` up to 256, or `channels`."""
    return channels * max(1, _LINE // channels)


@kernel(no_cpython_wrapper=True)
def column_shift(x: np.ndarray, start: int, size: int, channels: int, width: int, shift: np.ndarray) -> None:
    """shift[j] = the mean of channel j over some lines, spread evenly: near enough to the mean to subtract it first.

    x: flat, the matrix is x[start : start + size]; shift (width,): a channel's value stands at each of its places.
    """
    keep_apart()
    lines = size // width
    if lines == 0:
        width, lines = size, 1
    step = max(1, lines // _SAMPLES)
    zero = x.dtype.type(0)
    for j in range(shift.size):
        shift[j] = zero
    taken = 0
    for i in range(0, lines, step):
        line = view(x, start + i * width, (width,))
        for j in range(width):
            shift[j] += line[j]
        taken += width // channels
    for j in range(channels):
        total = 0.0
        for place in range(j, width, channels):
            total += shift[place]
        shift[j] = total / max(taken, 1)
    for j in range(channels, shift.size):
        shift[j] = shift[j - channels]


@kernel(no_cpython_wrapper=True)
def _add_lines(x, total):  # noqa: ANN001, ANN202
    keep_apart()
    whole = x.shape[0] // 8 * 8
    for i in range(0, whole, 8):
        for j in range(x.shape[1]):
            low = (x[i, j] + x[i + 1, j]) + (x[i + 2, j] + x[i + 3, j])
            high = (x[i + 4, j] + x[i + 5, j]) + (x[i + 6, j] + x[i + 7, j])
            total[j] += low + high
    for i in range(whole, x.shape[0]):
        for j in range(x.shape[1]):
            total[j] += x[i, j]


@kernel(no_cpython_wrapper=True)
def column_sums(x: np.ndarray, start: int, size: int, width: int, total: np.ndarray) -> None:
    """total[j] = sum of x over the lines, at each place j of a line; total (width,) float64."""
    keep_apart()
    lines = size // width
    for j in range(width):
        total[j] = 0.0
    _add_lines(view(x, start, (lines, width)), total)
    _add_lines(view(x, start + lines * width, (1, size - lines * width)), total)


@kernel(no_cpython_wrapper=True)
def _add_moments(x, shift, first, second):  # noqa: ANN001, ANN202
    keep_apart()
    whole = x.shape[0] // 8 * 8
    for i in range(0, whole, 8):
        for j in range(x.shape[1]):
            s = shift[j]
            a, b, c, d = x[i, j] - s, x[i + 1, j] - s, x[i + 2, j] - s, x[i + 3, j] - s
            e, f, g, h = x[i + 4, j] - s, x[i + 5, j] - s, x[i + 6, j] - s, x[i + 7, j] - s
            first[j] += ((a + b) + (c + d)) + ((e + f) + (g + h))
            second[j] += ((a * a + b * b) + (c * c + d * d)) + ((e * e + f * f) + (g * g + h * h))
    for i in range(whole, x.shape[0]):
        for j in range(x.shape[1]):
            a = x[i, j] - shift[j]
            first[j] += a
            second[j] += a * a


@kernel(no_cpython_wrapper=True)
def column_moments(
    x: np.ndarray, start: int, size: int, width: int, shift: np.ndarray, first: np.ndarray, second: np.ndarray
) -> None:
    """first[j] = sum of x - shift[j] over the lines, second[j] = sum of (x - shift[j])^2; float64."""
    keep_apart()
    lines = size // width
    for j in range(width):
        first[j], second[j] = 0.0, 0.0
    _add_moments(view(x, start, (lines, width)), shift, first, second)
    _add_moments(view(x, start + lines * width, (1, size - lines * width)), shift, first, second)


@kernel(no_cpython_wrapper=True)
def _add_slopes(x, dy, center, factor, offset, relu, first, second):  # noqa: ANN001, ANN202
    keep_apart()
    zero = x.dtype.type(0)
    whole = x.shape[0] // 4 * 4
    for i in range(0, whole, 4):
        if relu:
            for j in range(x.shape[1]):
                m, f, o = center[j], factor[j], offset[j]
                a, b, c, d = x[i, j] - m, x[i + 1, j] - m, x[i + 2, j] - m, x[i + 3, j] - m
                p = zero if a * f + o <= zero else dy[i, j]
                q = zero if b * f + o <= zero else dy[i + 1, j]
                r = zero if c * f + o <= zero else dy[i + 2, j]
                s = zero if d * f + o <= zero else dy[i + 3, j]
                first[j] += (p + q) + (r + s)
                second[j] += (p * a + q * b) + (r * c + s * d)
        else:
            for j in range(x.shape[1]):
                m = center[j]
                a, b, c, d = x[i, j] - m, x[i + 1, j] - m, x[i + 2, j] - m, x[i + 3, j] - m
                p, q, r, s = dy[i, j], dy[i + 1, j], dy[i + 2, j], dy[i + 3, j]
                first[j] += (p + q) + (r + s)
                second[j] += (p * a + q * b) + (r * c + s * d)
    for i in range(whole, x.shape[0]):
        for j in range(x.shape[1]):
            a = x[i, j] - center[j]
            p = zero if relu and a * factor[j] + offset[j] <= zero else dy[i, j]
            first[j] += p
            second[j] += p * a


@kernel(no_cpython_wrapper=True)
def column_slopes(x, dy, start, size, width, center, factor, offset, relu, first, second):  # noqa: ANN001, ANN201
    """first[j] = sum of g over the lines, second[j] = sum of g (x - center[j]); float64.

    g is dy; with `relu`, zero where factor[j] (x - center[j]) + offset[j] <= 0.
    """
    keep_apart()
    lines = size // width
    for j in range(width):
        first[j], second[j] = 0.0, 0.0
    left = (1, size - lines * width)
    x_lines, dy_lines = view(x, start, (lines, width)), view(dy, start, (lines, width))
    _add_slopes(x_lines, dy_lines, center, factor, offset, relu, first, second)
    x_left, dy_left = view(x, start + lines * width, left), view(dy, start + lines * width, left)
    _add_slopes(x_left, dy_left, center, factor, offset, relu, first, second)


@kernel(no_cpython_wrapper=True, fastmath=_AS_WRITTEN)
def map_columns(x, y, start, size, width, center, factor, offset, relu, line):  # noqa: ANN001, ANN201
    """y = factor[j] (x - center[j]) + offset[j], at each place j of a line; with `relu` max(y, 0).  y may be x.

    line (width,): scratch.  Results go there first, because a loop whose result may be its input is not vectorised.
    """
    keep_apart()
    zero = x.dtype.type(0)
    for at in range(0, size, width):
        count = min(width, size - at)
        source, target = view(x, start + at, (count,)), view(y, start + at, (count,))
        if relu:
            for j in range(count):
                value = (source[j] - center[j]) * factor[j] + offset[j]
                line[j] = zero if value <= zero else value
        else:
            for j in range(count):
                line[j] = (source[j] - center[j]) * factor[j] + offset[j]
        for j in range(count):
            target[j] = line[j]


@kernel(no_cpython_wrapper=True, fastmath=_AS_WRITTEN)
def map_slopes(x, dy, dx, start, size, width, center, factor, offset, relu, base, slope, line):  # noqa: ANN001, ANN201
    """dx = factor[j] g - base[j] - slope[j] (x - center[j]), g as in `column_slopes`.  dx may be dy; line: scratch."""
    keep_apart()
    zero = x.dtype.type(0)
    for at in range(0, size, width):
        count = min(width, size - at)
        source, given = view(x, start + at, (count,)), view(dy, start + at, (count,))
        target = view(dx, start + at, (count,))
        if relu:
            for j in range(count):
                a = source[j] - center[j]
                g = zero if a * factor[j] + offset[j] <= zero else given[j]
                line[j] = factor[j] * g - (base[j] + slope[j] * a)
        else:
            for j in range(count):
                line[j] = factor[j] * given[j] - (base[j] + slope[j] * (source[j] - center[j]))
        for j in range(count):
            target[j] = line[j]


@kernel(no_cpython_wrapper=True)
def place_sum(total: np.ndarray, channel: int, channels: int) -> float:
    """Sum the places of a channel in a line of sums."""
    keep_apart()
    result = 0.0
    for place in range(channel, total.size, channels):
        result += total[place]
    return result
