"""Axes in another order."""

from __future__ import annotations

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import keep_apart


@kernel
def permute(x, y, rows, n_0, n_1, n_2, n_3, n_4, s_0, s_1, s_2, s_3, s_4):  # noqa: ANN001, ANN201
    """y[i, a, b, c, d, e] = x[i n_0 .. n_4 + a s_0 + b s_1 + c s_2 + d s_3 + e s_4]; y has axes n, contiguous; flat."""
    keep_apart()
    size, at = n_0 * n_1 * n_2 * n_3 * n_4, 0
    for i in range(rows):
        for a in range(n_0):
            for b in range(n_1):
                for c in range(n_2):
                    for d in range(n_3):
                        start = i * size + a * s_0 + b * s_1 + c * s_2 + d * s_3
                        if s_4 == 1:
                            for e in range(n_4):
                                y[at + e] = x[start + e]
                        else:
                            for e in range(n_4):
                                y[at + e] = x[start + e * s_4]
                        at += n_4
