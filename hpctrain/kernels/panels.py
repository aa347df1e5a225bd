"""`product`: small matrix products on panels of 32 columns, held in vector registers.

A panel is 32 columns wide: two AVX-512 registers of float32.  A tile of `TILE_ROWS` x 32 results stays in registers
while its products are summed, which is what BLAS does too, but without BLAS's packing and call, which cost more than
the arithmetic where all three sizes are under about 100 (the heads of an attention layer).
"""

from __future__ import annotations

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import keep_apart

LANES = 32


def _tile_rows() -> int:
    """Return how many rows of 32 sums fit into the vector registers: 32 of 16 floats (AVX-512), else 16 of 8 or 4."""
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:
        return 2
    return 8 if features.get("avx512f") else 2


TILE_ROWS = _tile_rows()


@intrinsic
def _tile(typingctx, a, a_at, a_row, a_col, b, b_at, b_row, depth, c, c_at, c_row, add):  # noqa: ANN001, ANN202
    """One tile of `product`: TILE_ROWS rows of it."""
    if a.dtype not in (types.float32, types.float64) or not a.dtype == b.dtype == c.dtype:
        raise TypingError("product needs float32 or float64 arrays of one type")
    index, dtype = types.intp, a.dtype

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        arrays = [context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 4, 8)]
        a_data, b_data, c_data = (builder.gep(data, [args[i]]) for data, i in zip(arrays, (1, 5, 9), strict=True))
        a_row, a_col, b_row, depth, c_row, add = (args[i] for i in (2, 3, 6, 7, 10, 11))
        item = dtype.bitwidth // 8
        width = 64 // item
        vector = ir.VectorType(context.get_value_type(dtype), width)
        blank = ir.Constant(vector, ir.Undefined)
        spread = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
        parts, rows = range(0, LANES, width), range(TILE_ROWS)
        fma_type = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, fma_type, f"llvm.fma.v{width}f{8 * item}")

        def constant(number):  # noqa: ANN001, ANN202
            return ir.Constant(depth.type, number)

        def place(data, offset):  # noqa: ANN001, ANN202
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        def load(data, offset):  # noqa: ANN001, ANN202
            value = builder.load(place(data, offset))
            value.align = item  # arrays may start anywhere
            return value

        # LLVM keeps these in registers: they are stack slots by name only.
        sums = {(i, j): cgutils.alloca_once(builder, vector) for i in rows for j in parts}
        offsets = {(i, j): builder.add(builder.mul(c_row, constant(i)), constant(j)) for i in rows for j in parts}
        with builder.if_else(add) as (adding, storing):
            with adding:
                for key, slot in sums.items():
                    builder.store(load(c_data, offsets[key]), slot)
            with storing:
                for slot in sums.values():
                    builder.store(ir.Constant(vector, [0.0] * width), slot)
        a_offsets = [builder.mul(a_row, constant(i)) for i in rows]
        with cgutils.for_range(builder, depth) as loop:
            b_start, a_start = builder.mul(loop.index, b_row), builder.mul(loop.index, a_col)
            right = {j: load(b_data, builder.add(b_start, constant(j))) for j in parts}
            for i in rows:
                left = builder.load(builder.gep(a_data, [builder.add(a_start, a_offsets[i])]))
                left = builder.insert_element(blank, left, ir.Constant(ir.IntType(32), 0))
                left = builder.shuffle_vector(left, blank, spread)
                for j in parts:
                    slot = sums[i, j]
                    builder.store(builder.call(fma, [left, right[j], builder.load(slot)]), slot)
        for key, slot in sums.items():
            builder.store(builder.load(slot), place(c_data, offsets[key])).align = item
        return context.get_dummy_value()

    return types.void(a, index, index, index, b, index, index, index, c, index, index, types.boolean), generate


@kernel
def product(
    rows: int,
    a: np.ndarray,
    a_at: int,
    a_row: int,
    a_col: int,
    b: np.ndarray,
    b_at: int,
    b_row: int,
    depth: int,
    c: np.ndarray,
    c_at: int,
    c_row: int,
    add: bool,
) -> None:
    """C[i, j] = sum_k A[i, k] B[k, j], or C += that where `add`; i < `rows`, j < 32, k < `depth`.

    The matrices stand in flat arrays: A[i, k] = a[a_at + i a_row + k a_col], B[k, j] = b[b_at + k b_row + j], and C
    like B.  `rows` is rounded up to a multiple of TILE_ROWS: A may be read and C is written up to there.
    """
    keep_apart()
    for i in range(0, rows, TILE_ROWS):
        _tile(a, a_at + i * a_row, a_row, a_col, b, b_at, b_row, depth, c, c_at + i * c_row, c_row, add)


@kernel
def whole_tiles(rows: int) -> int:
    """`rows` rounded up to whole tiles."""
    return (rows + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
