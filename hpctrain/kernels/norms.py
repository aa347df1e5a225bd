"""Kernels of norms over a flat buffer."""

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel
def sum_of_squares(values):
    """Sum of v_i^2 in float64 over a contiguous array (n,): vectorised, and the same bits for the same array each time.

    Squares of float32 numbers cannot overflow here; infinity and NaN come through.
    """
    total = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        total += value * value
    return total
