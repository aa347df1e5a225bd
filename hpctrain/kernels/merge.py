"""Several values into one, or a part of one: columns side by side, some of the columns, products with a gate."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel
def copy_columns(x: np.ndarray, y: np.ndarray, start: int) -> None:
    """y[i, start + j] = x[i, j]; x (n, k), y (n, more)."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, start + j] = x[i, j]


@kernel
def take_columns(dy: np.ndarray, dx: np.ndarray, start: int) -> None:
    """dx[i, j] = dy[i, start + j]: the gradient of `copy_columns`."""
    for i in range(dx.shape[0]):
        for j in range(dx.shape[1]):
            dx[i, j] = dy[i, start + j]


@kernel
def place_columns(dy: np.ndarray, dx: np.ndarray, start: int) -> None:
    """dx[i, start + j] = dy[i, j], and 0 in the other columns: the gradient of `take_columns`."""
    for i in range(dx.shape[0]):
        for j in range(dx.shape[1]):
            inside = start <= j < start + dy.shape[1]
            dx[i, j] = dy[i, j - start] if inside else dx.dtype.type(0)


@kernel
def multiply_forward(x: np.ndarray, gate: np.ndarray, y: np.ndarray) -> None:
    """y[i, p, c] = x[i, p, c] gate[i, c]; x, y (n, positions, k), gate (n, k)."""
    for i in range(x.shape[0]):
        for p in range(x.shape[1]):
            for c in range(x.shape[2]):
                y[i, p, c] = x[i, p, c] * gate[i, c]


@kernel
def multiply_backward(x: np.ndarray, gate: np.ndarray, dy: np.ndarray, dx: np.ndarray, d_gate: np.ndarray) -> None:
    """dx = dy gate;  d_gate[i, c] = sum_p dy[i, p, c] x[i, p, c]."""
    for i in range(x.shape[0]):
        for c in range(x.shape[2]):
            d_gate[i, c] = 0.0
        for p in range(x.shape[1]):
            for c in range(x.shape[2]):
                d_gate[i, c] += dy[i, p, c] * x[i, p, c]
                dx[i, p, c] = dy[i, p, c] * gate[i, c]
