"""float32 numbers as sums of three bfloat16, in the order in which the matrix unit reads them.

A float32 has 24 bits of significand, a bfloat16 has 8: x = high + middle + low, where high is x rounded to bfloat16,
middle is what is left of x, rounded, and low is the rest, which fits exactly (Henry, Tang & Heinecke, "Leveraging the
bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", ARITH 2019).  NaN stays NaN; infinity and
what rounds to it (above 3.39e38) has a NaN in `middle`.

A block of lines (rows of A or columns of B) by `depth` numbers is stored as tiles of 16 lines by 32 numbers, padded
with zeros: of each tile the high, the middle and the low parts, 1 KiB each, then those of the next 32 numbers of the
same lines, then those of the next lines.  A 32-bit word of a tile is the pair of numbers p and p + 16 of the 32: any
order serves a sum, if A and B share it.  This one needs no exchange between the lanes of a vector.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.matrix_tiles import TILE_BYTES, TILE_ROWS
from hpctrain.kernels.microkernel import LANES
from hpctrain.kernels.packing import first_lanes, masked_load, stack_floats, transpose_tile
from hpctrain.kernels.shared import shared

PIECES = 3
TILE_DEPTH = 2 * LANES  # numbers of a line in a tile
SPLIT_BYTES = PIECES * TILE_BYTES  # of 16 lines by 32 numbers

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_WORDS = ir.VectorType(ir.IntType(32), LANES)
_WORD = ir.IntType(64)
_TILE_FLOATS = SPLIT_BYTES // 4
_UPPER_HALF, _HALF_OF_LAST_BIT = 0xFFFF0000, 0x8000


def _split(along, source, stride, lines, depth, words, to):  # noqa: ANN001, ANN202
    scratch = stack_floats(_TILE_FLOATS)
    steps = -(-depth // TILE_DEPTH)
    outer, inner = (lines, depth) if along else (depth, lines)
    outer_step, inner_step = (TILE_ROWS, TILE_DEPTH) if along else (TILE_DEPTH, TILE_ROWS)
    is_direct = (along != 0) == (words != 0)
    for i in range(0, outer, outer_step):
        for j in range(0, inner, inner_step):
            line, p = (i, j) if along else (j, i)
            place = to + SPLIT_BYTES * (line // TILE_ROWS * steps + p // TILE_DEPTH)
            made = place if is_direct else scratch
            _split_tile(along, source + 4 * (i * stride + j), 4 * stride, outer - i, inner - j, made)
            if not is_direct:
                for piece in range(PIECES):
                    there = made + TILE_BYTES * piece
                    transpose_tile(place + TILE_BYTES * piece, 64, there, 64, TILE_ROWS, LANES)


_call_split = shared(_split, "split")


@kernel(cache=False, no_cpython_wrapper=True)
def split_a(source, row_stride, column_stride, rows, depth, to):  # noqa: ANN001, ANN201
    """Store A[i, p], i < rows, p < depth, as tiles [row][pair].  One of the strides, in floats, must be 1."""
    if column_stride == 1:
        _call_split((1, source, row_stride, rows, depth, 1, to))
    else:
        _call_split((0, source, column_stride, rows, depth, 1, to))


@kernel(cache=False, no_cpython_wrapper=True)
def split_b(source, row_stride, column_stride, columns, depth, to):  # noqa: ANN001, ANN201
    """Store B[p, j], p < depth, j < columns, as tiles [pair][column].  One of the strides, in floats, must be 1."""
    if column_stride == 1:
        _call_split((0, source, row_stride, columns, depth, 0, to))
    else:
        _call_split((1, source, column_stride, columns, depth, 0, to))


@intrinsic
def _split_tile(typingctx, along, source, stride, outer, inner, to):  # noqa: ANN001, ANN202
    """Split 16 x 32 numbers into three tiles; `stride` in bytes; beyond `outer`, `inner` (in numbers) are zeros.

    `along`: memory runs along the 32 numbers of a line; words become [line][pair].  Else it runs along the 16 lines, of
    which one number each is in a row of memory; words become [pair][line].
    """

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        along, *rest = args
        is_along = builder.icmp_signed("!=", along, ir.Constant(along.type, 0))
        with builder.if_else(is_along) as (lengthwise, crosswise):
            with lengthwise:
                _SplitTile(builder, True, *rest).emit()
            with crosswise:
                _SplitTile(builder, False, *rest).emit()
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


class _SplitTile:
    """Writes the code that splits a tile."""

    def __init__(self, builder, along, source, stride, outer, inner, to) -> None:  # noqa: ANN001
        self.builder, self.along, self.source, self.stride = builder, along, source, stride
        self.outer, self.inner, self.to = outer, inner, to
        parts = 2 if along else 1
        self.masks = [first_lanes(builder, builder.sub(inner, self._word(LANES * part))) for part in range(parts)]

    def emit(self) -> None:
        """Write the code."""
        builder = self.builder
        for i in range(LANES):
            first, second = (self._pieces(self._load(i, part)) for part in range(2))
            for piece in range(PIECES):
                lower = builder.lshr(first[piece], self._splat(16))
                upper = builder.and_(second[piece], self._splat(_UPPER_HALF))
                place = builder.add(self.to, self._word(TILE_BYTES * piece + 4 * LANES * i))
                builder.store(builder.or_(lower, upper), builder.inttoptr(place, ir.PointerType()), align=64)

    def _load(self, i: int, part: int) -> ir.Value:
        """Return the numbers whose words are the i-th of the tile; `part` is the half of the word."""
        builder = self.builder
        row, offset = (i, 4 * LANES * part) if self.along else (i + LANES * part, 0)
        mask = self.masks[part if self.along else 0]
        is_there = builder.icmp_signed("<", self._word(row), self.outer)
        mask = builder.select(is_there, mask, ir.Constant(mask.type, [0] * LANES))
        address = builder.add(self.source, builder.mul(self.stride, self._word(row)))
        return masked_load(builder, builder.add(address, self._word(offset)), mask)

    def _pieces(self, number: ir.Value) -> list[ir.Value]:
        """Return the bits of high, middle and low, each in the upper half of 32 bits; of low, the lower half is 0."""
        builder, pieces = self.builder, []
        for _ in range(PIECES - 1):
            bits = builder.add(builder.bitcast(number, _WORDS), self._splat(_HALF_OF_LAST_BIT))
            pieces.append(builder.and_(bits, self._splat(_UPPER_HALF)))
            number = builder.fsub(number, builder.bitcast(pieces[-1], _VECTOR))
        # Not rounded: nothing is below the upper half, and adding to the bits of a NaN may make a zero of it.
        return [*pieces, builder.bitcast(number, _WORDS)]

    @staticmethod
    def _word(number: int) -> ir.Constant:
        return ir.Constant(_WORD, number)

    @staticmethod
    def _splat(number: int) -> ir.Constant:
        return ir.Constant(_WORDS, [number] * LANES)
