"""Elementwise activations and their derivatives on flat arrays.

Forward kernels may work in place (y is x), backward kernels too (dx is dy): each element is read before it is written.
Derivatives are taken from y where that is possible, so that x need not be kept.
"""

from __future__ import annotations

import math

import numpy as np

from hpctrain.kernels.jit import kernel

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_TWO_PI = 1.0 / math.sqrt(2.0 * math.pi)


@kernel
def relu_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = x where x > 0, else 0; NaN stays NaN."""
    zero = x.dtype.type(0)
    for i in range(x.size):
        y[i] = zero if x[i] <= zero else x[i]


@kernel
def relu_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy where y > 0, else 0."""
    zero = dy.dtype.type(0)
    for i in range(y.size):
        dx[i] = zero if y[i] <= zero else dy[i]


@kernel
def leaky_relu_forward(x: np.ndarray, y: np.ndarray, slope: float) -> None:
    """y = x where x > 0, else slope x (slope > 0, so that the sign of y is the sign of x)."""
    zero, factor = x.dtype.type(0), x.dtype.type(slope)
    for i in range(x.size):
        y[i] = factor * x[i] if x[i] <= zero else x[i]


@kernel
def leaky_relu_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray, slope: float) -> None:
    """dx = dy where y > 0, else slope dy."""
    zero, factor = dy.dtype.type(0), dy.dtype.type(slope)
    for i in range(y.size):
        dx[i] = factor * dy[i] if y[i] <= zero else dy[i]


@kernel
def tanh_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = tanh(x)."""
    for i in range(x.size):
        y[i] = math.tanh(x[i])


@kernel
def tanh_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy (1 - y^2)."""
    one = dy.dtype.type(1)
    for i in range(y.size):
        dx[i] = dy[i] * (one - y[i] * y[i])


@kernel
def sigmoid_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = 1 / (1 + exp(-x)), by exp of a negative number alone, so that nothing overflows."""
    one = x.dtype.type(1)
    for i in range(x.size):
        e = math.exp(-abs(x[i]))
        y[i] = one / (one + e) if x[i] >= 0 else e / (one + e)


@kernel
def sigmoid_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy y (1 - y)."""
    one = dy.dtype.type(1)
    for i in range(y.size):
        dx[i] = dy[i] * y[i] * (one - y[i])


@kernel
def gelu_forward(x: np.ndarray, y: np.ndarray) -> None:
    """y = x Phi(x), Phi the normal distribution function (Hendrycks & Gimpel 2016, the exact form)."""
    half, one, scale = x.dtype.type(0.5), x.dtype.type(1), x.dtype.type(_SQRT_HALF)
    for i in range(x.size):
        y[i] = half * x[i] * (one + math.erf(scale * x[i]))


@kernel
def gelu_backward(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """dx = dy (Phi(x) + x phi(x)), phi the normal density."""
    half, one, scale = x.dtype.type(0.5), x.dtype.type(1), x.dtype.type(_SQRT_HALF)
    norm = x.dtype.type(_INV_SQRT_TWO_PI)
    for i in range(x.size):
        cumulative = half * (one + math.erf(scale * x[i]))
        dx[i] = dy[i] * (cumulative + x[i] * norm * math.exp(-half * x[i] * x[i]))
