"""Kernels that combine buffers of several ranks."""

from hpctrain.kernels.jit import kernel


@kernel
def add_into(total, values):
    """total[i] += values[i]; both 1-D, of the same length and dtype, not overlapping."""
    for i in range(total.size):
        total[i] += values[i]
