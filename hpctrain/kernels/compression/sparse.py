"""Kernels that send few of many numbers: the largest, or some at random.  `pieces`, `mode`: see `blocks`.

Positions are counted from the start of the first piece.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.compression.block_vectors import LANES, settle_streams, stream_zeros
from hpctrain.kernels.compression.blocks import ADD, FEEDBACK, STREAM_FROM
from hpctrain.kernels.compression.masks import lowest_bit, ones, take_large
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.rng import hash64
from hpctrain.kernels.views import merge_in

SAMPLE = 16384  # numbers that a limit is guessed from, at most
LEAST_SAMPLE = 4096  # as many at least, or all that there are; between the two a 64th
_COARSE = 12  # bits of a limit that is guessed need not be more exact than the guess
SLACK = 4  # candidates are noted four at a time
STRIPE = 1024  # numbers at a time, so that what was just added is still in the first-level cache
_ALL_BUT_SIGN, _INFINITE = np.int32(0x7FFFFFFF), np.int32(0x7F800000)


@kernel
def magnitude(number):
    """Return the bits of |number| (float32) as int32: they compare as the numbers do, and NaN is the largest."""
    return np.int32(np.float32(number).view(np.int32) & _ALL_BUT_SIGN)


@kernel
def kth_largest(bits, k, lowest):
    """Return the k-th largest of the int32 `bits`, their signs left out, 1 <= k <= bits.size.

    The bits below `lowest` are left 0: it is 0 for the exact one.

    Bit after bit from the highest: it is 1 where at least k numbers are as large as what is known with it.  So 31
    passes, which LLVM vectorises; counting digits takes fewer, but one number at a time.
    """
    known = np.int32(0)
    for bit in range(30, lowest - 1, -1):
        with_it = np.int32(known | np.int32(1 << bit))
        reached = np.int32(0)
        for i in range(bits.size):
            reached += np.int32(np.int32(bits[i] & _ALL_BUT_SIGN) >= with_it)
        if reached >= k:
            known = with_it
    return known


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
def limit_of(sample, filled, total, k):
    """Return bits that a little more than k of `total` numbers reach, judged by a sample of them; at least 1.

    Three standard deviations more, so that there are hardly ever fewer; just k where the sample is everything.
    """
    if filled == 0:
        return np.int32(1)
    wanted = min(k, filled)
    if filled < total:
        expected = k * (filled / total)
        wanted = np.int64(expected + 3 * np.sqrt(expected) + 3)
        if wanted > filled:  # there may be smaller ones than in the sample
            return np.int32(1)
    return max(np.int32(1), kth_largest(sample[:filled], wanted, _COARSE if filled < total else 0))


@kernel
def noted(number, place, found, keys, many):
    """Note a number and its place as candidate `many`."""
    merge_in()
    found[many] = place
    keys[many] = np.float32(number).view(np.int32)


@kernel
def candidates(values, residual, pieces, factor, mode, limit, found, keys, masks, taken):
    """Note the places and bits of numbers whose magnitude reaches `limit`; return how many; see `encode_top`.

    With FEEDBACK they are taken out of the residual: while it is at hand.
    """
    origin = pieces[0, 0] if pieces.shape[0] else 0
    feedback = mode & FEEDBACK != 0
    adds = feedback and mode & ADD != 0
    source = residual if feedback else values
    room, many = found.size - SLACK, 0
    for p in range(pieces.shape[0]):
        start, stop = pieces[p, 0], pieces[p, 0] + pieces[p, 1]
        for lo in range(start, stop, STRIPE):
            count = min(STRIPE, stop - lo)
            whole = count - count % 64
            kept, given = source.ctypes.data + 4 * lo, (values if adds else source).ctypes.data + 4 * lo
            to, copy = masks.ctypes.data, taken.ctypes.data
            if adds:
                take_large(1, 1, kept, given, factor, limit, to, copy, whole)
            elif feedback:
                take_large(0, 1, kept, given, factor, limit, to, copy, whole)
            else:
                take_large(0, 0, kept, given, factor, limit, to, copy, whole)
            for word in range(whole // 64):
                mask = masks[word]
                base, end = 64 * word, many + ones(mask)
                if end > room:  # no more: they stay where they were
                    while mask != 0:
                        i = base + lowest_bit(mask)
                        mask &= mask - np.uint64(1)
                        if many < room:
                            noted(taken[i], lo + i - origin, found, keys, many)
                            many += 1
                        elif feedback:
                            residual[lo + i] = taken[i]
                    continue
                # Four at a time without asking whether there are as many: what is too much is written over.
                while many < end:
                    for j in range(4):
                        i = base + lowest_bit(mask)
                        mask &= mask - np.uint64(1)
                        noted(taken[i], lo + i - origin, found, keys, many + j)
                    many += 4
                many = end
            for place in range(lo + whole, lo + count):
                if adds:
                    residual[place] = factor * residual[place] + values[place]
                if magnitude(source[place]) >= limit and many < room:
                    noted(source[place], place - origin, found, keys, many)
                    many += 1
                    if feedback:
                        residual[place] = 0
    return many


@kernel
def encode_top(values, residual, pieces, total, factor, mode, indices, numbers, found, keys, sample, masks, taken):
    """Send the largest: indices (k,) int32, numbers (k,) float32.  With FEEDBACK they are taken out of the residual.

    total   sum of the pieces' lengths
    found   (m + SLACK,) int32 and keys, the same: room for m >= k candidates
    sample  (s,) int32; masks (STRIPE / 64,) uint64; taken (STRIPE,) float32

    Exactly the k largest, but where the guessed limit let through fewer than k, or more than m: then the first m of
    those in order.  What is left over of `indices` points to the first number with a 0.  Returns how many were sent.
    Source: Aji & Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
    """
    k = numbers.size
    filled = sampled(values, residual, pieces, total, factor, mode, sample)
    limit = limit_of(sample, filled, total, k)
    origin = pieces[0, 0] if pieces.shape[0] else 0
    many = candidates(values, residual, pieces, factor, mode, limit, found, keys, masks, taken)
    if many > k:
        limit = kth_largest(keys[:many], k, 0)
        above = 0
        for i in range(many):
            above += np.int32(keys[i] & _ALL_BUT_SIGN) > limit
        equal = k - above  # of those that are as large as the limit, the first
        kept_count = 0
        for i in range(many):
            size = np.int32(keys[i] & _ALL_BUT_SIGN)
            is_last = size == limit and equal > 0
            equal -= is_last
            place, key = found[i], keys[i]
            if size > limit or is_last:
                found[kept_count], keys[kept_count] = place, key
                kept_count += 1
            elif mode & FEEDBACK:
                residual[origin + place] = np.int32(key).view(np.float32)
        many = k
    for i in range(many):
        indices[i] = found[i]
        numbers[i] = np.int32(keys[i]).view(np.float32)
    for i in range(many, k):
        indices[i] = 0
        numbers[i] = 0
    return many


@kernel
def clear(pieces, out):
    """out = 0 in the pieces; past the caches where they are more than those hold."""
    total = 0
    for p in range(pieces.shape[0]):
        total += pieces[p, 1]
    for p in range(pieces.shape[0]):
        start, stop = pieces[p, 0], pieces[p, 0] + pieces[p, 1]
        if total >= STREAM_FROM and out.ctypes.data % 64 == 0:
            lo = min(start + -start % 32, stop)
            hi = stop - (stop - lo) % 32
            stream_zeros(out.ctypes.data + 4 * lo, hi - lo)
            out[start:lo] = 0
            out[hi:stop] = 0
        else:
            out[start:stop] = 0
    if total >= STREAM_FROM:
        settle_streams()


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
        for lo in range(start, start + length, STRIPE):
            count = min(STRIPE, start + length - lo)
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
