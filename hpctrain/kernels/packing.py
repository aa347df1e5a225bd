"""Blocks of a matrix brought into the order in which the micro-kernels read it; scratch memory on the stack.

A panel is (k, PANEL) float32 without gaps: with a power of two between the rows of B, they would all fall on the same
few lines of the cache.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.microkernel import LANES

PANEL = 2 * LANES  # columns of a panel

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_WORD, _INT32 = ir.IntType(64), ir.IntType(32)


@intrinsic(prefer_literal=True)
def stack_floats(typingctx, count):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Return the address of `count` (a literal) float32 on the stack of the calling function, 64-byte aligned."""
    if not isinstance(count, types.IntegerLiteral):
        raise TypingError("stack_floats takes a literal number")

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        # Not cgutils.alloca_once, which fills the memory with zeros.
        with builder.goto_entry_block():
            place = builder.alloca(ir.ArrayType(ir.FloatType(), count.literal_value))
        place.align = 64
        return builder.ptrtoint(place, _WORD)

    return types.intp(count), generate


@kernel(cache=False, fastmath=False, no_cpython_wrapper=True)
def pack_rows(source, stride, rows, columns, to, width):  # noqa: ANN001, ANN201
    """to[p, j] = B[p, j] for p < rows, j < columns <= width, else 0; B's rows are `stride` floats apart.

    width <= PANEL; up to 15 floats behind the last row are overwritten.
    """
    for p in range(rows):
        copy_row(to + 4 * width * p, source + 4 * stride * p, columns, width > LANES)


