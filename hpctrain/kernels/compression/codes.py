"""One block of numbers to codes and back.  Each `codes_of` returns the scale, and leaves in `x` what the codes drop.

x      (block,) float32, a multiple of 16
codes  (bytes,) uint8
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.compression.noise import uniform
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import merge_in

_ALL_BUT_SIGN, _INFINITE = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
SMALLEST = np.float32(1e-30)  # a block that is smaller is zero: the inverse of its scale would not be a float32
_NAN = np.float32(np.nan)
_HALF_MAX = 14  # exponent of the largest number of a block in float16: what rounding makes of it is still below 2^16
_U1, _U13, _U16 = np.uint32(1), np.uint32(13), np.uint32(16)
_QUIET, _ROUND = np.uint32(0x40), np.uint32(0x7FFF)
_MAGNITUDE, _SIGN = np.uint32(0x7FFFFFFF), np.uint32(0x80000000)


@kernel
def largest(x):
    """Return the bits of max |x|, as int32, which compares as the numbers do; NaN is the largest.

    LLVM does not vectorise a maximum of floats.
    """
    merge_in()
    bits = x.view(np.int32)
    top = np.int32(0)
    for i in range(bits.size):
        top = max(top, np.int32(bits[i] & _ALL_BUT_SIGN))
    return top


@kernel
def all_lost(x, codes):
    """Fill the residual with NaN and return the scale that decodes to NaN: for a block with NaN or infinity in it."""
    merge_in()
    for i in range(x.size):
        x[i] = _NAN
    for i in range(codes.size):
        codes[i] = 0
    return _NAN


@kernel
def none_sent(codes):
    """Return the scale of a block without anything to send."""
    merge_in()
    for i in range(codes.size):
        codes[i] = 0
    return np.float32(0)


@kernel
def codes_of_int8(x, codes, counter):
    """q = floor(x / scale + u), u uniform in [0, 1); scale = max |x| / 126.999: the largest must not come to 128.

    Rounding to nearest is in `blocks`.
    """
    merge_in()
    top = largest(x)
    if top >= _INFINITE:
        return all_lost(x, codes)
    size = np.int32(top).view(np.float32)
    if size < SMALLEST:
        return none_sent(codes)
    out = codes.view(np.int8)
    inverse = np.float32(126.999) / size
    scale = np.float32(1) / inverse
    for i in range(x.size):
        q = np.floor(x[i] * inverse + uniform(np.uint32(counter + np.uint32(i))))
        out[i] = np.int8(np.int32(q))
        x[i] -= q * scale
    return scale


@kernel
def codes_of_int4(x, codes, stochastic, counter):
    """As `codes_of_int8` with scale = max |x| / 7; the byte i holds q + 8 of x[i] and, above, of x[block / 2 + i]."""
    merge_in()
    top = largest(x)
    if top >= _INFINITE:
        return all_lost(x, codes)
    size = np.int32(top).view(np.float32)
    if size < SMALLEST:
        return none_sent(codes)
    half = codes.size
    first, second = x[:half], x[half:]
    if stochastic:
        inverse = np.float32(6.9999) / size
        scale = np.float32(1) / inverse
        for i in range(half):
            at = np.uint32(counter + np.uint32(i))
            low = np.floor(first[i] * inverse + uniform(at))
            high = np.floor(second[i] * inverse + uniform(np.uint32(at + np.uint32(half))))
            codes[i] = np.uint8(np.int32(low) + 8 + (np.int32(high) + 8) * 16)
            first[i] -= low * scale
            second[i] -= high * scale
        return scale
    inverse = np.float32(7) / size
    scale = size / np.float32(7)
    for i in range(half):
        low, high = np.rint(first[i] * inverse), np.rint(second[i] * inverse)
        codes[i] = np.uint8(np.int32(low) + 8 + (np.int32(high) + 8) * 16)
        first[i] -= low * scale
        second[i] -= high * scale
    return scale


@kernel
def numbers_of_int4(codes, scale, out):
    """out = q scale."""
    merge_in()
    half = codes.size
    first, second = out[:half], out[half:]
    for i in range(half):
        both = np.int32(codes[i])
        first[i] = np.float32(np.int32(both & 15) - 8) * scale
        second[i] = np.float32(np.int32(both >> 4) - 8) * scale


@kernel
def codes_of_float16(x, codes):
    """IEEE 754 binary16 of x / scale, nearest (ties to even); scale a power of two by which the largest is about 2^14.

    What is below 2^-14 then, the smallest normal number, is zero: less than the largest's last bit in float32.
    """
    merge_in()
    top = largest(x)
    if top >= _INFINITE:
        return all_lost(x, codes)
    size = np.int32(top).view(np.float32)
    if size < SMALLEST:
        return none_sent(codes)
    exponent = np.int32(np.int32(top >> 23) - 127)
    shift = np.int32(exponent - _HALF_MAX)
    scale = np.int32(np.int32(shift + 127) << 23).view(np.float32)
    inverse = np.int32(np.int32(127 - shift) << 23).view(np.float32)
    out = codes.view(np.uint16)
    for i in range(out.size):
        y = np.float32(x[i] * inverse).view(np.uint32)
        magnitude = np.uint32(y & _MAGNITUDE)
        rest = np.uint32(magnitude - np.uint32(112 << 23))
        rounded = np.uint32(np.uint32(rest + np.uint32(0xFFF) + np.uint32(np.uint32(rest >> _U13) & _U1)) >> _U13)
        half = rounded if magnitude >= np.uint32(113 << 23) else np.uint32(0)
        out[i] = np.uint16(half | np.uint32(np.uint32(y & _SIGN) >> _U16))
    for i in range(out.size):
        x[i] -= float16_number(out[i]) * scale
    return scale


@kernel
def float16_number(code):
    """Return the float32 of a binary16 that is zero or normal."""
    merge_in()
    magnitude = np.uint32(np.uint32(code) & np.uint32(0x7FFF))
    sign = np.uint32(np.uint32(np.uint32(code) & np.uint32(0x8000)) << _U16)
    bits = np.uint32(np.uint32(magnitude << _U13) + np.uint32(112 << 23))
    return np.uint32((bits if magnitude > np.uint32(0) else np.uint32(0)) | sign).view(np.float32)


@kernel
def numbers_of_float16(codes, scale, out):
    """out = the half-precision number times the scale."""
    merge_in()
    given = codes.view(np.uint16)
    for i in range(out.size):
        out[i] = float16_number(given[i]) * scale


@kernel
def codes_of_bfloat16(x, codes):
    """The upper 16 bits of x, rounded to nearest (ties to even); NaN stays NaN.  Nothing is scaled: the scale is 1."""
    merge_in()
    out = codes.view(np.uint16)
    bits = x.view(np.uint32)
    for i in range(out.size):
        y = bits[i]
        rounded = np.uint32(np.uint32(y + _ROUND + np.uint32(np.uint32(y >> _U16) & _U1)) >> _U16)
        quiet = np.uint32(np.uint32(y >> _U16) | _QUIET)
        is_nan = np.uint32(y & _MAGNITUDE) > np.uint32(_INFINITE)
        out[i] = np.uint16(quiet if is_nan else rounded)
    for i in range(out.size):
        x[i] -= np.uint32(np.uint32(out[i]) << _U16).view(np.float32)
    return np.float32(1)


@kernel
def numbers_of_bfloat16(codes, scale, out):
    """out = the number whose upper 16 bits are the code; the scale is 1."""
    merge_in()
    given = codes.view(np.uint16)
    for i in range(out.size):
        out[i] = np.uint32(np.uint32(given[i]) << _U16).view(np.float32)
