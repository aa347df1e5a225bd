"""The counter-based random numbers against splitmix64's published values and plain integer arithmetic."""

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.rng import hash64, mix64, uniform24

MASK = 2**64 - 1


def splitmix64(state):
    """Python integers: the reference implementation (state before the increment -> output)."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@kernel
def fill(key, out):
    """Fill with uniforms (as a dropout kernel would)."""
    for i in range(out.size):
        out[i] = uniform24(key, i)


def test_mix64_gives_the_published_values_of_splitmix64():
    # The first outputs of the reference generator for seed 0 and 1234567 (Vigna's splitmix64.c).
    assert mix64(np.uint64(0)) == 0xE220A8397B1DCDAF
    assert mix64(np.uint64(1234567)) == 6457827717110365317
    assert mix64(np.uint64((1234567 + 0x9E3779B97F4A7C15) & MASK)) == 3203168211198807973


def test_hash64_is_a_position_in_a_splitmix64_stream():
    for key in (0, 1, 77, MASK):
        state = splitmix64(key)
        for counter in range(5):
            assert int(hash64(np.uint64(key), np.uint64(counter))) == splitmix64(state)
            state = (state + 0x9E3779B97F4A7C15) & MASK


def test_signed_and_unsigned_arguments_agree():
    assert hash64(np.int64(-1), np.int32(3)) == hash64(np.uint64(MASK), np.uint64(3))


def test_uniform24_is_exact_in_range_and_even():
    assert uniform24(np.uint64(5), 9) == np.float32((int(hash64(np.uint64(5), 9)) >> 40) / 2**24)
    out = np.empty(100_000, np.float32)
    fill(np.uint64(42), out)
    assert out.min() >= 0
    assert out.max() < 1
    counts, _ = np.histogram(out, bins=100, range=(0, 1))
    # Chi-squared with 99 degrees of freedom: mean 99, deviation sqrt(198); five deviations.
    chi2 = float(((counts - 1000.0) ** 2 / 1000).sum())
    assert abs(chi2 - 99) < 5 * 198**0.5


def test_neighbouring_keys_are_not_correlated():
    a, b = np.empty(50_000, np.float32), np.empty(50_000, np.float32)
    fill(np.uint64(1), a)
    fill(np.uint64(2), b)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / 50_000**0.5
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 5 / 50_000**0.5