@kernel(cache=False, fastmath=False, no_cpython_wrapper=True)
def pack_panels(source, stride, rows, columns, to, distance):  # noqa: ANN001, ANN201
    """`pack_rows` for panels that stand side by side in B, `columns` in all; those made are `distance` floats apart.

    Row after row, so that memory is read in stretches that the processor's prefetcher can follow.
    """
    for p in range(rows):
        for j in range(0, columns, PANEL):
            place = to + 4 * (distance * (j // PANEL) + PANEL * p)
            copy_row(place, source + 4 * (stride * p + j), min(PANEL, columns - j), True)


@kernel(cache=False, fastmath=False, no_cpython_wrapper=True)
def pack_columns(source, stride, rows, columns, to, width):  # noqa: ANN001, ANN201
    """to[p, j] = B[j, p] for p < rows, j < columns <= width, else 0; B's rows are `stride` floats apart.

    width <= 16, or PANEL; rows up to the next multiple of 16 are overwritten, and up to 15 floats behind those.
    """
    for j in range(0, width, LANES):
        for p in range(0, rows, LANES):
            transpose_tile(
                to + 4 * (width * p + j),
                4 * width,
                source + 4 * (stride * j + p),
                4 * stride,
                min(LANES, max(0, columns - j)),
                min(LANES, rows - p),
            )


@intrinsic
def copy_row(typingctx, to, source, columns, wide):  # noqa: ANN001, ANN202
    """Copy `columns` floats and fill up to 16, or 32 if `wide`, with zeros."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        to, source, columns, wide = args

        def copy(j):  # noqa: ANN001, ANN202
            mask = first_lanes(builder, builder.sub(columns, ir.Constant(_WORD, LANES * j)))
            value = masked_load(builder, builder.add(source, ir.Constant(_WORD, 4 * LANES * j)), mask)
            builder.store(value, _pointer(builder, builder.add(to, ir.Constant(_WORD, 4 * LANES * j))), align=4)

        copy(0)
        with builder.if_then(context.cast(builder, wide, signature.args[3], types.boolean)):
            copy(1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.boolean), generate


@intrinsic
def finish_row(typingctx, to, source, columns, bias, relu):  # noqa: ANN001, ANN201
    """Store `columns` <= 32 floats, after adding bias[j], where that address is not 0, and max(0, .) where `relu`.

    `source` holds 32 floats.  NaN stays NaN.
    """

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        to, source, columns, bias, relu = args
        zero, nothing = ir.Constant(_VECTOR, [0.0] * LANES), ir.Constant(_WORD, 0)
        has_bias, has_relu = (builder.icmp_signed("!=", flag, nothing) for flag in (bias, relu))
        for part in range(PANEL // LANES):
            skip = ir.Constant(_WORD, 4 * LANES * part)
            mask = first_lanes(builder, builder.sub(columns, ir.Constant(_WORD, LANES * part)))
            value = builder.load(_pointer(builder, builder.add(source, skip)), typ=_VECTOR, align=64)
            before = builder.block
            with builder.if_then(has_bias):
                more = builder.fadd(value, masked_load(builder, builder.add(bias, skip), mask))
                inside = builder.block
            total = builder.phi(_VECTOR)
            total.add_incoming(value, before)
            total.add_incoming(more, inside)
            not_positive = builder.and_(
                builder.fcmp_ordered("<=", total, zero),
                builder.select(has_relu, ir.Constant(mask.type, [1] * LANES), ir.Constant(mask.type, [0] * LANES)),
            )
            masked_store(builder, builder.select(not_positive, zero, total), builder.add(to, skip), mask)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5), generate


@intrinsic
def transpose_tile(typingctx, to, to_stride, source, stride, rows, columns):  # noqa: ANN001, ANN202
    """to[p, j] = source[j, p] for a tile of 16 x 16; zero where j >= rows or p >= columns.  Strides are in bytes."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        to, to_stride, source, stride, rows, columns = args
        inside = first_lanes(builder, columns)
        nowhere = ir.Constant(inside.type, [0] * LANES)
        tile = []
        for j in range(LANES):
            present = builder.icmp_signed("<", ir.Constant(_WORD, j), rows)
            mask = builder.select(present, inside, nowhere)
            row = builder.add(source, builder.mul(stride, ir.Constant(_WORD, j)))
            tile.append(masked_load(builder, row, mask))
        # log2(16) rounds: each interleaves rows 8 apart, which rotates the bits of (row, lane) by one.
        for _ in range(4):
            low = ir.Constant(ir.VectorType(_INT32, LANES), [half for i in range(8) for half in (i, 16 + i)])
            high = ir.Constant(ir.VectorType(_INT32, LANES), [half for i in range(8, 16) for half in (i, 16 + i)])
            tile = [builder.shuffle_vector(tile[i], tile[i + 8], order) for i in range(8) for order in (low, high)]
        for p, row in enumerate(tile):
            place = builder.add(to, builder.mul(to_stride, ir.Constant(_WORD, p)))
            builder.store(row, _pointer(builder, place), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), generate


def _pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, _VECTOR.as_pointer())


def first_lanes(builder: ir.IRBuilder, count: ir.Value) -> ir.Value:
    """A mask of the first `count` lanes (any whole number)."""
    kind = ir.VectorType(_INT32, LANES)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, builder.trunc(count, _INT32), ir.Constant(_INT32, 0))
    everywhere = builder.shuffle_vector(first, undefined, ir.Constant(kind, [0] * LANES))
    return builder.icmp_signed("<", ir.Constant(kind, list(range(LANES))), everywhere)


def masked_load(builder: ir.IRBuilder, address: ir.Value, mask: ir.Value) -> ir.Value:
    """Read the lanes of a vector of float32 that are in the mask; the others are 0."""
    pointer, zero = _pointer(builder, address), ir.Constant(_VECTOR, [0.0] * LANES)
    kind = ir.FunctionType(_VECTOR, [pointer.type, _INT32, mask.type, _VECTOR])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
    return builder.call(function, [pointer, ir.Constant(_INT32, 4), mask, zero])


def masked_store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value, mask: ir.Value) -> None:
    """Write the lanes of a vector of float32 that are in the mask."""
    pointer = _pointer(builder, address)
    kind = ir.FunctionType(ir.VoidType(), [_VECTOR, pointer.type, _INT32, mask.type])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.store.v{LANES}f32.p0")
    builder.call(function, [value, pointer, ir.Constant(_INT32, 4), mask])
