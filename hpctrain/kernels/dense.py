"""The dense layer y = x W + b beside its products: sums of the bias gradient, and ReLU's derivative in the same pass.

The products are those of `matmul.py`: y by `matmul_bias`, dW = x^T dy by `matmul_tn`, dx = dy W^T by `matmul_nt`.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.in_place import choose, kernel_in_place
from hpctrain.kernels.jit import kernel


@kernel
def column_sums(dy: np.ndarray, d_bias: np.ndarray, beta: float) -> None:
    """db[j] = beta db[j] + sum_i dy[i, j]; dy (n, out), db (out,); beta 0 (db is not read) or 1."""
    zero = dy.dtype.type(0)
    if beta == 0.0:
        for j in range(d_bias.size):
            d_bias[j] = zero
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            d_bias[j] += dy[i, j]


@kernel_in_place("dy", "dz")
def relu_mask(y: np.ndarray, dy: np.ndarray, dz: np.ndarray) -> None:
    """dz = dy where y > 0, else 0 (dy where y is NaN); y, dy, dz (n, out); dz may be dy."""
    zero = dy.dtype.type(0)
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            dz[i, j] = choose(y[i, j] <= zero, zero, dy[i, j])


@kernel_in_place("dy", "dz")
def relu_mask_sums(y: np.ndarray, dy: np.ndarray, dz: np.ndarray, d_bias: np.ndarray, beta: float) -> None:
    """dz = dy where y > 0, else 0; db[j] = beta db[j] + sum_i dz[i, j]: `relu_mask` and `column_sums` in one pass.

    dz may be dy.
    """
    zero = dy.dtype.type(0)
    if beta == 0.0:
        for j in range(d_bias.size):
            d_bias[j] = zero
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            value = choose(y[i, j] <= zero, zero, dy[i, j])
            dz[i, j] = value
            d_bias[j] += value
