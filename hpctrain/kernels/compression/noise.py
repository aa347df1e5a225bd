"""Random numbers for rounding: 32 bits by counter, a few operations each, which LLVM vectorises.

`kernels.rng` has better ones of 64 bits; rounding needs many, and only that their mean over many positions is right.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel

_M1, _M2 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B)
_S15, _S13, _S8 = np.uint32(15), np.uint32(13), np.uint32(8)
_ULP24 = np.float32(2.0**-24)


@kernel
def hash32(counter):
    """Scramble 32 bits: x = counter * M1; x = (x ^ x >> 15) * M2; x ^ x >> 13      (mod 2^32).

    M1 is 2^32 / golden ratio, M2 a constant of murmur3 (Appleby, public domain).  Numba widens integers: each result is
    cut to 32 bits again.
    """
    x = np.uint32(np.uint32(counter) * _M1)
    x = np.uint32(np.uint32(x ^ np.uint32(x >> _S15)) * _M2)
    return np.uint32(x ^ np.uint32(x >> _S13))


@kernel
def uniform(counter):
    """Return float32 number `counter` (uint32), uniform in [0, 1): the top 24 bits of `hash32`."""
    return np.float32(np.int32(hash32(counter) >> _S8)) * _ULP24
