"""Dropout: the mask is a pure function of seed, layer, step, example id and feature, never of the rank."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.in_place import kernel_in_place
from hpctrain.kernels.rng import hash64, uniform24


@kernel_in_place("x", "y")
def dropout_apply(
    x: np.ndarray, y: np.ndarray, ids: np.ndarray, seed: np.uint64, step: int, layer: int, rate: float
) -> None:
    """y = x / (1 - rate) where the example's feature is kept, else 0 (Srivastava et al. 2014, inverted form).

    x, y (n, features), ids (n,) int64.  Backward is the same function of dy: the mask is computed again, not kept.
    """
    key = hash64(hash64(seed, step), layer)
    zero, keep = x.dtype.type(0), x.dtype.type(1.0 / (1.0 - rate))
    threshold = np.float32(rate)
    for i in range(x.shape[0]):
        row_key = hash64(key, ids[i])
        for j in range(x.shape[1]):
            y[i, j] = keep * x[i, j] if uniform24(row_key, j) >= threshold else zero
