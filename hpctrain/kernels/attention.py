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
from hpctrain.kernels.panel_softmax import BOTTOM, DELTA, FADE, TOP, TOTAL, soften, soften_backward
from hpctrain.kernels.panels import LANES, product, whole_tiles
from hpctrain.kernels.views import keep_apart, view

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
    queries (padded, 32), sums (32, padded), keys, values (64, padded), scores (64, 32), stats (3, 32), listed (steps,),
    with padded = the head's width rounded up to 32.
    """
    inner = context.shape[1]
    width = inner // heads
    padded = keys.shape[1]
    scale = 1.0 / math.sqrt(width)
    zero, one, nothing = scores.dtype.type(0), scores.dtype.type(1), scores.dtype.type(-np.inf)
    for row in range(context.shape[0] // steps):
        start = row * steps
        count = list_keys(mask, masked, start, listed)
        for head in range(heads):
            column = head * width
            of_head = log_sums[(row * heads + head) * steps : (row * heads + head + 1) * steps]
            for first in range(0, steps, LANES):
                in_block = min(LANES, steps - first)
                load_columns(qkv, start + first, in_block, column, width, scale, queries)
                seen = visible_keys(listed, count, first + in_block, causal)
                fill(stats[TOP], nothing)
                fill(stats[TOTAL], zero)
                fill(view(sums, 0, (sums.size,)), zero)
                for block in range(0, seen, KEYS):
                    size = min(KEYS, seen - block)
                    load_keys(qkv, start, listed[block : block + size], inner + column, width, keys)
                    load_keys(qkv, start, listed[block : block + size], 2 * inner + column, width, values)
                    product(size, keys, 0, padded, 1, queries, 0, LANES, width, scores, 0, LANES, False)
                    if causal:
                        hide_later_keys(listed[block : block + size], first, scores)
                    soften(scores, size, stats)
                    if block > 0:
                        multiply_rows(sums, stats[FADE])
                    for j in range(0, padded, LANES):
                        product(in_block, scores, 0, 1, LANES, values, j, padded, size, sums, j, padded, True)
                for q in range(in_block):
                    empty = stats[TOTAL, q] == zero
                    factor = zero if empty else one / stats[TOTAL, q]
                    of_head[first + q] = zero if empty else stats[TOP, q] + math.log(stats[TOTAL, q])
                    out = context[start + first + q, column : column + width]
                    for h in range(width):
                        out[h] = factor * sums[q, h]


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

    Scratch: queries, slopes (padded, 32) hold a block's Q and dC as columns, query_rows, slope_rows (32, padded) as
    rows; d_queries (32, padded); keys, values (64, padded); d_keys, d_values (steps + 8, padded) of a whole head;
    scores, d_scores (64, 32); stats (3, 32); listed (steps,).
    """
    inner = context.shape[1]
    width = inner // heads
    padded = keys.shape[1]
    scale = 1.0 / math.sqrt(width)
    zero, factor = scores.dtype.type(0), scores.dtype.type(scale)
    for row in range(context.shape[0] // steps):
        start = row * steps
        count = list_keys(mask, masked, start, listed)
        for head in range(heads):
            column = head * width
            of_head = log_sums[(row * heads + head) * steps : (row * heads + head + 1) * steps]
            fill(view(d_keys, 0, (d_keys.size,)), zero)
            fill(view(d_values, 0, (d_values.size,)), zero)
            for first in range(0, steps, LANES):
                in_block = min(LANES, steps - first)
                load_columns(qkv, start + first, in_block, column, width, scale, queries)
                load_columns(d_context, start + first, in_block, column, width, 1.0, slopes)
                load_rows(qkv, start + first, in_block, column, width, scale, query_rows)
                load_rows(d_context, start + first, in_block, column, width, 1.0, slope_rows)
                seen = visible_keys(listed, count, first + in_block, causal)
                fill(stats[BOTTOM], zero)
                fill(stats[DELTA], zero)
                for q in range(in_block):
                    stats[BOTTOM, q] = of_head[first + q]
                    result = context[start + first + q, column : column + width]
                    total = zero
                    for h in range(width):
                        total += result[h] * slope_rows[q, h]
                    stats[DELTA, q] = total
                fill(view(d_queries, 0, (d_queries.size,)), zero)
                for block in range(0, seen, KEYS):
                    size = min(KEYS, seen - block)
                    load_keys(qkv, start, listed[block : block + size], inner + column, width, keys)
                    load_keys(qkv, start, listed[block : block + size], 2 * inner + column, width, values)
                    product(size, keys, 0, padded, 1, queries, 0, LANES, width, scores, 0, LANES, False)
                    product(size, values, 0, padded, 1, slopes, 0, LANES, width, d_scores, 0, LANES, False)
                    if causal:
                        hide_later_keys(listed[block : block + size], first, scores)
                    soften_backward(scores, d_scores, size, stats)
                    # The rows that round the block up to whole tiles are added to the keys behind it: as zeros.
                    for k in range(size, whole_tiles(size)):
                        fill(scores[k], zero)
                        fill(d_scores[k], zero)
                    for j in range(0, padded, LANES):
                        at = block * padded + j
                        product(size, scores, 0, LANES, 1, slope_rows, j, padded, in_block, d_values, at, padded, True)
                        product(size, d_scores, 0, LANES, 1, query_rows, j, padded, in_block, d_keys, at, padded, True)
                        product(in_block, d_scores, 0, 1, LANES, keys, j, padded, size, d_queries, j, padded, True)
                for q in range(in_block):
                    out = d_qkv[start + first + q, column : column + width]
                    for h in range(width):
                        out[h] = factor * d_queries[q, h]
            store_keys(d_keys, start, listed, count, inner + column, width, steps, d_qkv)
            store_keys(d_values, start, listed, count, 2 * inner + column, width, steps, d_qkv)


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
def hide_later_keys(listed: np.ndarray, first: int, scores: np.ndarray) -> None:
    """scores[k, q] = -infinity where the k-th listed key comes after query first + q."""
    for k in range(listed.size - 1, -1, -1):
        ahead = int(listed[k]) - first
        if ahead <= 0:
            break
        for q in range(ahead):
            scores[k, q] = -np.inf


@kernel
def fill(out: np.ndarray, value: float) -> None:
    """out[i] = value."""
    for i in range(out.size):
        out[i] = value


@kernel
def multiply_rows(out: np.ndarray, factors: np.ndarray) -> None:
    """out[q, h] *= factors[q]."""
    for q in range(out.shape[0]):
        for h in range(out.shape[1]):
            out[q, h] *= factors[q]


@kernel
def load_columns(
    source: np.ndarray, first: int, count: int, column: int, width: int, scale: float, out: np.ndarray
) -> None:
    """out[h, q] = scale source[first + q, column + h] for q < count, 0 for q from count to 32."""
    keep_apart()
    zero, factor = out.dtype.type(0), out.dtype.type(scale)
    for q in range(LANES):
        if q < count:
            line = source[first + q, column : column + width]
            for h in range(width):
                out[h, q] = factor * line[h]
        else:
            for h in range(width):
                out[h, q] = zero


@kernel
def load_rows(
    source: np.ndarray, first: int, count: int, column: int, width: int, scale: float, out: np.ndarray
) -> None:
    """out[q, h] = scale source[first + q, column + h] for q < count and h < width, else 0."""
    keep_apart()
    factor = out.dtype.type(scale)
    for q in range(LANES):
        read = width if q < count else 0
        line = source[first + min(q, count - 1), column : column + width]
        for h in range(read):
            out[q, h] = factor * line[h]
        for h in range(read, out.shape[1]):
            out[q, h] = 0.0


@kernel
def load_keys(source: np.ndarray, start: int, listed: np.ndarray, column: int, width: int, out: np.ndarray) -> None:
    """out[k, h] = source[start + listed[k], column + h]; 0 beyond width, and beyond the last key up to whole tiles."""
    keep_apart()
    for k in range(whole_tiles(listed.size)):
        read = width if k < listed.size else 0
        line = source[start + int(listed[min(k, listed.size - 1)]), column : column + width]
        for h in range(read):
            out[k, h] = line[h]
        for h in range(read, out.shape[1]):
            out[k, h] = 0.0


@kernel
def store_keys(
    source: np.ndarray,
    start: int,
    listed: np.ndarray,
    count: int,
    column: int,
    width: int,
    steps: int,
    out: np.ndarray,
) -> None:
    """out[start + listed[k], column + h] = source[k, h], and 0 for the steps that are not listed."""
    keep_apart()
    k = 0
    for step in range(steps):
        line = out[start + step, column : column + width]
        if k < count and listed[k] == step:
            for h in range(width):
                line[h] = source[k, h]
            k += 1
        else:
            for h in range(width):
                line[h] = 0.0
