"""Kernels that encode blocks of numbers, each with a scale of its own: whole numbers, floats of 16 bits, signs.

What is encoded stands in `pieces` (n, 3) int64: start in the gradients, length, and the number of the piece's first
block within the payload.  A piece's last block may be short; in the payload it is as long as the others.  The payload
is `codes` (uint8, block after block) and `scales` (float32, one a block).

What encoding drops goes into `residual` (as long as the gradients), to be added to the next gradients (error feedback:
Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et al., "Error feedback fixes SignSGD",
ICML 2019).  A block that holds a NaN or an infinity is decoded as NaN throughout.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.compression.block_vectors import (
    LARGEST,
    SIZES,
    gather,
    read_int8,
    read_signs,
    settle_streams,
    write_int8,
    write_signs,
)
from hpctrain.kernels.compression.codes import (
    SMALLEST,
    all_lost,
    codes_of_bfloat16,
    codes_of_float16,
    codes_of_int4,
    codes_of_int8,
    none_sent,
    numbers_of_bfloat16,
    numbers_of_float16,
    numbers_of_int4,
)
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import merge_in, view

FLOAT16, BFLOAT16, INT8, INT4, SIGNS = range(5)
CODE_BITS = (16, 16, 8, 4, 1)  # of a number, by kind
FEEDBACK, ADD, STOCHASTIC = 1, 2, 4  # bits of `mode`
_STRIPE = 2048  # numbers that stay in the first-level cache between two looks at them
STREAM_FROM = 1 << 23  # numbers that are more than caches nearby hold: stored past them


@kernel
def gathered(values, residual, at, length, factor, mode, scratch):
    """Return the block of numbers to encode, as long as `scratch`; it may be changed.

    v = factor residual + values (with FEEDBACK and ADD), residual (FEEDBACK alone), or values; zero behind `length`.
    With FEEDBACK v is stored in the residual, and a whole block is that part of it.
    """
    merge_in()
    if not mode & FEEDBACK:
        given = view(values, at, (length,))
        for i in range(length):
            scratch[i] = given[i]
    else:
        kept = view(residual, at, (length,))
        if mode & ADD:
            given = view(values, at, (length,))
            for i in range(length):
                kept[i] = factor * kept[i] + given[i]
        if length == scratch.size:
            return kept
        for i in range(length):
            scratch[i] = kept[i]
    for i in range(length, scratch.size):
        scratch[i] = 0
    return scratch


@kernel(fastmath=False)
def measured(kind, kept, given, factor, adds, block):
    """Return what a block's scale comes from; `kept` and `given` are addresses, see `gather`."""
    merge_in()
    if kind == SIGNS:
        return gather(1, SIZES, kept, given, factor, block) if adds else gather(0, SIZES, kept, given, factor, block)
    return gather(1, LARGEST, kept, given, factor, block) if adds else gather(0, LARGEST, kept, given, factor, block)


@kernel(fastmath=False)
def coded(kind, x, out, measure, keeps):
    """Write a block's codes, INT8 to nearest or SIGNS, and return its scale; where `keeps`, x becomes what they drop.

    INT8   q = x / scale, rounded to nearest (ties to even); scale = max |x| / 127
    SIGNS  1 where x >= 0; scale = mean |x| over the block: the nearest of all blocks of +s and -s
    """
    merge_in()
    if not measure < np.inf:
        return all_lost(x if keeps else x[:0], out)
    here, codes, block = x.ctypes.data, out.ctypes.data, x.size
    if kind == SIGNS:
        scale = measure / np.float32(block)
        if keeps:
            write_signs(1, here, codes, scale, block)
        else:
            write_signs(0, here, codes, scale, block)
        return scale
    if measure < SMALLEST:
        return none_sent(out)
    inverse, scale = np.float32(127) / measure, measure / np.float32(127)
    if keeps:
        write_int8(1, here, codes, inverse, scale, block)
    else:
        write_int8(0, here, codes, inverse, scale, block)
    return scale


