"""Elementwise activations and their derivatives on flat arrays.

Where the derivative is taken from y, forward kernels may work in place (y is x), and backward kernels too (dx is dy).
Derivatives are taken from y where that is possible, so that x need not be kept.  The softmax works on rows.
"""

from __future__ import annotations

import math

import numpy as np

from hpctrain.kernels.in_place import choose, kernel_in_place
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.vector_math import erf, exp, expm1, sigmoid, softplus, tanh

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_TWO_PI = 1.0 / math.sqrt(2.0 * math.pi)


@kernel_in_place("x", "y")
def relu_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = x where x > 0, else 0; NaN stays NaN."""
    zero = x.dtype.type(0)
    for i in range(x.size):
        y[i] = choose(x[i] <= zero, zero, x[i])


@kernel_in_place("dy", "dx")
def relu_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy where y > 0, else 0."""
    zero = dy.dtype.type(0)
    for i in range(y.size):
        dx[i] = choose(y[i] <= zero, zero, dy[i])


@kernel_in_place("x", "y")
def leaky_relu_forward(x: np.ndarray, y: np.ndarray, slope: float) -> None:
    """y = x where x > 0, else slope x (slope > 0, so that the sign of y is the sign of x)."""
    zero, factor = x.dtype.type(0), x.dtype.type(slope)
    for i in range(x.size):
        y[i] = choose(x[i] <= zero, factor * x[i], x[i])


@kernel_in_place("dy", "dx")
def leaky_relu_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray, slope: float) -> None:
    """dx = dy where y > 0, else slope dy."""
    zero, factor = dy.dtype.type(0), dy.dtype.type(slope)
    for i in range(y.size):
        dx[i] = choose(y[i] <= zero, factor * dy[i], dy[i])


@kernel_in_place("x", "y")
def tanh_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = tanh(x)."""
    for i in range(x.size):
        y[i] = tanh(x[i])


@kernel_in_place("dy", "dx")
def tanh_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy (1 - y^2)."""
    one = dy.dtype.type(1)
    for i in range(y.size):
        dx[i] = dy[i] * (one - y[i] * y[i])


@kernel_in_place("x", "y")
def sigmoid_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = 1 / (1 + exp(-x))."""
    for i in range(x.size):
        y[i] = sigmoid(x[i])


@kernel_in_place("dy", "dx")
def sigmoid_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy y (1 - y)."""
    one = dy.dtype.type(1)
    for i in range(y.size):
        dx[i] = dy[i] * y[i] * (one - y[i])


@kernel_in_place("x", "y")
def softplus_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = log(1 + exp(x)) (Dugas et al. 2001)."""
    for i in range(x.size):
        y[i] = softplus(x[i])


@kernel_in_place("dy", "dx")
def softplus_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy (1 - exp(-y)), which is dy / (1 + exp(-x))."""
    for i in range(y.size):
        dx[i] = -dy[i] * expm1(-y[i])


@kernel_in_place("x", "y")
def elu_forward(x: np.ndarray, y: np.ndarray, alpha: float) -> None:
    """y = x where x > 0, else alpha (exp(x) - 1) (Clevert, Unterthiner & Hochreiter 2016); alpha > 0."""
    zero, factor = x.dtype.type(0), x.dtype.type(alpha)
    for i in range(x.size):
        below = factor * expm1(x[i])
        y[i] = choose(x[i] > zero, x[i], below)


@kernel_in_place("dy", "dx")
def elu_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray, alpha: float) -> None:
    """dx = dy where y > 0, else dy (y + alpha), which is dy alpha exp(x)."""
    zero, factor = dy.dtype.type(0), dy.dtype.type(alpha)
    for i in range(y.size):
        dx[i] = choose(y[i] > zero, dy[i], dy[i] * (y[i] + factor))


@kernel
def silu_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = x / (1 + exp(-x)) (Hendrycks & Gimpel 2016; Elfwing et al. 2018; also called swish)."""
    for i in range(x.size):
        y[i] = x[i] * sigmoid(x[i])


@kernel
def silu_backward(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy s (1 + x (1 - s)) with s = 1 / (1 + exp(-x))."""
    one = dy.dtype.type(1)
    for i in range(x.size):
        s = sigmoid(x[i])
        dx[i] = dy[i] * s * (one + x[i] * (one - s))


@kernel
def gelu_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = x Phi(x), Phi the normal distribution function (Hendrycks & Gimpel 2016, the exact form)."""
    half, one, scale = x.dtype.type(0.5), x.dtype.type(1), x.dtype.type(_SQRT_HALF)
    for i in range(x.size):
        y[i] = half * x[i] * (one + erf(scale * x[i]))


@kernel
def gelu_backward(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy (Phi(x) + x phi(x)), phi the normal density."""
    half, one, scale = x.dtype.type(0.5), x.dtype.type(1), x.dtype.type(_SQRT_HALF)
    norm = x.dtype.type(_INV_SQRT_TWO_PI)
    for i in range(x.size):
        cumulative = half * (one + erf(scale * x[i]))
        dx[i] = dy[i] * (cumulative + x[i] * norm * exp(-half * x[i] * x[i]))


@kernel_in_place("x", "y")
def softmax_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y[i, j] = exp(x[i, j] - m_i) / sum_k exp(x[i, k] - m_i), m_i the largest of row i; x, y (n, classes)."""
    for i in range(x.shape[0]):
        largest = x[i, 0]
        for j in range(1, x.shape[1]):
            largest = x[i, j] if x[i, j] > largest else largest
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            y[i, j] = exp(x[i, j] - largest)
        for j in range(x.shape[1]):
            total += y[i, j]
        factor = x.dtype.type(1) / total
        for j in range(x.shape[1]):
            y[i, j] *= factor


@kernel_in_place("dy", "dx")
def softmax_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx[i, j] = y[i, j] (dy[i, j] - sum_k y[i, k] dy[i, k])."""
    for i in range(y.shape[0]):
        mean = y.dtype.type(0)
        for j in range(y.shape[1]):
            mean += y[i, j] * dy[i, j]
        for j in range(y.shape[1]):
            dx[i, j] = y[i, j] * (dy[i, j] - mean)
