"""Lines through numbers: the last step of most preparations, with the cast that follows it."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel

# (x - shift) factor must not become x factor - shift factor, which has no digits left where x is large.
_AS_WRITTEN: set[str] = set()


@kernel(fastmath=_AS_WRITTEN)
def affine_rows(x: np.ndarray, shift: np.ndarray, factor: np.ndarray, offset: np.ndarray, out: np.ndarray) -> None:
    """out[i, j] = (x[i, j] - shift[j]) factor[j] + offset[j], in float64, then rounded to float32.

    x (n, width) float32 or float64; shift, factor, offset (width,) float64; out (n, width) float32.
    """
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = np.float32((np.float64(x[i, j]) - shift[j]) * factor[j] + offset[j])
