"""Kernels for the order "chunks": chunks of rows in random order, mixed within pools, and which rank reads which chunk.

An epoch goes through the chunks in an order; runs of them in that order are *pools*, whose rows are mixed with each
other.  Positions count the epoch's examples: the k-th chunk in the order begins at position starts[k].
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.rows import permute_range, segment_of


@kernel
def cut_pools(order, firsts, least, starts, cuts):
    """Cut an order of chunks into pools of at least `least` examples, but the last; return how many there are.

    order   (chunks,) int64: the order of the chunks
    firsts  (chunks + 1,) int64: chunk c has the examples firsts[c] .. firsts[c + 1]
    starts  out, (chunks + 1,) int64: the position at which the k-th chunk of the order begins
    cuts    out, (chunks + 1,) int64: pool j has the chunks order[cuts[j]] .. order[cuts[j + 1] - 1]
    """
    at, begin, pools = 0, 0, 0
    cuts[0] = 0
    for k in range(order.size):
        starts[k] = at
        at += firsts[order[k] + 1] - firsts[order[k]]
        if at - begin >= least:
            pools += 1
            cuts[pools] = k + 1
            begin = at
    starts[order.size] = at
    if at > begin:
        pools += 1
    cuts[pools] = order.size
    return pools


@kernel
def pooled_ids(seed, stream, epoch, order, firsts, starts, cuts, pools, first, out):
    """Store the example ids at the positions first, first + 1, ... in `out` (int64).

    Within a pool of n examples the one at place permutation(p) comes at place p, where the permutation of [0, n) is
    named by (seed, stream, epoch * 2^32 + pool), see `permute_range`.
    """
    lo, hi = 0, pools
    while hi - lo > 1:
        middle = (lo + hi) // 2
        if starts[cuts[middle]] <= first:
            lo = middle
        else:
            hi = middle
    pool, done = lo, 0
    while done < out.size:
        begin, end = starts[cuts[pool]], starts[cuts[pool + 1]]
        stop = min(end - first, out.size)
        number = (np.int64(epoch) << np.int64(32)) + pool
        permute_range(np.uint64(seed), stream, number, end - begin, first + done - begin, out[done:stop])
        within = starts[cuts[pool] : cuts[pool + 1] + 1]
        for i in range(done, stop):
            k = segment_of(begin + out[i], within)
            out[i] += begin - within[k] + firsts[order[cuts[pool] + k]]
        done = stop
        pool += 1


@kernel
def place_chunks(order, firsts, cuts, pools, first_half, room, readers, load, owners, bases):
    """Say of each chunk which rank reads it, and at which row of its buffer it then begins.

    first_half  0 or 1: where the first pool stands; the next pools stand in turn in the one half and the other
    room        rows of one half of a rank's buffer
    readers     (chunks, 2) int64: chunk c may be read by the ranks readers[c, 0] .. readers[c, 1] - 1
    load        (ranks,) int64 scratch
    owners      out, (chunks,) int64: of a pool's chunks, in order, each goes to the rank with the fewest rows so far
    bases       out, (chunks,) int64: rows of the owner's buffer
    """
    for pool in range(pools):
        load[:] = 0
        for k in range(cuts[pool], cuts[pool + 1]):
            chunk = order[k]
            best = readers[chunk, 0]
            for rank in range(readers[chunk, 0], readers[chunk, 1]):
                if load[rank] < load[best]:
                    best = rank
            owners[chunk] = best
            bases[chunk] = ((pool + first_half) % 2) * room + load[best]
            load[best] += firsts[chunk + 1] - firsts[chunk]
