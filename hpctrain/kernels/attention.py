"""Scaled dot-product attention, block by block: the scores of a sequence against itself are never in memory as a whole.

Forward keeps, beside its result, one number for each query (the logarithm of its softmax's denominator); backward
computes the scores again from it (Dao et al. 2022, FlashAttention; the online softmax is Milakov & Gimelshein 2018).
So memory grows with the length of the sequence, not with its square.

Blocks are 32 queries by up to 64 keys, and stand with the queries as columns: scores[k, q].  So the softmax runs along
whole vector registers, each of whose lanes is a query, and all products are `panels.product`.  Keys that are masked
are left out when a block's keys are gathered.
"""

from __future__ import annotations

import math

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.panels import LANES, product, whole_tiles
from hpctrain.kernels.vector_math import exp
from hpctrain.kernels.views import keep_apart

KEYS = 64
"""Keys in a block: its scores (64 x 32) and the keys and values of a usual head stay in the first-level cache."""


@kernel
def attention_forward(
    qkv: np.ndarray,
    mask: np.ndarray,
    context: np.ndarray,
    log_sums: np.ndarray,
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    scores: np.ndarray,
    sums: np.ndarray,
    stats: np.ndarray,
    listed: np.ndarray,
    heads: int,
    steps: int,
    causal: bool,
    masked: bool,
) -> None:
    """context = softmax(Q K^T / sqrt(width)) V for each row and head, log_sums the logarithm of each query's sum.

    qkv (rows * steps, 3 inner): Q, K and V side by side, each of `heads` heads of width inner / heads; context (rows *
    steps, inner); log_sums (rows * heads * steps,); mask (rows * steps,), read if `masked`: keys where it is 0 count
    for nobody.  `causal`: query t sees keys up to t.  A query that sees no key gets zeros.  The others are scratch:
    queries, sums (padded * 32,), keys, values (64 * padded,), scores (64 * 32,), stats (4, 32), listed (steps,), with
    padded = the head's width rounded up to 32.
    """
    inner = context.shape[1]
    width = inner // heads
    padded = keys.size // KEYS
    scale = 1.0 / math.sqrt(width)
    zero, one, nothing = scores.dtype.type(0), scores.dtype.type(1), scores.dtype.type(-np.inf)
    top, total, shift, fade = stats[0], stats[1], stats[2], stats[3]
    for row in range(context.shape[0] // steps):
        start = row * steps
        count = list_keys(mask, masked, start, listed)
        for head in range(heads):
            column = head * width
            for first in range(0, steps, LANES):
                in_block = min(LANES, steps - first)
                load_columns(qkv, start + first, in_block, column, width, scale, queries)
                seen = visible_keys(listed, count, first + in_block, causal)
                for q in range(LANES):
                    top[q] = nothing
                    total[q] = zero
                for i in range(sums.size):
                    sums[i] = zero
                for block in range(0, seen, KEYS):
                    size = min(KEYS, seen - block)
                    load_keys(qkv, start, listed, block, size, inner + column, width, keys)
                    load_keys(qkv, start, listed, block, size, 2 * inner + column, width, values)
                    product(size, keys, 0, padded, 1, queries, 0, LANES, width, scores, 0, LANES, False)
                    if causal:
                        hide_later_keys(listed, block, size, first, scores)
                    for q in range(LANES):
                        fade[q] = top[q]
                    for k in range(size):
                        for q in range(LANES):
                            score = scores[k * LANES + q]
                            top[q] = score if score > top[q] else top[q]
                    for q in range(LANES):
                        # A query that has seen no key yet: exp(-inf - 0) is 0, exp(-inf + inf) would be NaN.
                        shift[q] = zero if top[q] == nothing else top[q]
                        fade[q] = exp(fade[q] - shift[q])
                        total[q] *= fade[q]
                    for k in range(size):
                        for q in range(LANES):
                            weight = exp(scores[k * LANES + q] - shift[q])
                            scores[k * LANES + q] = weight
                            total[q] += weight
                    if block > 0:
                        for h in range(width):
                            for q in range(LANES):
                                sums[h * LANES + q] *= fade[q]
                    product(width, values, 0, 1, padded, scores, 0, LANES, size, sums, 0, LANES, True)
                for q in range(in_block):
                    empty = total[q] == zero
                    factor = zero if empty else one / total[q]
                    of_query = (row * heads + head) * steps + first + q
                    log_sums[of_query] = zero if empty else shift[q] + math.log(total[q])
                    for h in range(width):
                        context[start + first + q, column + h] = factor * sums[h * LANES + q]


@kernel
def attention_backward(
    qkv: np.ndarray,
    mask: np.ndarray,
    context: np.ndarray,
    log_sums: np.ndarray,
    d_context: np.ndarray,
    d_qkv: np.ndarray,
    queries: np.ndarray,
    slopes: np.ndarray,
    query_rows: np.ndarray,
    slope_rows: np.ndarray,
    d_queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    d_keys: np.ndarray,
    d_values: np.ndarray,
    scores: np.ndarray,
    d_scores: np.ndarray,
    stats: np.ndarray,
    listed: np.ndarray,
    heads: int,
    steps: int,
    causal: bool,
    masked: bool,
) -> None:
    """d_qkv from d_context and what forward read and kept.

    With P = exp(S - log_sums), S = Q K^T / sqrt(width): dV = P^T dC, dP = dC V^T, dS = P (dP - delta) where delta is
    the sum over a query's features of dC C, dQ = dS K / sqrt(width), dK = dS^T Q / sqrt(width).

    Scratch: queries, slopes, query_rows, slope_rows, d_queries (padded * 32,) hold a block's Q and dC, as columns and
    as rows, and its dQ; keys, values (64 * padded,); d_keys, d_values of a whole head ((steps + 8) * padded,); scores,
    d_scores (64 * 32,); stats (2, 32); listed (steps,).
    """
    inner = context.shape[1]
    width = inner // heads
    padded = keys.size // KEYS
    scale = 1.0 / math.sqrt(width)
    zero, factor = scores.dtype.type(0), scores.dtype.type(scale)
    bottom, delta = stats[0], stats[1]
    for row in range(context.shape[0] // steps):
        start = row * steps
        count = list_keys(mask, masked, start, listed)
        for head in range(heads):
            column = head * width
            for i in range(d_keys.size):
                d_keys[i] = zero
                d_values[i] = zero
            for first in range(0, steps, LANES):
                in_block = min(LANES, steps - first)
                load_columns(qkv, start + first, in_block, column, width, scale, queries)
                load_columns(d_context, start + first, in_block, column, width, 1.0, slopes)
                load_rows(qkv, start + first, in_block, column, width, padded, scale, query_rows)
                load_rows(d_context, start + first, in_block, column, width, padded, 1.0, slope_rows)
                seen = visible_keys(listed, count, first + in_block, causal)
                for q in range(LANES):
                    bottom[q] = zero
                    delta[q] = zero
                for q in range(in_block):
                    bottom[q] = log_sums[(row * heads + head) * steps + first + q]
                    total = zero
                    for h in range(width):
                        total += context[start + first + q, column + h] * d_context[start + first + q, column + h]
                    delta[q] = total
                for i in range(d_queries.size):
                    d_queries[i] = zero
                for block in range(0, seen, KEYS):
                    size = min(KEYS, seen - block)
                    load_keys(qkv, start, listed, block, size, inner + column, width, keys)
                    load_keys(qkv, start, listed, block, size, 2 * inner + column, width, values)
                    product(size, keys, 0, padded, 1, queries, 0, LANES, width, scores, 0, LANES, False)
                    product(size, values, 0, padded, 1, slopes, 0, LANES, width, d_scores, 0, LANES, False)
                    if causal:
                        hide_later_keys(listed, block, size, first, scores)
                    for k in range(size):
                        for q in range(LANES):
                            weight = exp(scores[k * LANES + q] - bottom[q])
                            scores[k * LANES + q] = weight
                            d_scores[k * LANES + q] = weight * (d_scores[k * LANES + q] - delta[q])
                    # The rows that round the block up to whole tiles are added to the keys behind it: as zeros.
                    for i in range(size * LANES, whole_tiles(size) * LANES):
                        scores[i] = zero
                        d_scores[i] = zero
                    for j in range(0, padded, LANES):
                        at = block * padded + j
                        product(size, scores, 0, LANES, 1, slope_rows, j, padded, in_block, d_values, at, padded, True)
                        product(size, d_scores, 0, LANES, 1, query_rows, j, padded, in_block, d_keys, at, padded, True)
                        product(in_block, d_scores, 0, 1, LANES, keys, j, padded, size, d_queries, j, padded, True)
                for q in range(in_block):
                    for h in range(width):
                        d_qkv[start + first + q, column + h] = factor * d_queries[q * padded + h]
            store_keys(d_keys, start, listed, count, inner + column, width, padded, steps, d_qkv)
            store_keys(d_values, start, listed, count, 2 * inner + column, width, padded, steps, d_qkv)


@kernel
def list_keys(mask: np.ndarray, masked: bool, start: int, listed: np.ndarray) -> int:
    """Write the steps whose keys count (mask[start + step] not 0, or all) to `listed`; return their number."""
    count = 0
    for step in range(listed.size):
        if not masked or mask[start + step] != 0:
            listed[count] = step
            count += 1
    return count


@kernel
def visible_keys(listed: np.ndarray, count: int, end: int, causal: bool) -> int:
    """Return how many of the listed keys some query before step `end` sees."""
    while causal and count > 0 and listed[count - 1] >= end:
        count -= 1
    return count


@kernel
def hide_later_keys(listed: np.ndarray, block: int, size: int, first: int, scores: np.ndarray) -> None:
    """scores[k, q] = -infinity where key k of the block comes after query first + q."""
    for k in range(size - 1, -1, -1):
        ahead = int(listed[block + k]) - first
        if ahead <= 0:
            break
        for q in range(ahead):
            scores[k * LANES + q] = -np.inf


@kernel
def load_columns(
    source: np.ndarray, first: int, count: int, column: int, width: int, scale: float, out: np.ndarray
) -> None:
    """out[h, q] = scale source[first + q, column + h] for q < count, 0 for q from count to 32."""
    keep_apart()
    zero, factor = out.dtype.type(0), out.dtype.type(scale)
    for h in range(width):
        for q in range(count):
            out[h * LANES + q] = factor * source[first + q, column + h]
        for q in range(count, LANES):
            out[h * LANES + q] = zero


@kernel
def load_rows(
    source: np.ndarray, first: int, count: int, column: int, width: int, padded: int, scale: float, out: np.ndarray
) -> None:
    """out[q, h] = scale source[first + q, column + h] for q < count and h < width, 0 for h up to padded, q up to 32."""
    keep_apart()
    zero, factor = out.dtype.type(0), out.dtype.type(scale)
    for q in range(count):
        for h in range(width):
            out[q * padded + h] = factor * source[first + q, column + h]
        for h in range(width, padded):
            out[q * padded + h] = zero
    for i in range(count * padded, LANES * padded):
        out[i] = zero


@kernel
def load_keys(
    source: np.ndarray,
    start: int,
    listed: np.ndarray,
    block: int,
    size: int,
    column: int,
    width: int,
    out: np.ndarray,
) -> None:
    """out[k, h] = source[start + listed[block + k], column + h]; 0 beyond width, and beyond size up to whole tiles."""
    keep_apart()
    zero, padded = out.dtype.type(0), out.size // KEYS
    for k in range(size):
        row = start + int(listed[block + k])
        for h in range(width):
            out[k * padded + h] = source[row, column + h]
        for h in range(width, padded):
            out[k * padded + h] = zero
    for i in range(size * padded, whole_tiles(size) * padded):
        out[i] = zero


@kernel
def store_keys(
    source: np.ndarray,
    start: int,
    listed: np.ndarray,
    count: int,
    column: int,
    width: int,
    padded: int,
    steps: int,
    out: np.ndarray,
) -> None:
    """out[start + listed[k], column + h] = source[k, h], and 0 for the steps that are not listed."""
    keep_apart()
    k = 0
    for step in range(steps):
        if k < count and listed[k] == step:
            for h in range(width):
                out[start + step, column + h] = source[k * padded + h]
            k += 1
        else:
            for h in range(width):
                out[start + step, column + h] = 0.0
