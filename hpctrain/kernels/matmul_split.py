"""Matrix products of float32 by the CPU's matrix unit, which multiplies bfloat16: each number as the sum of three.

Of the nine products of parts, the six largest are summed: high high, high middle, middle high, high low, middle middle,
low high.  What is left out is below 2^-25 of a product, less than float32 rounds off when products are added.  So the
result is as near to the exact one as that of fused multiply-adds (Henry, Tang & Heinecke, ARITH 2019), at about 2.4
times their speed; splitting is work for each number, so it pays where each is used often.

Blocks of 32 x 32 results stay in four tile registers while k goes on; C's rows and columns that end within one pass
through a block of scratch.  An element's sum is taken in an order that depends on k alone.  Blocking: k at most K_BLOCK
at a time, A's rows so that their parts fit into the second-level cache, B's columns in groups.
"""

from __future__ import annotations

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.matrix_tiles import (
    TILE_BYTES,
    TILE_ROWS,
    tile_clear,
    tile_load,
    tile_multiply,
    tile_store,
    tiles_begin,
    tiles_end,
)
from hpctrain.kernels.microkernel import ADD, BIAS, RELU
from hpctrain.kernels.packing import copy_row, finish_row, stack_floats
from hpctrain.kernels.shared import shared
from hpctrain.kernels.split import SPLIT_BYTES, TILE_DEPTH, split_a, split_b

SIDE = 2 * TILE_ROWS  # rows and columns of a block of results
K_BLOCK, ROWS_BLOCK, GROUP = 256, 512, 128
# Of A's parts: 256 rows of 256 numbers.  These and B's are on the stack, which may be as small as 1 MB.
A_BYTES = 393_216
_A_FLOATS = A_BYTES // 4
_B_FLOATS = GROUP // TILE_ROWS * (K_BLOCK // TILE_DEPTH) * SPLIT_BYTES // 4
_SCRATCH_FLOATS = SIDE * SIDE + TILE_BYTES // 4
# Tiles that go without a store for about 0.8 us make the next store wait 0.25 us for the unit (measured on Xeons of
# 2023 and 2024): a store that nobody reads comes before.
_STEPS_BETWEEN_STORES = 4


@kernel(cache=False, no_cpython_wrapper=True)
def _add_products(steps, a, a_next, b, b_next, unread):  # noqa: ANN001, ANN202
    """Add the products of `steps` times 32 numbers to the four registers of a block; a, b: its first 16 lines."""
    for step in range(steps):
        skip = SPLIT_BYTES * step
        # (part of A, part of B), so that one of the two is still there from the line before: 0 high, 1 middle, 2 low.
        tile_load(4, a + skip, 64)
        tile_load(5, a_next + skip, 64)
        _multiply_loading_b(b + skip + 2 * TILE_BYTES, b_next + skip + 2 * TILE_BYTES)
        _multiply_loading_b(b + skip + TILE_BYTES, b_next + skip + TILE_BYTES)
        _multiply_loading_a(a + skip + TILE_BYTES, a_next + skip + TILE_BYTES)
        _multiply_loading_b(b + skip, b_next + skip)
        _multiply_loading_a(a + skip + 2 * TILE_BYTES, a_next + skip + 2 * TILE_BYTES)
        _multiply_loading_a(a + skip, a_next + skip)
        if step % _STEPS_BETWEEN_STORES == _STEPS_BETWEEN_STORES - 1:
            tile_store(0, unread, 64)


@kernel(cache=False, no_cpython_wrapper=True)
def _multiply_loading_a(first, second):  # noqa: ANN001, ANN202
    tile_load(4, first, 64)
    tile_load(5, second, 64)
    _multiply()


@kernel(cache=False, no_cpython_wrapper=True)
def _multiply_loading_b(first, second):  # noqa: ANN001, ANN202
    tile_load(6, first, 64)
    tile_load(7, second, 64)
    _multiply()


@kernel(cache=False, no_cpython_wrapper=True)
def _multiply():  # noqa: ANN202
    tile_multiply(0, 4, 6)
    tile_multiply(1, 4, 7)
    tile_multiply(2, 5, 6)
    tile_multiply(3, 5, 7)


