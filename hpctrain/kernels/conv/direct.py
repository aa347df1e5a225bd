"""Convolution and its two transposes on images of three axes, one example at a time.

One and two axes are three with axes of length 1.  An example that needs a border of zeros is first copied into a
bordered buffer: the buffer stays in the cache, and the tiles need no cases.  The three products, for one example, with
taps t, output places o, stride s, dilation d and leading padding p:

    gather    y[o, n]    = sum_t,c x[o s + t d - p, c] w[t, c, n]          a convolution; dx of a transposed one
    spread    x[i, c]    = sum_t,n y[o, n] w[t, c, n], o s + t d - p = i   dx of a convolution; a transposed one
    weights   dw[t, c, n] += sum_o x[o s + t d - p, c] y[o, n]

A spread with stride s is s^3 gathers, one for each phase i + p mod s: nothing is multiplied by zeros put between.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.conv.sizes import Sizes, phase
from hpctrain.kernels.conv.strip import ALONE, Goal, Grid, strip
from hpctrain.kernels.conv.tile import (
    ACCUMULATE,
    LANES,
    Trips,
    Walk,
    address,
    address_of_one,
    copy_bytes,
    item_bytes,
)
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import keep_apart

# Bytes of an output gradient that weight gradients pass over at a time: they stay in the first-level cache.
_BLOCK_BYTES = 16384


@kernel(no_cpython_wrapper=True)
def put_inside(source, y, options, inner, out, low, outer):  # noqa: ANN001, ANN201
    """Copy an example of `inner` places (d, h, w) into `out` of `outer` places, from `low` on.

    options: the element of source that the example begins at; its channels; whether an element is zero where y <= 0
    (the gradient behind a ReLU).  The border of `out` is not touched.
    """
    keep_apart()
    zero, (offset, channels, masked) = source.dtype.type(0), options
    size, run = item_bytes(zero), inner[2] * channels
    for i in range(inner[0]):
        for j in range(inner[1]):
            start = offset + (i * inner[1] + j) * run
            to = (((i + low[0]) * outer[1] + j + low[1]) * outer[2] + low[2]) * channels
            if masked:
                # Slices, because LLVM vectorises a loop whose indices begin at 0.
                row, values, signs = out[to : to + run], source[start : start + run], y[start : start + run]
                for e in range(run):
                    row[e] = zero if signs[e] <= zero else values[e]
            else:
                copy_bytes(address(out) + to * size, address(source) + start * size, run * size)


@kernel(no_cpython_wrapper=True)
def turn_weights(weight: np.ndarray, s: Sizes, out: np.ndarray) -> None:
    """Write the weights of a spread: for each phase and group its taps in falling order, each turned to (out, in)."""
    keep_apart()
    inner, outer, n = s.in_channels // s.groups, s.out_channels // s.groups, s.out_channels
    to = 0
    for r_d in range(s.stride_d):
        t_d, step_d, n_d, _, _, _, _ = phase(r_d, s.k_d, s.stride_d, s.dilation_d, s.pad_d, s.x_d)
        for r_h in range(s.stride_h):
            t_h, step_h, n_h, _, _, _, _ = phase(r_h, s.k_h, s.stride_h, s.dilation_h, s.pad_h, s.x_h)
            for r_w in range(s.stride_w):
                t_w, step_w, n_w, _, _, _, _ = phase(r_w, s.k_w, s.stride_w, s.dilation_w, s.pad_w, s.x_w)
                for group in range(s.groups):
                    for tap in range(n_d * n_h * n_w - 1, -1, -1):
                        d = t_d + tap // (n_h * n_w) * step_d
                        h = t_h + tap // n_w % n_h * step_h
                        w = t_w + tap % n_w * step_w
                        start = ((d * s.k_h + h) * s.k_w + w) * inner * n + group * outer
                        for j in range(outer):
                            for c in range(inner):
                                out[to + j * inner + c] = weight[start + c * n + j]
                        to += outer * inner


@kernel(no_cpython_wrapper=True)
def sweep(zero, y, y_strides, count, columns, x, x_strides, b, b_row, taps, tap_strides, run, finish):  # noqa: ANN001, ANN201
    """y[o, j] = sum over taps t and k < run of x[o, t, k] b[t, k, j] for all output places o of one example.

    y, x and b are addresses; strides are in elements and belong to the axes d, h, w; `count`: output places; `taps` per
    axis, their weights following each other in rows of b_row elements, `run` rows a tap; `finish`: the address of the
    bias, and the mode.
    """
    keep_apart()
    size = item_bytes(zero)
    plane, row = taps[1] * taps[2] * run, taps[2] * run
    # The taps along w follow each other in x: one long run.
    together = taps[2] <= 1 or tap_strides[2] == run or taps[0] * taps[1] == 0
    bias, mode = finish
    grid = Grid(count[0], count[1], y_strides[0], y_strides[1], x_strides[0], x_strides[1])
    for j in range(0, columns, 2 * LANES):
        width, to, b_start, bias_start = min(2 * LANES, columns - j), y + j * size, b + j * size, bias + j * size
        if together:
            goal = Goal(to, y_strides[2], count[2], width, bias_start, mode, 1)
            a = Walk(x, x_strides[2], 1, tap_strides[1], tap_strides[0])
            walk = Walk(b_start, 0, b_row, row * b_row, plane * b_row)
            strip(zero, grid, goal, a, walk, Trips(row, taps[1], taps[0]))
            continue
        for t in range(taps[0]):
            now = (mode if t == taps[0] - 1 else 0) | (ACCUMULATE if t > 0 else 0)
            goal = Goal(to, y_strides[2], count[2], width, bias_start, now, taps[0] == 1)
            a = Walk(x + t * tap_strides[0] * size, x_strides[2], 1, tap_strides[2], tap_strides[1])
            walk = Walk(b_start + t * plane * b_row * size, 0, b_row, run * b_row, row * b_row)
            strip(zero, grid, goal, a, walk, Trips(run, taps[2], taps[1]))


@kernel(no_cpython_wrapper=True)
def gather(zero, y, x, outer, weight, finish, s):  # noqa: ANN001, ANN201
    """Compute the outputs of one example; `outer`: axes of the bordered image at x; all arrays by their addresses."""
    keep_apart()
    size, c, n = item_bytes(zero), s.in_channels, s.out_channels
    run, columns = c // s.groups, n // s.groups
    row, plane = outer[2] * c, outer[1] * outer[2] * c
    for group in range(s.groups):
        sweep(
            zero,
            y + group * columns * size,
            (s.y_h * s.y_w * n, s.y_w * n, n),
            (s.y_d, s.y_h, s.y_w),
            columns,
            x + group * run * size,
            (s.stride_d * plane, s.stride_h * row, s.stride_w * c),
            weight + group * columns * size,
            n,
            (s.k_d, s.k_h, s.k_w),
            (s.dilation_d * plane, s.dilation_h * row, s.dilation_w * c),
            run,
            (finish[0] + group * columns * size, finish[1]),
        )


@kernel(no_cpython_wrapper=True)
def spread(zero, x, y, low, outer, turned, finish, s):  # noqa: ANN001, ANN201
    """Compute an example's image from its bordered outputs at y (`low`, `outer`: border before, axes with the border).

    `turned` are the weights as `turn_weights` writes them; all arrays by their addresses; every place of x is stored.
    """
    keep_apart()
    size, c, n = item_bytes(zero), s.in_channels, s.out_channels
    columns, run = c // s.groups, n // s.groups
    x_row, x_plane = s.x_w * c, s.x_h * s.x_w * c
    y_row, y_plane = outer[2] * n, outer[1] * outer[2] * n
    weights = turned
    for r_d in range(s.stride_d):
        _, _, n_d, y_d, step_d, x_d, count_d = phase(r_d, s.k_d, s.stride_d, s.dilation_d, s.pad_d, s.x_d)
        for r_h in range(s.stride_h):
            _, _, n_h, y_h, step_h, x_h, count_h = phase(r_h, s.k_h, s.stride_h, s.dilation_h, s.pad_h, s.x_h)
            for r_w in range(s.stride_w):
                _, _, n_w, y_w, step_w, x_w, count_w = phase(r_w, s.k_w, s.stride_w, s.dilation_w, s.pad_w, s.x_w)
                start = y + ((y_d + low[0]) * y_plane + (y_h + low[1]) * y_row + (y_w + low[2]) * n) * size
                to = x + (x_d * x_plane + x_h * x_row + x_w * c) * size
                for group in range(s.groups):
                    sweep(
                        zero,
                        to + group * columns * size,
                        (s.stride_d * x_plane, s.stride_h * x_row, s.stride_w * c),
                        (count_d, count_h, count_w),
                        columns,
                        start + group * run * size,
                        (y_plane, y_row, n),
                        weights,
                        columns,
                        (n_d, n_h, n_w),
                        (step_d * y_plane, step_h * y_row, step_w * n),
                        run,
                        (finish[0] + group * columns * size, finish[1]),
                    )
                    weights += n_d * n_h * n_w * run * columns * size


@kernel(no_cpython_wrapper=True)
def add_weights(zero, d_weight, x, outer, y, y_row, y_plane, s):  # noqa: ANN001, ANN201
    """Add one example's products to the gradient of the weights.

    x: the bordered image with axes `outer`; y: the outputs' gradient, y_row and y_plane elements from row to row
    and from plane to plane.
    """
    keep_apart()
    size, c, n = item_bytes(zero), s.in_channels, s.out_channels
    inner, columns = c // s.groups, n // s.groups
    row, plane = outer[2] * c, outer[1] * outer[2] * c
    # One run over the taps along w and their channels, where these follow each other in x.
    together = s.groups == 1 and s.dilation_w == 1
    run, runs = (s.k_w * inner, 1) if together else (inner, s.k_w)
    rows = max(1, min(s.y_h, _BLOCK_BYTES // (s.y_w * n * size)))
    planes = max(1, min(s.y_d, _BLOCK_BYTES // (s.y_h * s.y_w * n * size)))
    for d in range(0, s.y_d, planes):
        for h in range(0, s.y_h, rows):
            trips = Trips(s.y_w, min(rows, s.y_h - h), min(planes, s.y_d - d))
            x_block = x + (d * s.stride_d * plane + h * s.stride_h * row) * size
            y_block = y + (d * y_plane + h * y_row) * size
            for tap in range(s.k_d * s.k_h * runs):
                t_d, t_h, t_w = tap // (s.k_h * runs), tap // runs % s.k_h, tap % runs
                start = (
                    x_block + (t_d * s.dilation_d * plane + t_h * s.dilation_h * row + t_w * s.dilation_w * c) * size
                )
                to = d_weight + tap * run * n * size
                for group in range(s.groups):
                    a = Walk(start + group * inner * size, 1, s.stride_w * c, s.stride_h * row, s.stride_d * plane)
                    for j in range(0, columns, 2 * LANES):
                        at = (group * columns + j) * size
                        b = Walk(y_block + at, 0, n, y_row, y_plane)
                        width = min(2 * LANES, columns - j)
                        strip(zero, ALONE, Goal(to + at, n, run, width, 0, ACCUMULATE, 0), a, b, trips)


@kernel(no_cpython_wrapper=True)
def add_column_sums(zero, out, values, count, columns):  # noqa: ANN001, ANN201
    """out[j] += sum_i values[i, j], `count` rows that follow each other; both by their addresses."""
    keep_apart()
    one = address_of_one(zero)
    for j in range(0, columns, 2 * LANES):
        at, width = j * item_bytes(zero), min(2 * LANES, columns - j)
        b = Walk(values + at, 0, columns, 0, 0)
        strip(zero, ALONE, Goal(out + at, 0, 1, width, 0, ACCUMULATE, 0), Walk(one, 0, 0, 0, 0), b, Trips(count, 1, 1))
