"""Products in which one factor is a single column: the last layer of a network with one output.

Register tiles would spend 15 of 16 lanes on nothing.  As in `matmul.py`, a sum's order depends on its length alone.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import view

_START = np.int64(0)  # typed: numba compiles a function anew for each literal number
_ROWS = 4  # that are added to the result in one go


@kernel(cache=False, no_cpython_wrapper=True)
def times_column(a: np.ndarray, b: np.ndarray, c: np.ndarray, beta: float) -> None:
    """C = A B + beta C for A (m, k), B (k, 1), C (m, 1); beta 0 (C is not read) or 1."""
    column = view(b, _START, (b.size,))
    for i in range(a.shape[0]):
        row = a[i]
        total = a.dtype.type(0)
        for p in range(column.size):
            total += row[p] * column[p]
        c[i, 0] = total if beta == 0.0 else c[i, 0] + total


@kernel(cache=False, no_cpython_wrapper=True)
def transposed_times_column(a: np.ndarray, b: np.ndarray, c: np.ndarray, beta: float) -> None:
    """C = A^T B + beta C for A (k, m), B (k, 1), C (m, 1); beta 0 (C is not read) or 1."""
    result = view(c, _START, (c.size,))
    if beta == 0.0:
        result[:] = 0
    whole = a.shape[0] // _ROWS * _ROWS
    for p in range(0, whole, _ROWS):
        first, second, third, fourth = a[p], a[p + 1], a[p + 2], a[p + 3]
        w, x, y, z = b[p, 0], b[p + 1, 0], b[p + 2, 0], b[p + 3, 0]
        for i in range(result.size):
            result[i] += (w * first[i] + x * second[i]) + (y * third[i] + z * fourth[i])
    for p in range(whole, a.shape[0]):
        row, factor = a[p], b[p, 0]
        for i in range(result.size):
            result[i] += factor * row[i]


@kernel(cache=False, no_cpython_wrapper=True)
def column_times_row(a: np.ndarray, b: np.ndarray, c: np.ndarray, beta: float) -> None:
    """C[i, j] = A[i, 0] B[j, 0] + beta C[i, j] for A (m, 1), B (n, 1), C (m, n); beta 0 (C is not read) or 1."""
    row = view(b, _START, (b.size,))
    for i in range(c.shape[0]):
        factor, result = a[i, 0], c[i]
        if beta == 0.0:
            for j in range(row.size):
                result[j] = factor * row[j]
        else:
            for j in range(row.size):
                result[j] += factor * row[j]
