"""The kernels that convolution layers call: whole micro-batches, forward and backward."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.conv.direct import (
    add_column_sums,
    add_weights,
    gather,
    put_inside,
    spread,
    turn_weights,
)
from hpctrain.kernels.conv.sizes import Sizes
from hpctrain.kernels.conv.tile import BIAS, RELU, address, item_bytes
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import keep_apart, view

IMAGE_GRADIENT = 8
"""Bit of a backward pass's `mode`, beside BIAS and RELU: compute dx, too."""

# A copy without a mask, sums without a bias: typed, because numba compiles a function anew for each literal number.
_PLAIN = np.int64(0)


@kernel(no_cpython_wrapper=True)
def _clear(out: np.ndarray) -> None:
    keep_apart()
    for i in range(out.size):
        out[i] = 0.0


@kernel
def convolve(x, weight, bias, y, image, rows, mode, *sizes):  # noqa: ANN001, ANN002, ANN201
    """y[i, o, n] = b[n] + sum_t,c x[i, o s + t d - p, c] w[t, c, n]; then max(y, 0) where `mode` has RELU.

    x, y, image: flat; weight (taps.., in / groups, out); image: scratch for one example with its border (empty where no
    border is needed); mode: sum of BIAS and RELU; sizes: the fields of `Sizes`.
    """
    keep_apart()
    s = Sizes(*sizes)
    inner, pad = (s.x_d, s.x_h, s.x_w), (s.pad_d, s.pad_h, s.pad_w)
    outer = (s.image_d, s.image_h, s.image_w)
    copies, zero, size = outer != inner, x.dtype.type(0), item_bytes(x.dtype.type(0))
    x_floats = s.x_d * s.x_h * s.x_w * s.in_channels
    y_floats = s.y_d * s.y_h * s.y_w * s.out_channels
    if copies:
        _clear(image)
    for row in range(rows):
        start = address(x) + row * x_floats * size
        if copies:
            put_inside(x, x, (row * x_floats, s.in_channels, _PLAIN), inner, image, pad, outer)
            start = address(image)
        to = address(y) + row * y_floats * size
        gather(zero, to, start, outer, address(weight), (address(bias), mode), s)


@kernel
def convolve_backward(x, y, dy, weight, dx, d_weight, d_bias, image, turned, border, rows, mode, beta, *sizes):  # noqa: ANN001, ANN002, ANN201
    """dx[i, u, c] = sum_t,n dy[i, o, n] w[t, c, n] over o s + t d - p = u; dw = beta dw + sum_i,o x dy; db likewise.

    Where `mode` has RELU, dy counts as zero where y <= 0.  image as in `convolve`; turned: scratch as large as the
    weights; border: scratch for one example's dy with its border (without RELU and border: not used).  Without
    IMAGE_GRADIENT in `mode` dx and turned are not used.
    """
    keep_apart()
    s = Sizes(*sizes)
    inner, pad, out = (s.x_d, s.x_h, s.x_w), (s.pad_d, s.pad_h, s.pad_w), (s.y_d, s.y_h, s.y_w)
    outer, low, out_outer = (
        (s.image_d, s.image_h, s.image_w),
        (s.low_d, s.low_h, s.low_w),
        (s.border_d, s.border_h, s.border_w),
    )
    masked, needs_dx = mode & RELU, mode & IMAGE_GRADIENT
    if needs_dx == 0:
        low, out_outer = (0, 0, 0), out
    copies, copies_out = outer != inner, masked != 0 or out_outer != out
    zero, size = x.dtype.type(0), item_bytes(x.dtype.type(0))
    x_floats = s.x_d * s.x_h * s.x_w * s.in_channels
    y_floats = s.y_d * s.y_h * s.y_w * s.out_channels
    if beta == 0.0:
        _clear(view(d_weight, 0, (d_weight.size,)))
        if mode & BIAS:
            _clear(view(d_bias, 0, (d_bias.size,)))
    if copies:
        _clear(image)
    if copies_out:
        _clear(border)
    if needs_dx:
        turn_weights(view(weight, 0, (weight.size,)), s, turned)
    for row in range(rows):
        start, gradient = address(x) + row * x_floats * size, address(dy) + row * y_floats * size
        if copies:
            put_inside(x, x, (row * x_floats, s.in_channels, _PLAIN), inner, image, pad, outer)
            start = address(image)
        if copies_out:
            put_inside(dy, y, (row * y_floats, s.out_channels, masked), out, border, low, out_outer)
            gradient = address(border)
        y_row, y_plane = out_outer[2] * s.out_channels, out_outer[1] * out_outer[2] * s.out_channels
        first = gradient + (low[0] * y_plane + low[1] * y_row + low[2] * s.out_channels) * size
        add_weights(zero, address(d_weight), start, outer, first, y_row, y_plane, s)
        if mode & BIAS:
            # The border's zeros add nothing.
            count = out_outer[0] * out_outer[1] * out_outer[2]
            add_column_sums(zero, address(d_bias), gradient, count, s.out_channels)
        if needs_dx:
            to = address(dx) + row * x_floats * size
            spread(zero, to, gradient, low, out_outer, address(turned), (_PLAIN, _PLAIN), s)


