"""Random numbers by counter: pure functions of a key and a position, so that no rank keeps a random state.

Dropout masks, shuffles and splits come from here.  A value depends on (key, counter) alone: not on the world size, the
order of the calls, or what was drawn before.  `hash64` chains: `hash64(hash64(seed, step), layer)` is a key of its own.

Arguments may be of any integer type; negative ones wrap to uint64.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: the increment of splitmix64
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S40 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(40)
_ULP24 = np.float32(2.0**-24)


@kernel
def mix64(x):
    """Scramble 64 bits: a bijection of uint64, `splitmix64`'s output for the state x.

    z = x + GOLDEN;  z = (z ^ z >> 30) * M1;  z = (z ^ z >> 27) * M2;  z ^ z >> 31      (mod 2^64)

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the constants of
    Stafford's variant 13.  mix64(0) is 0xE220A8397B1DCDAF.
    """
    z = np.uint64(x) + GOLDEN
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@kernel
def hash64(key, counter):
    """Return uint64 number `counter` of the stream `key`: mix64(mix64(key) + counter * GOLDEN).

    That is output `counter` (from 0) of splitmix64 seeded with mix64(key).  In a loop over counters with one key the
    inner mix64 is hoisted.
    """
    return mix64(mix64(key) + np.uint64(counter) * GOLDEN)


@kernel
def uniform24(key, counter):
    """Return float32 number `counter` of the stream `key`, uniform in [0, 1).

    It is the top 24 bits of hash64(key, counter) times 2^-24, which float32 holds exactly.
    """
    return np.float32(hash64(key, counter) >> _S40) * _ULP24
