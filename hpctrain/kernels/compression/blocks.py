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

from hpctrain.kernels.compression.codes import (
    codes_of_bfloat16,
    codes_of_float16,
    codes_of_int4,
    codes_of_int8,
    codes_of_signs,
    numbers_of_bfloat16,
    numbers_of_float16,
    numbers_of_int4,
    numbers_of_int8,
    numbers_of_signs,
)
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import merge_in, view

FLOAT16, BFLOAT16, INT8, INT4, SIGNS = range(5)
CODE_BITS = (16, 16, 8, 4, 1)  # of a number, by kind
FEEDBACK, ADD, STOCHASTIC = 1, 2, 4  # bits of `mode`


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


@kernel
def encode_blocks(kind, values, residual, pieces, factor, mode, key, codes, scales, scratch):
    """Encode the pieces; see `gathered` for what is encoded.  With FEEDBACK, residual = that - what is decoded.

    values, residual  (n,) float32: the gradients, which are only read; one of the same length, or without FEEDBACK any
    key               uint32: of the stream of random numbers for STOCHASTIC rounding
    scratch           (block,) float32, whose length is the block's, a multiple of 16
    """
    block = scratch.size
    scratch = view(scratch, 0, (block,))  # owns nothing, as the other views: no counting of references in the loop
    size = codes.size // max(scales.size, 1)
    for p in range(pieces.shape[0]):
        start, length, number = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        for lo in range(0, length, block):
            count = min(block, length - lo)
            x = gathered(values, residual, start + lo, count, factor, mode, scratch)
            out = view(codes, number * size, (size,))
            counter = np.uint32(np.uint32(key) + np.uint32(number * block))
            rounds = mode & STOCHASTIC != 0
            if kind == INT8:
                scales[number] = codes_of_int8(x, out, rounds, counter)
            elif kind == INT4:
                scales[number] = codes_of_int4(x, out, rounds, counter)
            elif kind == SIGNS:
                scales[number] = codes_of_signs(x, out)
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
    for p in range(pieces.shape[0]):
        start, length, number = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        for lo in range(0, length, block):
            count = min(block, length - lo)
            into = view(out, start + lo, (count,))
            straight = count == block and not add
            x = into if straight else scratch
            given = view(codes, number * size, (size,))
            if kind == INT8:
                numbers_of_int8(given, scales[number], x)
            elif kind == INT4:
                numbers_of_int4(given, scales[number], x)
            elif kind == SIGNS:
                numbers_of_signs(given, scales[number], x)
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


@kernel
def add_pieces(values, residual, pieces, factor):
    """residual = factor residual + values, in the pieces."""
    for p in range(pieces.shape[0]):
        start, length = pieces[p, 0], pieces[p, 1]
        kept, given = view(residual, start, (length,)), view(values, start, (length,))
        for i in range(length):
            kept[i] = factor * kept[i] + given[i]
