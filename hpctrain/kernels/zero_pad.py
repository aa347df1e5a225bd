"""Zeros around images, and cutting them off again.  Images are flat, channels last, on three axes d, h, w."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel
def zero_pad_forward(
    x: np.ndarray,
    y: np.ndarray,
    rows: int,
    d: int,
    h: int,
    w: int,
    pad_d: int,
    pad_h: int,
    pad_w: int,
    after_d: int,
    after_h: int,
    after_w: int,
    channels: int,
) -> None:
    """y[i, pad_d + a, pad_h + b, pad_w + e, c] = x[i, a, b, e, c], and 0 around them.

    x (rows d h w channels,); pad_: zeros before each axis, after_: behind it.
    """
    y_d, y_h, line = pad_d + d + after_d, pad_h + h + after_h, (pad_w + w + after_w) * channels
    start, length = pad_w * channels, w * channels
    zero = y.dtype.type(0)
    for i in range(rows * y_d * y_h):
        a, b = i // y_h % y_d - pad_d, i % y_h - pad_h
        out = y[i * line : (i + 1) * line]
        if a < 0 or a >= d or b < 0 or b >= h:
            for j in range(line):
                out[j] = zero
        else:
            source = ((i // (y_d * y_h) * d + a) * h + b) * length
            given = x[source : source + length]
            for j in range(start):
                out[j] = zero
            middle = out[start : start + length]
            for j in range(length):
                middle[j] = given[j]
            for j in range(start + length, line):
                out[j] = zero


@kernel
def zero_pad_backward(
    dy: np.ndarray,
    dx: np.ndarray,
    rows: int,
    d: int,
    h: int,
    w: int,
    pad_d: int,
    pad_h: int,
    pad_w: int,
    after_d: int,
    after_h: int,
    after_w: int,
    channels: int,
) -> None:
    """dx[i, a, b, e, c] = dy[i, pad_d + a, pad_h + b, pad_w + e, c]; sizes as in the forward pass."""
    y_d, y_h, line = pad_d + d + after_d, pad_h + h + after_h, (pad_w + w + after_w) * channels
    length = w * channels
    for i in range(rows * d * h):
        a, b = i // h % d + pad_d, i % h + pad_h
        source = ((i // (d * h) * y_d + a) * y_h + b) * line + pad_w * channels
        given, out = dy[source : source + length], dx[i * length : (i + 1) * length]
        for j in range(length):
            out[j] = given[j]