@kernel(cache=False, no_cpython_wrapper=True)
def _block(steps, a, b, c, c_stride, rows, columns, mode, bias, scratch):  # noqa: ANN001, ANN202
    """A block of C from split parts; c_stride in bytes; rows, columns <= SIDE of it exist."""
    is_whole = rows == SIDE and columns == SIDE
    place, stride, row_bytes = c, c_stride, 4 * SIDE
    if mode & (BIAS | RELU) or not is_whole:
        place, stride = scratch, row_bytes
    if mode & ADD:
        at, distance = c, c_stride
        if not is_whole:
            for i in range(rows):
                copy_row(scratch + row_bytes * i, c + c_stride * i, columns, True)
            at, distance = scratch, row_bytes
        tile_load(0, at, distance)
        tile_load(1, at + 64, distance)
        tile_load(2, at + TILE_ROWS * distance, distance)
        tile_load(3, at + TILE_ROWS * distance + 64, distance)
    else:
        tile_clear(0)
        tile_clear(1)
        tile_clear(2)
        tile_clear(3)
    line = SPLIT_BYTES * steps
    _add_products(steps, a, a + line, b, b + line, scratch + row_bytes * SIDE)
    tile_store(0, place, stride)
    tile_store(1, place + 64, stride)
    tile_store(2, place + TILE_ROWS * stride, stride)
    tile_store(3, place + TILE_ROWS * stride + 64, stride)
    if place == scratch:
        for i in range(rows):
            finish_row(c + c_stride * i, scratch + row_bytes * i, columns, bias if mode & BIAS else 0, mode & RELU)


def _multiply_split(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias):  # noqa: ANN001, ANN202
    a_parts, b_parts, scratch = stack_floats(_A_FLOATS), stack_floats(_B_FLOATS), stack_floats(_SCRATCH_FLOATS)
    k_blocks = -(-k // K_BLOCK)
    k_step = -(-k // (k_blocks * TILE_DEPTH)) * TILE_DEPTH
    tiles_begin()
    for p in range(0, k, k_step):
        depth = min(k_step, k - p)
        steps = -(-depth // TILE_DEPTH)
        block_mode = mode if p + k_step >= k else mode & ADD
        if p > 0:
            block_mode |= ADD
        m_step = min(ROWS_BLOCK, A_BYTES // (SPLIT_BYTES // TILE_ROWS * steps) // SIDE * SIDE)
        for i in range(0, m, m_step):
            rows = min(m_step, m - i)
            split_a(a + 4 * (i * ars + p * acs), ars, acs, rows, depth, a_parts)
            for j in range(0, n, GROUP):
                columns = min(GROUP, n - j)
                split_b(b + 4 * (p * bks + j * bjs), bks, bjs, columns, depth, b_parts)
                for column in range(0, columns, SIDE):
                    at_b = b_parts + SPLIT_BYTES * steps * (column // TILE_ROWS)
                    for row in range(0, rows, SIDE):
                        at_a = a_parts + SPLIT_BYTES * steps * (row // TILE_ROWS)
                        at_c = c + 4 * ((i + row) * ldc + j + column)
                        left = min(SIDE, rows - row), min(SIDE, columns - column)
                        _block(
                            steps, at_a, at_b, at_c, 4 * ldc, left[0], left[1], block_mode,
                            bias + 4 * (j + column), scratch,
                        )  # fmt: skip
    tiles_end()


_call_multiply_split = shared(_multiply_split, "multiply_split", lazy=True)


@kernel(cache=False, no_cpython_wrapper=True)
def multiply_split(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias):  # noqa: ANN001, ANN201
    """As `matmul.multiply`, for k > 0, by the matrix unit; of ars and acs one must be 1, too.

    Infinite elements of A and B, and finite ones above 3.39e38, give NaN.  Parts and sums below 1.2e-38 count as zero:
    numbers (and products) below about 1e-31 have fewer digits than float32, those below 1e-38 none.
    """
    _call_multiply_split((m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias))
