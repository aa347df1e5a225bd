"""Kernels of norms over ranges of a flat buffer, and of clipping by value."""

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel
def sum_of_squares(values, starts, stops):
    """Sum of v_i^2 over the ranges, in float64: vectorised, and the same bits for the same array each time.

    Squares of float32 numbers cannot overflow here; infinity and NaN come through.
    """
    total = 0.0
    for r in range(starts.size):
        part = values[starts[r] : stops[r]]
        for i in range(part.size):
            value = np.float64(part[i])
            total += value * value
    return total


@kernel
def clip_values(values, starts, stops, limit):
    """v_i = min(max(v_i, -limit), limit) over the ranges, in place; returns the sum of v_i^2 before (float64).

    Infinity and NaN stay: a broken gradient is not made to look sound.
    """
    total = 0.0
    for r in range(starts.size):
        part = values[starts[r] : stops[r]]
        for i in range(part.size):
            value = part[i]
            wide = np.float64(value)
            total += wide * wide
            size = abs(value)
            clipped = limit if value > 0 else -limit
            part[i] = clipped if limit < size < np.inf else value
    return total
