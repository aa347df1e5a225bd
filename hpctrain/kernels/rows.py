"""Kernels of the data path: shuffled positions, the plan of an exchange of rows, and copying rows about.

Rows are moved as 32-bit words, whatever they mean: float32 inputs, targets and weights are one word a
number, int64 labels two.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.rng import hash64, mix64

_ROUND_PAIRS = 4
_LEAST_BITS = 8
_M1, _M2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_S13, _S16 = np.uint32(13), np.uint32(16)
_EXPONENT = np.uint32(0x7F800000)


@kernel
def scramble(x, key):
    """Scramble 32 bits under a 32-bit key: the finalizer of MurmurHash3 on x ^ key.

    h = x ^ key;  h = (h ^ h >> 16) * 0x85EBCA6B;  h = (h ^ h >> 13) * 0xC2B2AE35;  h ^ h >> 16      (mod 2^32)
    """
    h = x ^ key
    h = np.uint32(h ^ (h >> _S16)) * _M1
    h = np.uint32(np.uint32(h) ^ (np.uint32(h) >> _S13)) * _M2
    return np.uint32(np.uint32(h) ^ (np.uint32(h) >> _S16))


@kernel
def feistel(x, key, low, left_mask, right_mask):
    """Map x to another number of as many bits: eight Feistel rounds, a bijection for every key (uint64).

    x is split into a left half L and a right half R of `low` bits; in turn L ^= F(R) and R ^= F(L), with F the scramble
    above under the low 32 bits of mix64(key ^ round).  The masks have as many ones as the halves have bits.

    Source: Luby, Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988.
    """
    left, right = np.uint32(x >> low), np.uint32(x) & right_mask
    for pair in range(_ROUND_PAIRS):
        left ^= scramble(right, np.uint32(mix64(key ^ np.uint64(2 * pair)))) & left_mask
        right ^= scramble(left, np.uint32(mix64(key ^ np.uint64(2 * pair + 1)))) & right_mask
    return (np.uint64(left) << low) | np.uint64(right)


@kernel
def permute_range(seed, stream, number, count, first, out):
    """Store a pseudo-random permutation of [0, count) at positions first, first + 1, ... in `out` (int64).

    The permutation is named by the integers (seed, stream, number); no index is ever stored.  A position goes through
    `feistel` on b bits, 2^b >= count, and once more as long as the result is outside [0, count): fewer than twice on
    average for more than 128 rows.  With fewer than 8 bits eight rounds do not mix well, so b is at least 8.

    Source: Black, Rogaway, "Ciphers with arbitrary finite domains", 2002 (cycle walking).
    """
    key = hash64(hash64(np.uint64(seed), np.uint64(stream)), np.uint64(number))
    bits = _LEAST_BITS
    while (np.int64(1) << bits) < count:
        bits += 1
    low = np.uint64(bits - bits // 2)
    left_mask = np.uint32((np.uint64(1) << np.uint64(bits // 2)) - np.uint64(1))
    right_mask = np.uint32((np.uint64(1) << low) - np.uint64(1))
    for i in range(out.size):  # a loop of its own, because without a branch it is vectorised
        out[i] = np.int64(feistel(np.uint64(first + i), key, low, left_mask, right_mask))
    for i in range(out.size):
        while out[i] >= count:
            out[i] = np.int64(feistel(np.uint64(out[i]), key, low, left_mask, right_mask))


@kernel
def share_start(rows, rank, size, unit):
    """Return the first row of rank's even contiguous share of `rows`; the share ends where the next rank's starts.

    Shares are whole units of `unit` rows (the last unit may be short): of n units, rank has those from
    rank * (n // size) + min(rank, n % size) on, so that the first n % size ranks have one unit more.
    """
    units = -(-rows // unit)
    return min((rank * (units // size) + min(rank, units % size)) * unit, rows)


@kernel
def segment_of(value, starts):
    """Return the segment s with starts[s] <= value < starts[s + 1]; empty segments repeat a value of `starts`."""
    lo, hi = 0, starts.size - 1
    while hi - lo > 1:
        middle = (lo + hi) // 2
        if starts[middle] <= value:
            lo = middle
        else:
            hi = middle
    return lo


@kernel
def plan_window(
    ids, batch, unit, firsts, owners, bases, rank, place, send_index, send_rows, receive_rows, source, cursor
):
    """Plan the exchange of several steps' rows, and return how many rows leave this rank.

    ids           (positions,) int64 example ids at the window's positions: batches of `batch`, the last may be short
    firsts        (chunks + 1,) int64: chunk c has the examples firsts[c] .. firsts[c + 1]
    owners        (chunks,) int64: the rank that holds a chunk's rows
    bases         (chunks,) int64: of a chunk that this rank holds, the row of its buffer at which the chunk begins
    place         (positions,) int64 scratch
    send_index    out, int64: rows of this rank's buffer that others work on, ordered by worker, then position
    send_rows     out, (size,) int64: how many of them for each worker
    receive_rows  out, (size,) int64: how many rows come from each rank
    source        out, int64, one for each position that this rank works on, in order: the row of the own buffer (>= 0),
                  or ~row of the receive buffer (< 0), which is ordered by sender, then position
    cursor        (size,) int64 scratch

    Of a batch of n rows, worker w takes share_start(n, w, size, unit) .. share_start(n, w + 1, size, unit).
    """
    size = send_rows.size
    for j in range(ids.size):
        chunk = segment_of(ids[j], firsts)
        owner = owners[chunk]
        place[j] = bases[chunk] + ids[j] - firsts[chunk] if owner == rank else ~owner

    leaving = 0
    for worker in range(size):
        receive_rows[worker] = 0
        before = leaving
        if worker != rank:
            for at in range(0, ids.size, batch):
                rows = min(batch, ids.size - at)
                begin, end = share_start(rows, worker, size, unit), share_start(rows, worker + 1, size, unit)
                for j in range(at + begin, at + end):
                    if place[j] >= 0:
                        send_index[leaving] = place[j]
                        leaving += 1
        send_rows[worker] = leaving - before

    mine = 0
    for at in range(0, ids.size, batch):
        rows = min(batch, ids.size - at)
        for j in range(at + share_start(rows, rank, size, unit), at + share_start(rows, rank + 1, size, unit)):
            source[mine] = place[j]
            if place[j] < 0:
                receive_rows[~place[j]] += 1
            mine += 1

    arriving = 0
    for other in range(size):
        cursor[other] = arriving
        arriving += receive_rows[other]

    for i in range(mine):
        if source[i] < 0:
            owner = ~source[i]
            source[i] = ~cursor[owner]
            cursor[owner] += 1
    return leaving


@kernel
def pack_rows(inputs, targets, weights, index, out):
    """Copy rows for the wire: out[i] = inputs[index[i]], then targets[index[i]], then weights[index[i]]; uint32 words.

    Any of the three may have no columns.
    """
    width = inputs.shape[1]
    after = width + targets.shape[1]
    for i in range(index.size):
        row = index[i]
        for j in range(width):
            out[i, j] = inputs[row, j]
        for j in range(targets.shape[1]):
            out[i, width + j] = targets[row, j]
        for j in range(weights.shape[1]):
            out[i, after + j] = weights[row, j]


@kernel
def assemble_rows(inputs, targets, weights, received, source, out_inputs, out_targets, out_weights):
    """Put a batch together: row i is the own row source[i] if that is >= 0, else received[~source[i]]; uint32 words."""
    width = inputs.shape[1]
    after = width + targets.shape[1]
    for i in range(source.size):
        row = source[i]
        if row >= 0:
            for j in range(width):
                out_inputs[i, j] = inputs[row, j]
            for j in range(targets.shape[1]):
                out_targets[i, j] = targets[row, j]
            for j in range(weights.shape[1]):
                out_weights[i, j] = weights[row, j]
        else:
            row = ~row
            for j in range(width):
                out_inputs[i, j] = received[row, j]
            for j in range(targets.shape[1]):
                out_targets[i, j] = received[row, width + j]
            for j in range(weights.shape[1]):
                out_weights[i, j] = received[row, after + j]


@kernel
def first_nonfinite_row(words):
    """Return the first row of float32 values, seen as (rows, width) uint32, that has a NaN or an infinity, or -1.

    A float32 is NaN or infinite when all eight exponent bits are set.
    """
    for i in range(words.shape[0]):
        bad = 0
        for j in range(words.shape[1]):
            bad += (words[i, j] & _EXPONENT) == _EXPONENT
        if bad:
            return i
    return -1
