"""Sums that do not depend on their order: numbers rounded to fixed point, added as int32, and turned back.

Each tensor t has an exponent e: its numbers are below 2^e in size and count in units of 2^(e - digits), so that the sum
of as many lanes as `digits` leaves room for is a whole number below 2^31.  Adding whole numbers is exact.
"""

from __future__ import annotations

import math

import numpy as np

from hpctrain.kernels.jit import kernel

BLOCK = 1024  # numbers that stay in the first-level cache between two looks at them
HEADROOM = 2  # bits that the next step's largest number may be longer than this one's
SPARE = 8  # bits that the largest number may be shorter than its exponent says
LEAST = -90  # exponent under which nothing is told apart: scales stay finite
FALL = 1  # by how much an exponent falls from step to step, at most
_SIZE_BITS = np.int32(0x7FFFFFFF)  # of a float32, all but the sign
_NOT_FINITE = 255  # the exponent bits of a float32 that is infinite or NaN
_BIAS = 126


@kernel(fastmath=False)
def round_into(values, scale, fresh, out, largest):
    """out[i] = rint(scale[0] values[i]), or where not `fresh`, += that.

    largest[0] becomes the largest of what it is and the bits of |values[i]|, which are in the order of the numbers; NaN
    comes out on top.  A number beyond the exponent gives a wrong out[i]: `fit_exponents` sees it.

    values float32 and out int32 (n,); scale float32 and largest int32 (1,).
    """
    factor, most = scale[0], largest[0]
    for start in range(0, values.size, BLOCK):
        given, made = values[start : start + BLOCK], out[start : start + BLOCK]
        bits = given.view(np.int32)
        for i in range(bits.size):
            most = max(most, np.int32(bits[i] & _SIZE_BITS))
        if fresh:
            for i in range(given.size):
                made[i] = np.int32(np.rint(given[i] * factor))
        else:
            for i in range(given.size):
                made[i] += np.int32(np.rint(given[i] * factor))
    largest[0] = most


@kernel(cache=False, no_cpython_wrapper=True)
def _exponent_bits(largest, t):  # noqa: ANN001, ANN202
    """The exponent bits of a tensor's largest number: 0 where there is none, 255 where it is broken."""
    most = np.int32(0)
    for lane in range(largest.shape[0]):
        most = max(most, largest[lane, t])
    return np.int64(most >> np.int32(23))


@kernel(fastmath=False)
def fit_exponents(largest, exponents, digits, scales, factors):
    """Judge the exponents of a step by the largest numbers that there were; return whether its sums are right.

    largest (lanes, tensors) int32: bits of the largest |number| of each lane and tensor.  Where one does not fit its
    exponent, all that do not are set right, and the step has to be made again.  Where all do, `factors` are what the
    sums are multiplied by (NaN where there was a NaN or an infinity), and the exponents are those of the next step:
    HEADROOM above the largest number, but no more than FALL below what they were.  `scales` belong to the exponents.
    """
    fits = True
    for t in range(exponents.size):
        bits = _exponent_bits(largest, t)
        length = bits - _BIAS  # the largest number is less than 2^length
        too_large, too_small = length > exponents[t], length < exponents[t] - SPARE
        if bits not in (0, _NOT_FINITE) and (too_large or too_small):
            needed = max(length + HEADROOM, LEAST)
            fits = fits and needed == exponents[t]
            exponents[t] = needed
    for t in range(exponents.size):
        if fits:
            bits = _exponent_bits(largest, t)
            factors[t] = np.nan if bits == _NOT_FINITE else math.ldexp(1.0, exponents[t] - digits)
            if bits not in (0, _NOT_FINITE):
                exponents[t] = max(bits - _BIAS + HEADROOM, exponents[t] - FALL, LEAST)
        scales[t] = math.ldexp(1.0, digits - exponents[t])
    return fits


@kernel(fastmath=False)
def to_floats(sums, starts, stops, factors, out, scratch):
    """out[i] = factors[t] sums[i]; out float32 may be the memory of sums (int32); scratch (BLOCK,) float32."""
    for t in range(starts.size):
        factor = factors[t]
        for start in range(starts[t], stops[t], BLOCK):
            stop = min(start + BLOCK, stops[t])
            given, made = sums[start:stop], out[start:stop]
            for i in range(given.size):
                scratch[i] = factor * np.float32(given[i])
            for i in range(made.size):
                made[i] = scratch[i]


@kernel(fastmath=False)
def round_lane(values, scale, out, largest, beta, row):
    """`round_into` for the lane that begins at `row` of a pass: the first one of a pass with beta 0 is stored."""
    round_into(values, scale, beta == 0.0 and row == 0, out, largest)
