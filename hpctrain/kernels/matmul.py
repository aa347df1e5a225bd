"""Matrix products: the one place that says how a product of given shape is computed.

The rule: float64 (checks of gradients) goes to BLAS; float32 goes through register tiles, which are ahead of OpenBLAS
for every shape of a dense layer that was measured, need no second pass for bias and ReLU, and take each element's sum
in an order that depends on k alone: in forward passes and input gradients, a row has the same bits whatever rows stand
beside it.  A single column goes without tiles (`single_column.py`).  Where the CPU has a matrix unit, large products go
there (`matmul_split.py`): in forward passes and input gradients n and k decide and whether a run wants it, never the
number of rows.

Blocking (after Goto & van de Geijn, ACM TOMS 34, 2008): k in blocks of at most K_BLOCK, so that a panel of B (a k block
x 32 columns) stays in L1; a panel is packed where it is transposed, or used often enough to pay.  Tiles of 12 or 8 rows
go down a panel.  Rows (or columns, of a transposed A) that are far apart, often by a power of two, are taken badly by
the cache: they are packed, M_BLOCK at a time.  What is packed, and how many rows there are, changes no bit of a sum.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hpctrain.kernels.cpu import has_matrix_unit
from hpctrain.kernels.gemm import gemm
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.microkernel import ADD, BIAS, LANES, RELU, emit_tile
from hpctrain.kernels.packing import PANEL, pack_columns, pack_panels, pack_rows, stack_floats
from hpctrain.kernels.shared import shared
from hpctrain.kernels.single_column import column_times_row, times_column, transposed_times_column

K_BLOCK, M_BLOCK = 256, 528
GROUP = 4  # panels that are packed at a time, so that memory is read in longer stretches
FLAT_DEPTH = 32  # products of a result up to which C is written row by row
PACK_B_FROM_ROWS = 48  # packing a panel costs about as much as 4 rows of products
PACK_A_FROM_STRIDE = 256
PACK_A_FROM_COLUMNS, PACK_TRANSPOSED_A_FROM_COLUMNS = 256, 128
# Elements of B (of the result, where A is transposed) from which on the matrix unit is used: compiling for it takes a
# second, and networks of smaller layers are often trained in small batches, where it gains little.
SPLIT_FROM_ELEMENTS = 16384
SPLIT_MOST_PADDING = 1.25

_PANELS_FLOATS = GROUP * K_BLOCK * PANEL
_TILES_FLOATS = K_BLOCK * M_BLOCK + LANES * PANEL  # the transposing tile writes whole vectors


@intrinsic
def is_float32(typingctx, array):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Whether an array holds float32; known when compiling."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        return ir.Constant(ir.IntType(1), int(array.dtype == types.float32))

    return types.boolean(array), generate


@kernel(cache=False, no_cpython_wrapper=True)
def rows_of_tile(left, n):  # noqa: ANN001, ANN202
    """Rows of the next tile where `left` are to come: 12, or 8 at the end; 8 or 16 where the panel is narrow."""
    if n <= LANES:
        return 16
    return 8 if n < PANEL or left < 12 or left == 16 else 12


def _panel_rows(m, n, k, a, ars, acs, packed, b, bks, c, ldc, mode, bias):  # noqa: ANN001, ANN202
    """The n <= 32 columns of a panel for m rows.  With `packed`, A is what `pack_a` made; ars, acs are not used."""
    i = 0
    while i < m:
        rows = rows_of_tile(m - i, PANEL if packed else n)
        at, row_stride, step = a + 4 * i * ars, ars, acs
        if packed:
            at, row_stride, step = a + 4 * i * k, 1, rows
        to, count = c + 4 * i * ldc, min(rows, m - i)
        if n == PANEL and count == 12:
            emit_tile(12, 2, 1, (at, row_stride, step, b, bks, to, ldc, k, mode, bias, count, n))
        elif n == PANEL and count == 8:
            emit_tile(8, 2, 1, (at, row_stride, step, b, bks, to, ldc, k, mode, bias, count, n))
        elif n <= LANES:
            emit_tile(16, 1, 0, (at, row_stride, step, b, bks, to, ldc, k, mode, bias, count, n))
        else:
            for first in range(0, count, 8):
                part, to_part, left = at + 4 * first * row_stride, to + 4 * first * ldc, min(8, count - first)
                emit_tile(8, 2, 0, (part, row_stride, step, b, bks, to_part, ldc, k, mode, bias, left, n))
        i += rows


_call_panel_rows = shared(_panel_rows, "panel_rows")


@kernel(cache=False, no_cpython_wrapper=True)
def pack_a(m, k, a, ars, acs, to):  # noqa: ANN001, ANN202
    """Put A's rows in the order in which tiles read them: tile after tile, each (k, its rows)."""
    i = 0
    while i < m:
        rows = rows_of_tile(m - i, PANEL)
        count, place = min(rows, m - i), to + 4 * i * k
        if ars == 1:
            pack_rows(a + 4 * i, acs, k, count, place, rows)
        else:
            pack_columns(a + 4 * i * ars, ars, k, count, place, rows)
        i += rows


