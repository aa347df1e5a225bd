"""The dense layer: y = x W + b."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.gemm import gemm
from hpctrain.kernels.jit import kernel


@kernel
def dense_forward(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, y: np.ndarray) -> None:
    """y[i, j] = b[j] + sum_k x[i, k] W[k, j]; x (n, in), weight (in, out), bias (out,), y (n, out)."""
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] = bias[j]
    gemm(0, 0, x, weight, 1.0, y)


@kernel
def dense_backward_params(x: np.ndarray, dy: np.ndarray, d_weight: np.ndarray, d_bias: np.ndarray) -> None:
    """dW += x^T dy; db[j] += sum_i dy[i, j]."""
    gemm(1, 0, x, dy, 1.0, d_weight)
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            d_bias[j] += dy[i, j]


@kernel
def dense_backward(
    x: np.ndarray, dy: np.ndarray, weight: np.ndarray, dx: np.ndarray, d_weight: np.ndarray, d_bias: np.ndarray
) -> None:
    """dW += x^T dy; db[j] += sum_i dy[i, j]; dx = dy W^T."""
    dense_backward_params(x, dy, d_weight, d_bias)
    gemm(0, 1, dy, weight, 0.0, dx)
