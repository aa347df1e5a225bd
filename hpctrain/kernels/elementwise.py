"""Small kernels that the composer itself needs: sums of gradients, copies, zeroing."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.in_place import kernel_in_place
from hpctrain.kernels.jit import kernel


@kernel_in_place("a", "out")
def add_arrays(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a + b on flat arrays; out may be a (or b, more slowly)."""
    for i in range(a.size):
        out[i] = a[i] + b[i]


@kernel
def copy_array(source: np.ndarray, out: np.ndarray) -> None:
    """out = source on flat arrays."""
    for i in range(source.size):
        out[i] = source[i]


@kernel
def zero_unless(beta: float, out: np.ndarray) -> None:
    """out = 0 where beta is 0 (gradients are to be stored), else unchanged (they are to be added to)."""
    if beta == 0.0:
        for i in range(out.size):
            out[i] = 0.0


@kernel
def blend(state: np.ndarray, sums: np.ndarray, momentum: np.ndarray, scale: float) -> None:
    """state = m state + (1 - m) scale sums, with a momentum m for each element."""
    one, factor = state.dtype.type(1), state.dtype.type(scale)
    for i in range(state.size):
        state[i] = momentum[i] * state[i] + (one - momentum[i]) * (factor * sums[i])
