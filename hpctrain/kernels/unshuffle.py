"""The kernel that undoes HDF5's shuffle filter, which puts the first bytes of all numbers first, then the second."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel

_S8, _S16, _S24 = np.uint32(8), np.uint32(16), np.uint32(24)


@kernel
def unshuffle(shuffled, size, out):
    """Put the bytes of n numbers of `size` bytes together: out[i * size + j] = shuffled[j * n + i]; uint8 arrays."""
    count = out.size // size
    if size == 4:  # one store a number, vectorised
        words = out.view(np.uint32)
        for i in range(count):
            words[i] = (
                np.uint32(shuffled[i])
                | (np.uint32(shuffled[count + i]) << _S8)
                | (np.uint32(shuffled[2 * count + i]) << _S16)
                | (np.uint32(shuffled[3 * count + i]) << _S24)
            )
        return
    for j in range(size):
        for i in range(count):
            out[i * size + j] = shuffled[j * count + i]