@kernel
def transposed(x, weight, bias, y, turned, border, rows, mode, *sizes):  # noqa: ANN001, ANN002, ANN201
    """y[i, u, c] = b[c] + sum_t,n x[i, o, n] w[t, c, n] over o s + t d - p = u; then max(y, 0) where `mode` has RELU.

    It is the dx of a convolution whose image is y and whose output is x; `sizes` are that convolution's.
    """
    keep_apart()
    s = Sizes(*sizes)
    inner = (s.y_d, s.y_h, s.y_w)
    low, outer = (s.low_d, s.low_h, s.low_w), (s.border_d, s.border_h, s.border_w)
    copies, zero, size = outer != inner, x.dtype.type(0), item_bytes(x.dtype.type(0))
    in_floats = s.y_d * s.y_h * s.y_w * s.out_channels
    out_floats = s.x_d * s.x_h * s.x_w * s.in_channels
    turn_weights(view(weight, 0, (weight.size,)), s, turned)
    if copies:
        _clear(border)
    for row in range(rows):
        start = address(x) + row * in_floats * size
        if copies:
            put_inside(x, x, (row * in_floats, s.out_channels, _PLAIN), inner, border, low, outer)
            start = address(border)
        to = address(y) + row * out_floats * size
        spread(zero, to, start, low, outer, address(turned), (address(bias), mode), s)


@kernel
def transposed_backward(x, y, dy, weight, dx, d_weight, d_bias, image, rows, mode, beta, *sizes):  # noqa: ANN001, ANN002, ANN201
    """dx[i, o, n] = sum_t,c dy[i, o s + t d - p, c] w[t, c, n]; dw = beta dw + sum_i,o dy x; db = beta db + sum dy.

    Where `mode` has RELU, dy counts as zero where y <= 0.  image: scratch for one example's dy with its border (without
    RELU and border: not used); `sizes` as in `transposed`.
    """
    keep_apart()
    s = Sizes(*sizes)
    inner, pad = (s.x_d, s.x_h, s.x_w), (s.pad_d, s.pad_h, s.pad_w)
    outer = (s.image_d, s.image_h, s.image_w)
    masked, needs_dx = mode & RELU, mode & IMAGE_GRADIENT
    copies, zero, size = masked != 0 or outer != inner, x.dtype.type(0), item_bytes(x.dtype.type(0))
    in_floats = s.y_d * s.y_h * s.y_w * s.out_channels
    out_floats = s.x_d * s.x_h * s.x_w * s.in_channels
    if beta == 0.0:
        _clear(view(d_weight, 0, (d_weight.size,)))
        if mode & BIAS:
            _clear(view(d_bias, 0, (d_bias.size,)))
    if copies:
        _clear(image)
    for row in range(rows):
        values, gradient = address(x) + row * in_floats * size, address(dy) + row * out_floats * size
        if copies:
            put_inside(dy, y, (row * out_floats, s.in_channels, masked), inner, image, pad, outer)
            gradient = address(image)
        y_row, y_plane = s.y_w * s.out_channels, s.y_h * s.y_w * s.out_channels
        add_weights(zero, address(d_weight), gradient, outer, values, y_row, y_plane, s)
        if mode & BIAS:
            add_column_sums(zero, address(d_bias), gradient, outer[0] * outer[1] * outer[2], s.in_channels)
        if needs_dx:
            to = address(dx) + row * in_floats * size
            gather(zero, to, gradient, outer, address(weight), (_PLAIN, _PLAIN), s)
