"""Embedding: rows of a table, looked up by whole numbers."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel
def embedding_forward(ids: np.ndarray, weight: np.ndarray, y: np.ndarray) -> None:
    """y[i] = W[ids[i]]; ids (n,) of whole numbers as floats, weight (size, units), y (n, units).

    What is no row of the table (negative, too large, a fraction, NaN) gives a row of NaN: a kernel cannot raise an
    error, and a wrong id must not be taken for another one.
    """
    size = weight.shape[0]
    for i in range(ids.size):
        number = ids[i]
        if number >= 0 and number < size and number == np.floor(number):
            row = weight[int(number)]
            for j in range(y.shape[1]):
                y[i, j] = row[j]
        else:
            for j in range(y.shape[1]):
                y[i, j] = np.nan


@kernel
def embedding_backward(ids: np.ndarray, dy: np.ndarray, d_weight: np.ndarray) -> None:
    """dW[ids[i]] += dy[i]; ids that are no row of the table are passed over (their outputs were NaN)."""
    size = d_weight.shape[0]
    for i in range(ids.size):
        number = ids[i]
        if number >= 0 and number < size and number == np.floor(number):
            row = d_weight[int(number)]
            for j in range(dy.shape[1]):
                row[j] += dy[i, j]


@kernel
def no_gradient(dx: np.ndarray) -> None:
    """dx = 0: for an input on which the output does not depend smoothly (ids, masks)."""
    for i in range(dx.size):
        dx[i] = 0.0
