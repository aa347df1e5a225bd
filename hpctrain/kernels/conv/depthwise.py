"""Depthwise convolution: each channel by itself, vectorised over channels; taps are cut at the border."""

from __future__ import annotations

from hpctrain.kernels.conv.kernels import IMAGE_GRADIENT
from hpctrain.kernels.conv.sizes import Sizes
from hpctrain.kernels.conv.tile import BIAS
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import keep_apart, view


@kernel(no_cpython_wrapper=True)
def _first_and_stop(o: int, k: int, stride: int, dilation: int, pad: int, x_size: int) -> tuple[int, int, int]:
    """The taps [first, stop) of output place o that meet the image, and the image place of tap 0."""
    place = o * stride - pad
    first = 0 if place >= 0 else (-place + dilation - 1) // dilation
    stop = min(k, (x_size - 1 - place) // dilation + 1) if place < x_size else 0
    return first, max(first, stop), place


@kernel
def depthwise_forward(x, weight, bias, y, rows, mode, *sizes):  # noqa: ANN001, ANN002, ANN201
    """y[i, o, c m + j] = b[c m + j] + sum_t x[i, o s + t d - p, c] w[t, c m + j] for m outputs a channel.

    x, y: flat; weight (taps.., 1, channels m); mode: BIAS or 0; sizes: the fields of `Sizes`.
    """
    keep_apart()
    s = Sizes(*sizes)
    zero, w, n = x.dtype.type(0), view(weight, 0, (weight.size,)), s.out_channels
    b, m = view(bias, 0, (bias.size,)), s.out_channels // s.in_channels
    for place in range(rows * s.y_d * s.y_h * s.y_w):
        i, o_d = place // (s.y_d * s.y_h * s.y_w), place // (s.y_h * s.y_w) % s.y_d
        o_h, o_w = place // s.y_w % s.y_h, place % s.y_w
        d_0, d_1, x_d = _first_and_stop(o_d, s.k_d, s.stride_d, s.dilation_d, s.pad_d, s.x_d)
        h_0, h_1, x_h = _first_and_stop(o_h, s.k_h, s.stride_h, s.dilation_h, s.pad_h, s.x_h)
        w_0, w_1, x_w = _first_and_stop(o_w, s.k_w, s.stride_w, s.dilation_w, s.pad_w, s.x_w)
        to = place * n
        for j in range(n):
            y[to + j] = b[j] if mode & BIAS else zero
        for t_d in range(d_0, d_1):
            for t_h in range(h_0, h_1):
                line = (i * s.x_d + x_d + t_d * s.dilation_d) * s.x_h + x_h + t_h * s.dilation_h
                for t_w in range(w_0, w_1):
                    start = (line * s.x_w + x_w + t_w * s.dilation_w) * s.in_channels
                    tap = ((t_d * s.k_h + t_h) * s.k_w + t_w) * n
                    if m == 1:
                        for j in range(n):
                            y[to + j] += x[start + j] * w[tap + j]
                    else:
                        for j in range(n):
                            y[to + j] += x[start + j // m] * w[tap + j]


@kernel
def depthwise_backward(x, dy, weight, dx, d_weight, d_bias, rows, mode, beta, *sizes):  # noqa: ANN001, ANN002, ANN201
    """dx[i, u, c] = sum_t,j dy[i, o, c m + j] w[t, c m + j] over o s + t d - p = u; dw = beta dw + sum_i,o x dy.

    db[n] = beta db[n] + sum_i,o dy[i, o, n].  Without IMAGE_GRADIENT in `mode` dx is not used.
    """
    keep_apart()
    s = Sizes(*sizes)
    zero, w, n = x.dtype.type(0), view(weight, 0, (weight.size,)), s.out_channels
    dw, db, m = view(d_weight, 0, (d_weight.size,)), view(d_bias, 0, (d_bias.size,)), s.out_channels // s.in_channels
    needs_dx = mode & IMAGE_GRADIENT
    if beta == 0.0:
        for j in range(dw.size):
            dw[j] = zero
        if mode & BIAS:
            for j in range(n):
                db[j] = zero
    if needs_dx:
        for j in range(dx.size):
            dx[j] = zero
    for place in range(rows * s.y_d * s.y_h * s.y_w):
        i, o_d = place // (s.y_d * s.y_h * s.y_w), place // (s.y_h * s.y_w) % s.y_d
        o_h, o_w = place // s.y_w % s.y_h, place % s.y_w
        d_0, d_1, x_d = _first_and_stop(o_d, s.k_d, s.stride_d, s.dilation_d, s.pad_d, s.x_d)
        h_0, h_1, x_h = _first_and_stop(o_h, s.k_h, s.stride_h, s.dilation_h, s.pad_h, s.x_h)
        w_0, w_1, x_w = _first_and_stop(o_w, s.k_w, s.stride_w, s.dilation_w, s.pad_w, s.x_w)
        at = place * n
        if mode & BIAS:
            for j in range(n):
                db[j] += dy[at + j]
        for t_d in range(d_0, d_1):
            for t_h in range(h_0, h_1):
                line = (i * s.x_d + x_d + t_d * s.dilation_d) * s.x_h + x_h + t_h * s.dilation_h
                for t_w in range(w_0, w_1):
                    start = (line * s.x_w + x_w + t_w * s.dilation_w) * s.in_channels
                    tap = ((t_d * s.k_h + t_h) * s.k_w + t_w) * n
                    if m == 1:
                        for j in range(n):
                            dw[tap + j] += x[start + j] * dy[at + j]
                        if needs_dx:
                            for j in range(n):
                                dx[start + j] += w[tap + j] * dy[at + j]
                    else:
                        for j in range(n):
                            dw[tap + j] += x[start + j // m] * dy[at + j]
                            if needs_dx:
                                dx[start + j // m] += w[tap + j] * dy[at + j]
