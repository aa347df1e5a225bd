"""Upsampling by whole factors, on one to three axes: repeated values, or linear interpolation between them.

Images are flat, channels last; axes are d, h, w.
"""

from __future__ import annotations

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.pieces import add_rows, copy_rows
from hpctrain.kernels.views import keep_apart


@kernel
def repeat_forward(x, y, rows, x_d, x_h, x_w, size_d, size_h, size_w, channels):  # noqa: ANN001, ANN201
    """y[i, o, c] = x[i, floor(o / size), c] on every axis; x, y flat."""
    keep_apart()
    y_d, y_h, n = x_d * size_d, x_h * size_h, channels
    for line in range(rows * y_d * y_h):
        image, o_d, o_h = line // (y_d * y_h), line // y_h % y_d, line % y_h
        start = ((image * x_d + o_d // size_d) * x_h + o_h // size_h) * x_w * n
        for t in range(size_w):
            copy_rows(x, y, start, n, (line * x_w * size_w + t) * n, size_w * n, x_w, n)


@kernel
def repeat_backward(dy, dx, rows, x_d, x_h, x_w, size_d, size_h, size_w, channels):  # noqa: ANN001, ANN201
    """dx[i, u, c] = sum of dy[i, o, c] over the places o with floor(o / size) = u."""
    keep_apart()
    y_d, y_h, n, zero = x_d * size_d, x_h * size_h, channels, dx.dtype.type(0)
    for j in range(dx.size):
        dx[j] = zero
    for line in range(rows * y_d * y_h):
        image, o_d, o_h = line // (y_d * y_h), line // y_h % y_d, line % y_h
        start = ((image * x_d + o_d // size_d) * x_h + o_h // size_h) * x_w * n
        for t in range(size_w):
            add_rows(dy, dx, (line * x_w * size_w + t) * n, size_w * n, start, n, x_w, n)


@kernel(no_cpython_wrapper=True)
def _between(o: int, size: int, length: int) -> tuple[int, int, float]:
    """The two places that output place o lies between, and the share of the second.

    The middle of place o is the middle of place (o + 1/2) / size - 1/2 of the input, cut off at its ends.
    """
    at = max((o + 0.5) / size - 0.5, 0.0)
    low = int(at)
    return low, min(low + 1, length - 1), at - low


@kernel
def interpolate_forward(x, y, rows, x_d, x_h, x_w, size_d, size_h, size_w, channels):  # noqa: ANN001, ANN201
    """y[i, o, c] = sum over the 2, 4 or 8 neighbours u of o of share(o, u) x[i, u, c]; shares as in `_between`."""
    keep_apart()
    y_d, y_h, y_w, n = x_d * size_d, x_h * size_h, x_w * size_w, channels
    for place in range(rows * y_d * y_h * y_w):
        image, o_d, o_h, o_w = place // (y_d * y_h * y_w), place // (y_h * y_w) % y_d, place // y_w % y_h, place % y_w
        d, h, w = _between(o_d, size_d, x_d), _between(o_h, size_h, x_h), _between(o_w, size_w, x_w)
        for corner in range(8):
            d_share = d[2] if corner & 4 else 1.0 - d[2]
            h_share = h[2] if corner & 2 else 1.0 - h[2]
            w_share = w[2] if corner & 1 else 1.0 - w[2]
            u_d, u_h, u_w = (
                (d[1] if corner & 4 else d[0]),
                (h[1] if corner & 2 else h[0]),
                (w[1] if corner & 1 else w[0]),
            )
            share = x.dtype.type(d_share * h_share * w_share)
            start = (((image * x_d + u_d) * x_h + u_h) * x_w + u_w) * n
            if corner == 0:
                for c in range(n):
                    y[place * n + c] = share * x[start + c]
            elif share != 0:
                for c in range(n):
                    y[place * n + c] += share * x[start + c]


@kernel
def interpolate_backward(dy, dx, rows, x_d, x_h, x_w, size_d, size_h, size_w, channels):  # noqa: ANN001, ANN201
    """dx[i, u, c] = sum over the places o of share(o, u) dy[i, o, c]."""
    keep_apart()
    y_d, y_h, y_w, n, zero = x_d * size_d, x_h * size_h, x_w * size_w, channels, dx.dtype.type(0)
    for j in range(dx.size):
        dx[j] = zero
    for place in range(rows * y_d * y_h * y_w):
        image, o_d, o_h, o_w = place // (y_d * y_h * y_w), place // (y_h * y_w) % y_d, place // y_w % y_h, place % y_w
        d, h, w = _between(o_d, size_d, x_d), _between(o_h, size_h, x_h), _between(o_w, size_w, x_w)
        for corner in range(8):
            d_share = d[2] if corner & 4 else 1.0 - d[2]
            h_share = h[2] if corner & 2 else 1.0 - h[2]
            w_share = w[2] if corner & 1 else 1.0 - w[2]
            u_d, u_h, u_w = (
                (d[1] if corner & 4 else d[0]),
                (h[1] if corner & 2 else h[0]),
                (w[1] if corner & 1 else w[0]),
            )
            share = dx.dtype.type(d_share * h_share * w_share)
            start = (((image * x_d + u_d) * x_h + u_h) * x_w + u_w) * n
            if share != 0:
                for c in range(n):
                    dx[start + c] += share * dy[place * n + c]
