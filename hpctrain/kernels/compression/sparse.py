"""Kernels that send few of many numbers: the largest, or some at random.  `pieces`, `mode`: see `blocks`.

Positions are counted from the start of the first piece.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.compression.blocks import ADD, FEEDBACK
from hpctrain.kernels.compression.masks import LANES, lowest_bit, not_below
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.rng import hash64

DIGITS = 2048  # room to count in: the highest 11 bits of a positive int32, then 10, then 10
SAMPLE = 16384  # numbers that a limit is guessed from
_STRIPE = 1024  # numbers at a time, so that what was just added is still in the first-level cache
_ALL_BUT_SIGN, _INFINITE = np.int32(0x7FFFFFFF), np.int32(0x7F800000)


@kernel
def magnitude(number):
    """Return the bits of |number| (float32) as int32: they compare as the numbers do, and NaN is the largest."""
    return np.int32(np.float32(number).view(np.int32) & _ALL_BUT_SIGN)


@kernel
def kth_largest(bits, k, counts):
    """Return the k-th largest of the positive int32 `bits`, 1 <= k <= bits.size, by counting digit after digit."""
    known, mask, shift, width = np.int64(0), np.int64(0), 20, 11
    left = k
    for _ in range(3):
        digits = 1 << width
        counts[:digits] = 0
        for i in range(bits.size):
            value = np.int64(bits[i])
            if value & mask == known:
                counts[(value >> shift) & (digits - 1)] += 1
        digit = digits - 1
        while counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        known |= np.int64(digit) << shift
        mask |= np.int64(digits - 1) << shift
        shift, width = max(shift - 10, 0), 10
    return np.int32(known)


@kernel
def sampled(values, residual, pieces, total, factor, mode, sample):
    """Fill `sample` (int32) with bits of numbers to encode, from lines spread over the pieces; return how many.

    All of them where they are no more than there is room for.
    """
    every = max(1, total // (sample.size // LANES)) if total > sample.size else LANES
    filled, wanted, before = 0, 0, 0  # `wanted`: where the next line begins, all pieces one behind the other
    for p in range(pieces.shape[0]):
        start, length = pieces[p, 0], pieces[p, 1]
        while wanted < before + length and filled < sample.size:
            lo = max(wanted - before, 0)
            for at in range(start + lo, start + min(lo + LANES, length)):
                if filled < sample.size:
                    number = values[at] if not mode & FEEDBACK else residual[at]
                    if mode & FEEDBACK and mode & ADD:
                        number = factor * residual[at] + values[at]
                    sample[filled] = magnitude(number)
                    filled += 1
            wanted += max(every, LANES)
        before += length
        if total <= sample.size:
            wanted = before
    return filled


@kernel
def limit_of(sample, filled, total, k, counts):
    """Return bits that a little more than k of `total` numbers reach, judged by a sample of them; at least 1.

    Two standard deviations more, so that there are seldom fewer; just k where the sample is everything.
    """
    if filled == 0:
        return np.int32(1)
    wanted = min(k, filled)
    if filled < total:
        expected = k * (filled / total)
        wanted = min(filled, np.int64(expected + 2 * np.sqrt(expected) + 2))
    return max(np.int32(1), kth_largest(sample[:filled], wanted, counts))


@kernel
def encode_top(values, residual, pieces, total, factor, mode, indices, numbers, found, keys, sample, counts):
    """Send the largest: indices (k,) int32, numbers (k,) float32.  With FEEDBACK they are taken out of the residual.

    total   sum of the pieces' lengths
    found   (m,) int32 and keys (m,) int32: room for candidates, m >= k; sample (SAMPLE,) and counts (DIGITS,) int32

    Exactly the k largest, but where the guessed limit let through fewer than k, or more than m: then the first m of
    those in order.  What is left over of `indices` points to the first number with a 0.  Returns how many were sent.
    Source: Aji & Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
    """
    k = numbers.size
    filled = sampled(values, residual, pieces, total, factor, mode, sample)
    limit = limit_of(sample, filled, total, k, counts)
    origin = pieces[0, 0] if pieces.shape[0] else 0
    source = residual if mode & FEEDBACK else values
    many = 0
    for p in range(pieces.shape[0]):
        start, length = pieces[p, 0], pieces[p, 1]
        for lo in range(start, start + length, _STRIPE):
            count = min(_STRIPE, start + length - lo)
            if mode & FEEDBACK and mode & ADD:
                kept, given = residual[lo : lo + count], values[lo : lo + count]
                for i in range(count):
                    kept[i] = factor * kept[i] + given[i]
            whole = count - count % LANES
            address = source[lo : lo + count].ctypes.data
            for at in range(0, whole, LANES):
                mask = not_below(address + 4 * at, limit)
                while mask != 0:
                    place = lo + at + lowest_bit(mask)
                    mask = np.uint16(mask & np.uint16(mask - np.uint16(1)))
                    if many < found.size:
                        found[many] = place - origin
                        many += 1
            for place in range(lo + whole, lo + count):
                if magnitude(source[place]) >= limit and many < found.size:
                    found[many] = place - origin
                    many += 1
    if many > k:
        for i in range(many):
            keys[i] = magnitude(source[origin + found[i]])
        limit = kth_largest(keys[:many], k, counts)
        above = 0
        for i in range(many):
            above += keys[i] > limit
        equal = k - above  # of those that are as large as the limit, the first
        kept_count = 0
        for i in range(many):
            take = keys[i] > limit
            if keys[i] == limit and equal > 0:
                take, equal = True, equal - 1
            if take:
                found[kept_count] = found[i]
                kept_count += 1
        many = k
    for i in range(many):
        place = origin + found[i]
        indices[i] = found[i]
        numbers[i] = source[place]
        if mode & FEEDBACK:
            residual[place] = 0
    for i in range(many, k):
        indices[i] = 0
        numbers[i] = 0
    return many


@kernel
def clear(pieces, out):
    """out = 0 in the pieces."""
    for p in range(pieces.shape[0]):
        start, length = pieces[p, 0], pieces[p, 1]
        part = out[start : start + length]
        for i in range(length):
            part[i] = 0


@kernel
def decode_top(indices, numbers, pieces, out, add):
    """out = the numbers at their places and 0 elsewhere in the pieces; added to what is there where `add`."""
    if not add:
        clear(pieces, out)
    origin = pieces[0, 0] if pieces.shape[0] else 0
    for i in range(numbers.size):
        out[origin + indices[i]] += numbers[i]


@kernel
def places(pieces, total, key, chosen):
    """Choose one place at random in each of chosen.size near-even parts of the pieces, one behind the other.

    chosen  (k,) int64, k <= total: gets positions in the gradients.  Each is chosen with the probability k / total.
    """
    p, before = 0, 0
    k = chosen.size
    for j in range(k):
        lo, hi = j * total // k, (j + 1) * total // k
        at = lo + np.int64(hash64(key, j) % np.uint64(hi - lo))
        while at >= before + pieces[p, 1]:
            before += pieces[p, 1]
            p += 1
        chosen[j] = pieces[p, 0] + at - before


@kernel
def encode_places(values, residual, pieces, factor, mode, chosen, numbers):
    """numbers = what stands at the chosen places; with FEEDBACK it is taken out of the residual.

    A NaN or infinity that is not chosen makes the first number NaN: it must be seen.
    """
    source = residual if mode & FEEDBACK else values
    top = np.int32(0)
    for p in range(pieces.shape[0]):
        start, length = pieces[p, 0], pieces[p, 1]
        for lo in range(start, start + length, _STRIPE):
            count = min(_STRIPE, start + length - lo)
            if mode & FEEDBACK:
                kept, given = residual[lo : lo + count], values[lo : lo + count]
                for i in range(count):
                    kept[i] = factor * kept[i] + given[i]
            bits = source[lo : lo + count].view(np.int32)
            for i in range(count):
                top = max(top, np.int32(bits[i] & _ALL_BUT_SIGN))
    for j in range(numbers.size):
        numbers[j] = source[chosen[j]]
        if mode & FEEDBACK:
            residual[chosen[j]] = 0
    if top >= _INFINITE and numbers.size:
        numbers[0] = np.nan


@kernel
def decode_places(chosen, numbers, pieces, scale, out):
    """out = scale times the numbers at the chosen places, and 0 elsewhere in the pieces."""
    clear(pieces, out)
    for j in range(numbers.size):
        out[chosen[j]] = scale * numbers[j]


@kernel
def pack(values, pieces, out):
    """Copy the pieces to where their numbers say: out[number ...] = values[start ...]."""
    for p in range(pieces.shape[0]):
        start, length, number = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        given, into = values[start : start + length], out[number : number + length]
        for i in range(length):
            into[i] = given[i]


@kernel
def unpack(packed, pieces, out):
    """Copy back what `pack` copied."""
    for p in range(pieces.shape[0]):
        start, length, number = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        given, into = packed[number : number + length], out[start : start + length]
        for i in range(length):
            into[i] = given[i]
