"""Kernels for rows in mapped files: which row of the files an example is, and gathering rows with a check of them.

Which rows belong to a part is a set of bits, one a row: the n-th example of the part is the row of the n-th set bit.
`ranks[b]` counts the set bits before the b-th block of 512 bits, so that the search is short.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.rows import segment_of

BLOCK_WORDS = 8  # 512 bits
_EXPONENT = np.uint32(0x7F800000)
_ONE = np.uint64(1)
_M1, _M2 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_M4, _H01 = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_S1, _S2, _S4, _S56 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)


@kernel
def count_bits(word):
    """Return the number of set bits of a uint64: sums of 2, 4 and 8 bits side by side, then of the bytes."""
    word = word - ((word >> _S1) & _M1)
    word = (word & _M2) + ((word >> _S2) & _M2)
    word = (word + (word >> _S4)) & _M4
    return np.int64((word * _H01) >> _S56)


@kernel
def rank_blocks(bits, ranks):
    """Store in `ranks` (blocks + 1,) int64 the number of set bits before each block of 512 bits, and in all."""
    total = 0
    for block in range(ranks.size - 1):
        ranks[block] = total
        for word in range(block * BLOCK_WORDS, min((block + 1) * BLOCK_WORDS, bits.size)):
            total += count_bits(bits[word])
    ranks[ranks.size - 1] = total


@kernel
def select_rows(bits, ranks, rows):
    """Replace each number n in `rows` (int64) by the place of the n-th set bit of `bits` (uint64), counted from 0."""
    for i in range(rows.size):
        block = segment_of(rows[i], ranks)
        left = rows[i] - ranks[block]
        at = block * BLOCK_WORDS
        inside = count_bits(bits[at])
        while inside <= left:
            left -= inside
            at += 1
            inside = count_bits(bits[at])
        word = bits[at]
        for _ in range(left):
            word &= word - _ONE  # clears the lowest set bit
        rows[i] = at * 64 + count_bits((word & (~word + _ONE)) - _ONE)


@kernel
def gather_rows(words, first, rows, out):
    """Copy those rows that stand in `words`: out[i] = words[rows[i] - first] where that is a row of `words`.

    words, out  uint32 (.., width): float32 values.  Returns the first i whose row has a NaN or an infinity, or -1.
    """
    bad_row = -1
    for i in range(rows.size):
        row = rows[i] - first
        if 0 <= row < words.shape[0]:
            bad = 0
            for j in range(out.shape[1]):
                word = words[row, j]
                bad += (word & _EXPONENT) == _EXPONENT
                out[i, j] = word
            if bad and bad_row < 0:
                bad_row = i
    return bad_row


@kernel
def copy_rows(words, rows, out):
    """Copy rows: out[i] = words[rows[i]]; uint32 (.., width)."""
    for i in range(rows.size):
        for j in range(out.shape[1]):
            out[i, j] = words[rows[i], j]
