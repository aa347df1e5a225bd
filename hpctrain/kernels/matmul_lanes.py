"""Weight gradients summed by lanes: A^T B, each lane's part rounded to fixed point and added up as whole numbers.

A matrix product a lane would write the whole result a lane: with lanes of 16 rows, writing is as much work as the
product.  Here the lanes are inside the register tile (`lane_tile`): its part of the result stays in the first-level
cache while one lane after another is added.  Blocking and packing are those of `matmul.py`.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.fixed_point import round_into
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.lane_tile import emit_lane_tile
from hpctrain.kernels.matmul import GROUP, K_BLOCK, M_BLOCK, PACK_B_FROM_ROWS, matmul_tn, pack_a, packs_a
from hpctrain.kernels.microkernel import LANES
from hpctrain.kernels.packing import PANEL, pack_panels, stack_floats
from hpctrain.kernels.shared import shared
from hpctrain.kernels.views import view

DEEPEST = 128  # lines of a lane, up to which lanes are summed within tiles: beyond, writing is little of the work
_PANELS_FLOATS = GROUP * K_BLOCK * PANEL
_TILES_FLOATS = K_BLOCK * M_BLOCK + LANES * PANEL
_START = np.int64(0)


def _panel_rows(m, n, depth, lanes, left, a, ars, acs, packed, b, bks, c, ldc, fresh, scale, largest):  # noqa: ANN001, ANN202
    """The n <= 32 columns of a panel for m rows: `lanes` lanes of `depth` lines, and one of `left` lines, if any."""
    i, lines = 0, lanes * depth + left
    while i < m:
        # As `matmul.rows_of_tile` for whole panels: packed tiles are made so.
        rows = 8 if m - i < 12 or m - i == 16 else 12
        at, row_stride, step = a + 4 * i * ars, ars, acs
        if packed:
            at, row_stride, step = a + 4 * i * lines, 1, rows
        to, count = c + 4 * i * ldc, min(rows, m - i)
        for part in range(2):
            many, deep, stores = (lanes, depth, fresh) if part == 0 else (min(left, 1), left, fresh * (lanes == 0))
            if many == 0:
                continue
            skipped = part * lanes * depth
            from_a, from_b = at + 4 * skipped * step, b + 4 * skipped * bks
            if n == PANEL and count == 12:
                tile = (from_a, row_stride, step, from_b, bks, to, ldc, deep, many, stores, scale, largest, count, n)
                emit_lane_tile(12, 2, 1, tile)
            else:
                for first in range(0, count, 8):
                    part_a, part_c = from_a + 4 * first * row_stride, to + 4 * first * ldc
                    some = min(8, count - first)
                    tile = (part_a, row_stride, step, from_b, bks, part_c, ldc, deep, many, stores, scale, largest)
                    emit_lane_tile(8, 2, 0, (*tile, some, n))
        i += rows


_call_panel_rows = shared(_panel_rows, "lane_panel_rows")


def _multiply(m, n, k, depth, a, b, c, fresh, scale, largest):  # noqa: ANN001, ANN202
    panels, tiles = stack_floats(_PANELS_FLOATS), stack_floats(_TILES_FLOATS)
    has_packed_a, packs_b = packs_a(m, n, 1, m), m >= PACK_B_FROM_ROWS
    m_step = max(1, m)
    if has_packed_a and m > M_BLOCK:
        m_step = -(-m // (12 * -(-m // M_BLOCK))) * 12
    step = depth * max(1, K_BLOCK // depth)
    for p in range(0, k, step):
        lines = min(step, k - p)
        lanes, stores = lines // depth, fresh * (p == 0)
        left = lines - lanes * depth
        for i in range(0, m, m_step):
            rows, at = min(m_step, m - i), a + 4 * (i + p * m)
            if has_packed_a:
                pack_a(rows, lines, at, 1, m, tiles)
                at = tiles
            for first in range(0, n, GROUP * PANEL):
                last = min(n, first + GROUP * PANEL)
                if packs_b:
                    pack_panels(b + 4 * (p * n + first), n, lines, last - first, panels, K_BLOCK * PANEL)
                for j in range(first, last, PANEL):
                    from_b, stride = b + 4 * (p * n + j), n
                    if packs_b:
                        from_b, stride = panels + 4 * K_BLOCK * PANEL * ((j - first) // PANEL), PANEL
                    to = c + 4 * (i * n + j)
                    sizes = (rows, min(PANEL, n - j), depth, lanes, left)
                    _call_panel_rows((*sizes, at, 1, m, has_packed_a, from_b, stride, to, n, stores, scale, largest))


_call_multiply = shared(_multiply, "multiply_lanes")


@kernel
def matmul_tn_lanes(a, b, own, sums, scale, largest, rows, lane, beta):  # noqa: ANN001, ANN201
    """sums = beta sums + sum over lanes l of rint(scale[0] A_l^T B_l), for float32 A (k, m), B (k, n); beta 0 or 1.

    A_l, B_l are the lines of lane l: `lane` of the `rows` rows, which have k / rows lines each; the last lane may have
    less.  sums (m, n) int32; largest (1,) int32 becomes the largest of what it was and the bits of |A_l^T B_l|, as in
    `fixed_point.round_into`.  own (m, n) float32: scratch.
    """
    k, m, n = a.shape[0], a.shape[1], b.shape[1]
    depth, fresh = lane * (k // max(rows, 1)), beta == 0.0
    if n > 1 and depth <= DEEPEST:
        arrays = (a.ctypes.data, b.ctypes.data, sums.ctypes.data)
        _call_multiply((m, n, k, depth, *arrays, fresh, scale.ctypes.data, largest.ctypes.data))
        return
    given, made = view(own, _START, (own.size,)), view(sums, _START, (sums.size,))
    for first in range(0, k, depth):
        matmul_tn(a[first : first + depth], b[first : first + depth], own, 0.0)
        round_into(given, scale, fresh and first == 0, made, largest)
