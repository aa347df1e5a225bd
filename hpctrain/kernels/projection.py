"""Projections inside larger layers (attention, recurrent): y = x W + b and its gradients, each part by itself.

The parts of such a layer share inputs, so they are put together by the layer; a layer that is nothing but a projection
is `dense`.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.gemm import gemm
from hpctrain.kernels.jit import kernel


@kernel
def project(x: np.ndarray, weight: np.ndarray, y: np.ndarray) -> None:
    """y = x W; x (n, in), weight (in, out), y (n, out)."""
    gemm(0, 0, x, weight, 0.0, y)


@kernel
def project_with_bias(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, y: np.ndarray) -> None:
    """y = x W + b; bias (out,)."""
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] = bias[j]
    gemm(0, 0, x, weight, 1.0, y)


@kernel
def input_gradient(dy: np.ndarray, weight: np.ndarray, dx: np.ndarray, keep: float) -> None:
    """dx = dy W^T + keep dx; `keep` is 0.0 or 1.0."""
    gemm(0, 1, dy, weight, keep, dx)


@kernel
def weight_gradient(x: np.ndarray, dy: np.ndarray, d_weight: np.ndarray, beta: float) -> None:
    """dW = x^T dy + beta dW."""
    gemm(1, 0, x, dy, beta, d_weight)


@kernel
def bias_gradient(dy: np.ndarray, d_bias: np.ndarray, beta: float) -> None:
    """db[j] = sum_i dy[i, j] + beta db[j]."""
    if beta == 0.0:
        for j in range(d_bias.size):
            d_bias[j] = 0.0
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            d_bias[j] += dy[i, j]