@kernel(cache=False, no_cpython_wrapper=True)
def packs_a(m, n, ars, acs):  # noqa: ANN001, ANN202
    """Whether packing A pays: its lines are far apart, and there are enough columns of B to share the work."""
    if ars == 1:
        return acs >= PACK_A_FROM_STRIDE and n >= PACK_TRANSPOSED_A_FROM_COLUMNS
    return ars >= PACK_A_FROM_STRIDE and n >= PACK_A_FROM_COLUMNS and m >= PACK_B_FROM_ROWS


def _multiply(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias):  # noqa: ANN001, ANN202
    panels, tiles = stack_floats(_PANELS_FLOATS), stack_floats(_TILES_FLOATS)
    k_blocks = max(1, -(-k // K_BLOCK))
    k_step = -(-k // k_blocks)
    has_packed_a = packs_a(m, n, ars, acs)
    # With few products for each result, writing C is the work: row by row, with all of B packed.
    needed = k * (n + PANEL) + LANES * PANEL  # packing writes whole vectors
    is_flat = k <= FLAT_DEPTH and needed <= _PANELS_FLOATS
    group, panel_floats = (max(n, 1), k * PANEL) if is_flat else (GROUP * PANEL, K_BLOCK * PANEL)
    m_step = max(1, m)
    if has_packed_a and m > M_BLOCK:
        m_step = -(-m // (12 * -(-m // M_BLOCK))) * 12
    for block in range(k_blocks):
        p = block * k_step
        depth = min(k_step, k - p)
        block_mode = mode if block == k_blocks - 1 else mode & ADD
        if block > 0:
            block_mode |= ADD
        for i in range(0, m, m_step):
            rows = min(m_step, m - i)
            packs_b = bjs != 1 or rows >= PACK_B_FROM_ROWS
            at = a + 4 * (i * ars + p * acs)
            if has_packed_a:
                pack_a(rows, depth, at, ars, acs, tiles)
                at = tiles
            for first in range(0, n, group):
                last = min(n, first + group)
                if packs_b and bjs == 1:
                    pack_panels(b + 4 * (p * bks + first), bks, depth, last - first, panels, panel_floats)
                elif packs_b:
                    for j in range(first, last, PANEL):
                        place, from_b = panels + 4 * panel_floats * ((j - first) // PANEL), b + 4 * (p * bks + j * bjs)
                        pack_columns(from_b, bjs, depth, min(PANEL, n - j), place, PANEL)
                done = 0
                while done < rows:
                    take = 12 if is_flat and rows - done >= 24 else rows - done
                    from_a = at + 4 * done * (depth if has_packed_a else ars)
                    for j in range(first, last, PANEL):
                        from_b, stride = b + 4 * (p * bks + j * bjs), bks
                        if packs_b:
                            from_b, stride = panels + 4 * panel_floats * ((j - first) // PANEL), PANEL
                        to = c + 4 * ((i + done) * ldc + j)
                        columns, at_bias = min(PANEL, n - j), bias + 4 * j
                        _call_panel_rows(
                            (take, columns, depth, from_a, ars, acs, has_packed_a, from_b, stride, to, ldc)
                            + (block_mode, at_bias)
                        )
                    done += take


_call_multiply = shared(_multiply, "multiply")


@kernel(cache=False, no_cpython_wrapper=True)
def multiply(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias):  # noqa: ANN001, ANN201
    """C[i, j] = sum_p A[i ars + p acs] B[p bks + j bjs], i < m, j < n, p < k, float32, by register tiles.

    a, b, c, bias are addresses, everything else counts elements; one of bks and bjs must be 1, C's rows are `ldc`
    apart.  `mode` is a sum of ADD (C is added to; else it is only written), BIAS (bias[j] is added) and RELU (max(0, .)
    of that; NaN stays NaN).
    """
    _call_multiply((m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias))


if has_matrix_unit():
    from hpctrain.kernels.matmul_split import SIDE, TILE_DEPTH, multiply_split
    from hpctrain.kernels.matrix_tiles import unit_is_wanted

    @kernel(cache=False, no_cpython_wrapper=True)
    def _fits_unit(n, k):  # noqa: ANN001, ANN202
        """Whether there is work, and little of it would be padding."""
        padded = -(-n // SIDE) * SIDE * (-(-k // TILE_DEPTH) * TILE_DEPTH)
        return 0 < padded <= SPLIT_MOST_PADDING * n * k

    @kernel(cache=False, no_cpython_wrapper=True)
    def _multiply_rows(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias):  # noqa: ANN001, ANN202
        if n * k >= SPLIT_FROM_ELEMENTS and _fits_unit(n, k) and unit_is_wanted():
            multiply_split(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias)
        else:
            multiply(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias)

    @kernel(cache=False, no_cpython_wrapper=True)
    def _multiply_transposed(m, n, k, a, b, c, mode):  # noqa: ANN001, ANN202
        if m * n >= SPLIT_FROM_ELEMENTS and min(m, n) >= SIDE and _fits_unit(n, k) and _fits_unit(m, k):
            multiply_split(m, n, k, a, 1, m, b, n, 1, c, n, mode, 0)
        else:
            multiply(m, n, k, a, 1, m, b, n, 1, c, n, mode, 0)

else:
    _multiply_rows = multiply

    @kernel(cache=False, no_cpython_wrapper=True)
    def _multiply_transposed(m, n, k, a, b, c, mode):  # noqa: ANN001, ANN202
        multiply(m, n, k, a, 1, m, b, n, 1, c, n, mode, 0)


@kernel
def matmul(a: np.ndarray, b: np.ndarray, c: np.ndarray, beta: float) -> None:
    """C = A B + beta C for C-contiguous A (m, k), B (k, n), C (m, n); beta 0 (C is not read) or 1."""
    if is_float32(a) and c.shape[1] == 1:
        times_column(a, b, c, beta)
    elif is_float32(a):
        mode = ADD if beta != 0.0 else 0
        n, k = b.shape[1], b.shape[0]
        _multiply_rows(c.shape[0], n, k, a.ctypes.data, k, 1, b.ctypes.data, n, 1, c.ctypes.data, n, mode, 0)
    else:
        gemm(0, 0, a, b, beta, c)


@kernel
def matmul_bias(a: np.ndarray, b: np.ndarray, bias: np.ndarray, c: np.ndarray, relu: int) -> None:
    """C = A B + bias, or max(0, A B + bias) where relu is 1, for A (m, k), B (k, n), bias (n,), C (m, n)."""
    if is_float32(a) and c.shape[1] == 1:
        times_column(a, b, c, 0.0)
        for i in range(c.shape[0]):
            c[i, 0] += bias[0]
        if relu:
            _positive_part(c)
    elif is_float32(a):
        mode = BIAS + RELU if relu else BIAS
        m, n, k = a.shape[0], b.shape[1], b.shape[0]
        _multiply_rows(m, n, k, a.ctypes.data, k, 1, b.ctypes.data, n, 1, c.ctypes.data, n, mode, bias.ctypes.data)
    else:
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                c[i, j] = bias[j]
        gemm(0, 0, a, b, 1.0, c)
        if relu:
            _positive_part(c)


@kernel(cache=False, no_cpython_wrapper=True)
def _positive_part(c: np.ndarray) -> None:
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = 0.0 if c[i, j] <= 0.0 else c[i, j]


@kernel
def matmul_relu(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """C = max(0, A B) for A (m, k), B (k, n), C (m, n)."""
    if is_float32(a):
        n, k = b.shape[1], b.shape[0]
        _multiply_rows(c.shape[0], n, k, a.ctypes.data, k, 1, b.ctypes.data, n, 1, c.ctypes.data, n, RELU, 0)
    else:
        gemm(0, 0, a, b, 0.0, c)
        _positive_part(c)


@kernel
def matmul_tn(a: np.ndarray, b: np.ndarray, c: np.ndarray, beta: float) -> None:
    """C = A^T B + beta C for A (k, m), B (k, n), C (m, n); beta 0 (C is not read) or 1."""
    if is_float32(a) and c.shape[1] == 1:
        transposed_times_column(a, b, c, beta)
    elif is_float32(a):
        mode = ADD if beta != 0.0 else 0
        m, n, k = a.shape[1], b.shape[1], a.shape[0]
        _multiply_transposed(m, n, k, a.ctypes.data, b.ctypes.data, c.ctypes.data, mode)
    else:
        gemm(1, 0, a, b, beta, c)


@kernel
def matmul_nt(a: np.ndarray, b: np.ndarray, c: np.ndarray, beta: float) -> None:
    """C = A B^T + beta C for A (m, k), B (n, k), C (m, n); beta 0 (C is not read) or 1."""
    if is_float32(a) and a.shape[1] == 1:
        column_times_row(a, b, c, beta)
    elif is_float32(a):
        mode = ADD if beta != 0.0 else 0
        m, n, k = a.shape[0], b.shape[0], a.shape[1]
        _multiply_rows(m, n, k, a.ctypes.data, k, 1, b.ctypes.data, 1, k, c.ctypes.data, n, mode, 0)
    else:
        gemm(0, 1, a, b, beta, c)