@kernel(fastmath=False)
def encode_by_vectors(kind, values, residual, pieces, factor, mode, codes, scales, scratch):
    """`encode_blocks` for INT8 to nearest and SIGNS.

    Several blocks are measured before the first of them is coded: a scale is waited for, and there is work meanwhile.
    """
    merge_in()
    block, size = scratch.size, codes.size // max(scales.size, 1)
    keeps = mode & FEEDBACK != 0
    adds = keeps and mode & ADD != 0
    source = residual if keeps else values
    stripe = max(1, _STRIPE // block)
    for p in range(pieces.shape[0]):
        start, length, number = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        whole = length // block
        for first in range(0, whole, stripe):
            last = min(first + stripe, whole)
            for j in range(first, last):
                at = 4 * (start + j * block)
                kept, given = source.ctypes.data + at, (values if adds else source).ctypes.data + at
                scales[number + j] = measured(kind, kept, given, factor, adds, block)
            for j in range(first, last):
                x, out = view(source, start + j * block, (block,)), view(codes, (number + j) * size, (size,))
                scales[number + j] = coded(kind, x, out, scales[number + j], keeps)
        at, left, number = start + whole * block, length - whole * block, number + whole
        if left:
            x = gathered(values, residual, at, left, factor, mode, scratch)
            out = view(codes, number * size, (size,))
            measure = measured(kind, x.ctypes.data, x.ctypes.data, factor, False, block)
            scales[number] = coded(kind, x, out, measure, True)
            if keeps:
                kept = view(residual, at, (left,))
                for i in range(left):
                    kept[i] = x[i]


@kernel
def encode_blocks(kind, values, residual, pieces, factor, mode, key, codes, scales, scratch):
    """Encode the pieces; see `gathered` for what is encoded.  With FEEDBACK, residual = that - what is decoded.

    values, residual  (n,) float32: the gradients, which are only read; one of the same length, or without FEEDBACK any
    key               uint32: of the stream of random numbers for STOCHASTIC rounding
    scratch           (block,) float32, whose length is the block's, a multiple of 16
    """
    block = scratch.size
    scratch = view(scratch, 0, (block,))  # owns nothing, as the other views: no counting of references in the loop
    if kind == SIGNS or (kind == INT8 and not mode & STOCHASTIC):
        encode_by_vectors(kind, values, residual, pieces, factor, mode, codes, scales, scratch)
        return
    size = codes.size // max(scales.size, 1)
    for p in range(pieces.shape[0]):
        start, length, number = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        for lo in range(0, length, block):
            count = min(block, length - lo)
            out = view(codes, number * size, (size,))
            x = gathered(values, residual, start + lo, count, factor, mode, scratch)
            counter = np.uint32(np.uint32(key) + np.uint32(number * block))
            rounds = mode & STOCHASTIC != 0
            if kind == INT8:
                scales[number] = codes_of_int8(x, out, counter)
            elif kind == INT4:
                scales[number] = codes_of_int4(x, out, rounds, counter)
            elif kind == FLOAT16:
                scales[number] = codes_of_float16(x, out)
            else:
                scales[number] = codes_of_bfloat16(x, out)
            if mode & FEEDBACK and count < block:
                kept = view(residual, start + lo, (count,))
                for i in range(count):
                    kept[i] = x[i]
            number += 1


@kernel
def decode_blocks(kind, codes, scales, pieces, out, add, scratch):
    """out = what the payload says, in the pieces; added to what is there where `add`.  Arguments as `encode_blocks`."""
    block = scratch.size
    scratch = view(scratch, 0, (block,))  # owns nothing, as the other views: no counting of references in the loop
    size = codes.size // max(scales.size, 1)
    streams = scales.size * block >= STREAM_FROM and out.ctypes.data % 64 == 0
    for p in range(pieces.shape[0]):
        start, length, number = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        for lo in range(0, length, block):
            count = min(block, length - lo)
            into = view(out, start + lo, (count,))
            straight = count == block and not add
            x = into if straight else scratch
            given = view(codes, number * size, (size,))
            if kind == INT8:
                if straight and streams and (start + lo) % 16 == 0:
                    read_int8(1, given.ctypes.data, scales[number], x.ctypes.data, block)
                else:
                    read_int8(0, given.ctypes.data, scales[number], x.ctypes.data, block)
            elif kind == INT4:
                numbers_of_int4(given, scales[number], x)
            elif kind == SIGNS:
                if straight and streams and (start + lo) % 16 == 0:
                    read_signs(1, given.ctypes.data, scales[number], x.ctypes.data, block)
                else:
                    read_signs(0, given.ctypes.data, scales[number], x.ctypes.data, block)
            elif kind == FLOAT16:
                numbers_of_float16(given, scales[number], x)
            else:
                numbers_of_bfloat16(given, scales[number], x)
            if not straight:
                if add:
                    for i in range(count):
                        into[i] += x[i]
                else:
                    for i in range(count):
                        into[i] = x[i]
            number += 1
    if streams:
        settle_streams()


@kernel
def add_pieces(values, residual, pieces, factor):
    """residual = factor residual + values, in the pieces."""
    for p in range(pieces.shape[0]):
        start, length = pieces[p, 0], pieces[p, 1]
        kept, given = view(residual, start, (length,)), view(values, start, (length,))
        for i in range(length):
            kept[i] = factor * kept[i] + given[i]
