"""Many numbers and a bit for each: which of them are large, and where the bits are.

LLVM does not make masks of loops by itself; where the CPU has none it takes them apart.  Addresses need not be aligned.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hpctrain.kernels.compression.block_vectors import LANES, VECTOR, WORDS, Writer, vectors_of

_INT32, _WORD = ir.IntType(32), ir.IntType(64)


@intrinsic(prefer_literal=True)
def take_large(typingctx, adds, keeps, kept, given, factor, limit, masks, taken, count):  # noqa: ANN001, ANN201
    """Store a bit for each number x behind `masks`, 1 where the bits of |x|, as int32, are >= `limit` (int32).

    x = factor kept + given where `adds` (a literal, as `keeps`), else given; it is stored behind `taken` too, and where
    `keeps` also in `kept`, with 0 in the place of a large one.  All are addresses, `count` is a multiple of 32.
    """
    is_added, is_kept = bool(adds.literal_value), bool(keeps.literal_value)

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _, _, kept, given, factor, limit, masks, taken, count = args
        writer = Writer(builder)
        factors, limits = writer.splat(factor), writer.splat(limit)
        all_but_sign, nothing = ir.Constant(WORDS, [0x7FFFFFFF] * LANES), ir.Constant(VECTOR, [0.0] * LANES)

        def body(number: ir.Value, which: int) -> None:
            at = writer.offset(kept, number, 64)
            x = writer.load(writer.offset(given, number, 64))
            if is_added:
                x = writer.multiply_add(factors, writer.load(at), x)
            size = builder.and_(builder.bitcast(x, WORDS), all_but_sign)
            is_large = builder.icmp_signed(">=", size, limits)
            writer.store(builder.bitcast(is_large, ir.IntType(16)), writer.offset(masks, number, 2), 2)
            writer.store(x, writer.offset(taken, number, 64))
            if is_kept:
                writer.store(builder.select(is_large, nothing, x), at)

        vectors_of(writer, count, body)
        return context.get_dummy_value()

    words = (types.intp, types.intp, types.float32, types.int32, types.intp, types.intp, types.intp)
    return types.void(adds, keeps, *words), generate


@intrinsic
def ones(typingctx, bits):  # noqa: ANN001, ANN201
    """Return how many bits of a uint64 are 1 (int64)."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        return Writer(builder).call("llvm.ctpop.i64", _WORD, args[0])

    return types.int64(types.uint64), generate


@intrinsic
def lowest_bit(typingctx, bits):  # noqa: ANN001, ANN201
    """Return the place (int64) of the lowest 1 of a uint64, 0 where there is none."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        place = Writer(builder).call("llvm.cttz.i64", _WORD, args[0], ir.Constant(ir.IntType(1), 0))
        return builder.and_(place, ir.Constant(_WORD, 63))

    return types.int64(types.uint64), generate
