"""Positions: what tells a network without recurrence where in a sequence a step stands."""

from __future__ import annotations

import math

import numpy as np

from hpctrain.kernels.in_place import kernel_in_place
from hpctrain.kernels.jit import kernel


@kernel_in_place("x", "y")
def positions_forward(x: np.ndarray, table: np.ndarray, y: np.ndarray) -> None:
    """y[i, t, j] = x[i, t, j] + table[t, j]; x, y (rows, steps, features), table (steps, features).  y may be x."""
    rows, steps, features = x.shape
    for i in range(rows):
        for t in range(steps):
            for j in range(features):
                y[i, t, j] = x[i, t, j] + table[t, j]


@kernel
def positions_backward_params(dy: np.ndarray, d_table: np.ndarray, beta: float) -> None:
    """d_table[t, j] = sum_i dy[i, t, j] + beta d_table[t, j]."""
    rows, steps, features = dy.shape
    if beta == 0.0:
        d_table[:] = 0.0
    for i in range(rows):
        for t in range(steps):
            for j in range(features):
                d_table[t, j] += dy[i, t, j]


@kernel
def positions_backward(dy: np.ndarray, dx: np.ndarray, d_table: np.ndarray, beta: float) -> None:
    """dx = dy and the gradient of the table.  dx may be dy."""
    positions_backward_params(dy, d_table, beta)
    rows, steps, features = dy.shape
    for i in range(rows):
        for t in range(steps):
            for j in range(features):
                dx[i, t, j] = dy[i, t, j]


@kernel
def sinusoidal_table(table: np.ndarray, base: float) -> None:
    """table[t, 2i] = sin(t w), table[t, 2i + 1] = cos(t w), w = base^(-2i / units); table (length, units).

    Vaswani et al. 2017, section 3.5.  Each column is walked by the addition theorems in float64: two sines a column
    instead of one for each element; after 10^6 steps the error is about 10^-10.
    """
    length, units = table.shape
    for j in range(0, units, 2):
        frequency = base ** (-j / units)
        turn_sine, turn_cosine = math.sin(frequency), math.cos(frequency)
        sine, cosine = 0.0, 1.0
        for t in range(length):
            table[t, j] = sine
            if j + 1 < units:
                table[t, j + 1] = cosine
            sine, cosine = sine * turn_cosine + cosine * turn_sine, cosine * turn_cosine - sine * turn_sine
