"""Sixteen numbers and sixteen bits: comparisons of a vector as a mask, and a mask as a vector.

LLVM does not make masks of loops by itself; where the CPU has none it takes them apart.  Addresses need not be aligned.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_WORDS = ir.VectorType(ir.IntType(32), LANES)
_INT32 = ir.IntType(32)


def _everywhere(builder, value, kind):  # noqa: ANN001, ANN202 (numba's code generation protocol)
    """A vector of `value` in every place."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(_WORDS, [0] * LANES))


def _loaded(builder, address, kind):  # noqa: ANN001, ANN202
    vector = builder.load(builder.inttoptr(address, kind.as_pointer()), typ=kind)
    vector.align = 4
    return vector


@intrinsic
def signs_of(typingctx, address):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Return uint16: bit i is 1 where float32 number i behind `address` is >= 0; of NaN it is 0."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        mask = builder.fcmp_ordered(">=", _loaded(builder, args[0], _VECTOR), ir.Constant(_VECTOR, [0.0] * LANES))
        return builder.bitcast(mask, ir.IntType(16))

    return types.uint16(types.intp), generate


@intrinsic
def put_signed(typingctx, address, bits, size):  # noqa: ANN001, ANN201
    """Store `size` (float32) behind `address` for each 1 in the uint16 `bits`, and -size for each 0."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        address, bits, size = args
        vector = _everywhere(builder, size, _VECTOR)
        mask = builder.bitcast(bits, ir.VectorType(ir.IntType(1), LANES))
        chosen = builder.select(mask, vector, builder.fneg(vector))
        builder.store(chosen, builder.inttoptr(address, _VECTOR.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(types.intp, types.uint16, types.float32), generate


@intrinsic
def not_below(typingctx, address, limit):  # noqa: ANN001, ANN201
    """Return uint16: bit i is 1 where the bits of |float32 number i|, as int32, are >= `limit` (int32)."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        bits = _loaded(builder, args[0], _WORDS)
        magnitude = builder.and_(bits, ir.Constant(_WORDS, [0x7FFFFFFF] * LANES))
        mask = builder.icmp_signed(">=", magnitude, _everywhere(builder, args[1], _WORDS))
        return builder.bitcast(mask, ir.IntType(16))

    return types.uint16(types.intp, types.int32), generate


@intrinsic
def lowest_bit(typingctx, bits):  # noqa: ANN001, ANN201
    """Return the place (int64) of the lowest 1 of a uint16 that is not 0."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        kind = ir.FunctionType(_INT32, [_INT32, ir.IntType(1)])
        count = cgutils.get_or_insert_function(builder.module, kind, "llvm.cttz.i32")
        place = builder.call(count, [builder.zext(args[0], _INT32), ir.Constant(ir.IntType(1), 0)])
        return builder.zext(place, ir.IntType(64))

    return types.int64(types.uint16), generate
