"""Many numbers and a bit for each: which of them are large, and where the bits are.

LLVM does not make masks of loops by itself; where the CPU has none it takes them apart.  Addresses need not be aligned.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hpctrain.kernels.compression.block_vectors import LANES, WORDS, Writer, vectors_of

_INT32, _WORD = ir.IntType(32), ir.IntType(64)


@intrinsic(prefer_literal=True)
def mark_large(typingctx, adds, kept, given, factor, limit, masks, count):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Store a bit for each number x behind `masks`, 1 where the bits of |x|, as int32, are >= `limit` (int32).

    x is what `block_vectors.gather` says; `kept`, `given` and `masks` are addresses, `count` a multiple of 32.
    """
    is_added = bool(adds.literal_value)

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _, kept, given, factor, limit, masks, count = args
        writer = Writer(builder)
        factors, limits = writer.splat(factor), writer.splat(limit)
        all_but_sign = ir.Constant(WORDS, [0x7FFFFFFF] * LANES)

        def body(number: ir.Value, which: int) -> None:
            x = writer.gathered(is_added, kept, given, factors, number)
            size = builder.and_(builder.bitcast(x, WORDS), all_but_sign)
            mask = builder.bitcast(builder.icmp_signed(">=", size, limits), ir.IntType(16))
            writer.store(mask, writer.offset(masks, number, 2), 2)

        vectors_of(writer, count, body)
        return context.get_dummy_value()

    words = (types.intp, types.intp, types.float32, types.int32, types.intp, types.intp)
    return types.void(adds, *words), generate


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
