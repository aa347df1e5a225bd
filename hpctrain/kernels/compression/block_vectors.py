"""One block of numbers, sixteen at a time: the loops that read gradients from memory and write codes.

LLVM would take vectors half as long and check before each block whether its arrays overlap.  A block stays in the
first-level cache between the two looks at it, so that memory is read and written once.  Arguments called `given`,
`kept`, `x`, `codes`, `out` are addresses; arrays may begin anywhere.  `count` is a multiple of 32.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
LARGEST, SIZES = 0, 1  # what `gather` returns
VECTOR = ir.VectorType(ir.FloatType(), LANES)
WORDS = ir.VectorType(ir.IntType(32), LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)
_WORD, _INT32, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_ROUNDING = 1.5 * 2.0**23  # a number of less than 2^22 that it is added to is rounded to a whole one, ties to even


class Writer:
    """Writes vector code: every operation is one instruction, correctly rounded."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def load(self, address: ir.Value, kind: ir.Type = VECTOR) -> ir.Value:
        """Return what stands at an address."""
        loaded = self.builder.load(self.builder.inttoptr(address, ir.PointerType()), typ=kind)
        loaded.align = 1 if kind == _BYTES else 4
        return loaded

    def store(self, value: ir.Value, address: ir.Value, align: int = 4) -> None:
        """Store a vector."""
        self.builder.store(value, self.builder.inttoptr(address, ir.PointerType())).align = align

    def stream(self, value: ir.Value, address: ir.Value) -> None:
        """Store a vector at a multiple of 64 bytes past the caches: its line need not be fetched first."""
        stored = self.builder.store(value, self.builder.inttoptr(address, ir.PointerType()))
        stored.align = 64
        stored.set_metadata("nontemporal", self.builder.module.add_metadata([ir.Constant(_INT32, 1)]))

    def splat(self, number: ir.Value) -> ir.Value:
        """Return a vector with the number in every lane."""
        undefined = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
        first = self.builder.insert_element(undefined, number, ir.Constant(_INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(WORDS, [0] * LANES))

    def call(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """Call one of LLVM's functions."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a b + c, rounded once."""
        return self.call(f"llvm.fma.v{LANES}f32", VECTOR, a, b, c)

    def absolute(self, x: ir.Value) -> ir.Value:
        """|x|."""
        return self.call(f"llvm.fabs.v{LANES}f32", VECTOR, x)

    def offset(self, address: ir.Value, index: ir.Value, size: int) -> ir.Value:
        """The address of a vector of `size` bytes."""
        return self.builder.add(address, self.builder.mul(index, ir.Constant(_WORD, size)))


def vectors_of(writer: Writer, count: ir.Value, body) -> None:  # noqa: ANN001
    """Write a loop over pairs of vectors: body(number of the vector, which of the pair)."""
    builder = writer.builder
    with cgutils.for_range(builder, builder.lshr(count, ir.Constant(_WORD, 5))) as loop:
        first = builder.shl(loop.index, ir.Constant(_WORD, 1))
        body(first, 0)
        body(builder.add(first, ir.Constant(_WORD, 1)), 1)


@intrinsic(prefer_literal=True)
def gather(typingctx, adds, which, kept, given, factor, count):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Return max |x| or, where `which` is SIZES, the sum of |x|; float32; infinity or NaN where x holds one.

    Where `adds` (a literal, as `which`), x = factor kept + given, which is stored in `kept`; else x is `given`.
    """
    is_added, is_sum = bool(adds.literal_value), which.literal_value == SIZES

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _, _, kept, given, factor, count = args
        writer = Writer(builder)
        everywhere = writer.splat(factor)
        kind = VECTOR if is_sum else WORDS
        totals = [cgutils.alloca_once_value(builder, ir.Constant(kind, [0] * LANES)) for _ in range(2)]

        def body(number: ir.Value, which: int) -> None:
            x = writer.load(writer.offset(given, number, 64))
            if is_added:
                at = writer.offset(kept, number, 64)
                x = writer.multiply_add(everywhere, writer.load(at), x)
                writer.store(x, at)
            total = builder.load(totals[which], typ=kind)
            size = writer.absolute(x)
            if is_sum:
                total = builder.fadd(total, size)
            else:  # bits compare as the numbers do, and LLVM has no vectors' maximum that lets NaN through
                total = writer.call(f"llvm.umax.v{LANES}i32", WORDS, total, builder.bitcast(size, WORDS))
            builder.store(total, totals[which])

        vectors_of(writer, count, body)
        first, second = (builder.load(total, typ=kind) for total in totals)
        if is_sum:
            both = builder.fadd(first, second)
            # Halves of halves, so that the order of the additions is the same on every processor.
            for half in (8, 4, 2, 1):
                places = ir.Constant(WORDS, [(lane + half) % LANES for lane in range(LANES)])
                both = builder.fadd(both, builder.shuffle_vector(both, both, places))
            return builder.extract_element(both, ir.Constant(_INT32, 0))
        both = writer.call(f"llvm.umax.v{LANES}i32", WORDS, first, second)
        return builder.bitcast(writer.call(f"llvm.vector.reduce.umax.v{LANES}i32", _INT32, both), _FLOAT)

    words = (types.intp, types.intp, types.float32, types.intp)
    return types.float32(adds, which, *words), generate


@intrinsic(prefer_literal=True)
def write_int8(typingctx, keeps, x, codes, inverse, scale, count):  # noqa: ANN001, ANN201
    """Store int8 q = x inverse to nearest (ties to even), |q| <= 127; x -= q scale where `keeps` (a literal)."""
    is_kept = bool(keeps.literal_value)

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _, x, codes, inverse, scale, count = args
        writer = Writer(builder)
        inverses, scales = writer.splat(inverse), writer.splat(builder.fneg(scale))
        rounding = ir.Constant(VECTOR, [_ROUNDING] * LANES)

        def body(number: ir.Value, which: int) -> None:
            at = writer.offset(x, number, 64)
            value = writer.load(at)
            # The lowest bits of the sum are q.
            rounded = writer.multiply_add(value, inverses, rounding)
            q = builder.trunc(builder.bitcast(rounded, WORDS), _BYTES)
            writer.store(q, writer.offset(codes, number, LANES), 1)
            if is_kept:
                writer.store(writer.multiply_add(builder.fsub(rounded, rounding), scales, value), at)

        vectors_of(writer, count, body)
        return context.get_dummy_value()

    words = (types.intp, types.intp, types.float32, types.float32, types.intp)
    return types.void(keeps, *words), generate


@intrinsic(prefer_literal=True)
def write_signs(typingctx, keeps, x, codes, scale, count):  # noqa: ANN001, ANN201
    """Store bits, 1 where x >= 0; where `keeps` (a literal), x -= scale there, and x += scale elsewhere."""
    is_kept = bool(keeps.literal_value)

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _, x, codes, scale, count = args
        writer = Writer(builder)
        scales = writer.splat(scale)
        opposite = builder.fneg(scales)

        def body(number: ir.Value, which: int) -> None:
            at = writer.offset(x, number, 64)
            value = writer.load(at)
            mask = builder.fcmp_ordered(">=", value, ir.Constant(VECTOR, [0.0] * LANES))
            writer.store(builder.bitcast(mask, ir.IntType(16)), writer.offset(codes, number, 2), 1)
            if is_kept:
                writer.store(builder.fsub(value, builder.select(mask, scales, opposite)), at)

        vectors_of(writer, count, body)
        return context.get_dummy_value()

    return types.void(keeps, types.intp, types.intp, types.float32, types.intp), generate


@intrinsic(prefer_literal=True)
def read_int8(typingctx, streams, codes, scale, out, count):  # noqa: ANN001, ANN201
    """out = q scale; where `streams` (a literal) past the caches, `out` at a multiple of 64 bytes."""
    store = Writer.stream if streams.literal_value else Writer.store

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _, codes, scale, out, count = args
        writer = Writer(builder)
        scales = writer.splat(scale)

        def body(number: ir.Value, which: int) -> None:
            q = builder.sext(writer.load(writer.offset(codes, number, LANES), _BYTES), WORDS)
            store(writer, builder.fmul(builder.sitofp(q, VECTOR), scales), writer.offset(out, number, 64))

        vectors_of(writer, count, body)
        return context.get_dummy_value()

    return types.void(streams, types.intp, types.float32, types.intp, types.intp), generate


@intrinsic(prefer_literal=True)
def read_signs(typingctx, streams, codes, scale, out, count):  # noqa: ANN001, ANN201
    """out = scale for each 1, -scale for each 0; `streams` as for `read_int8`."""
    store = Writer.stream if streams.literal_value else Writer.store

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _, codes, scale, out, count = args
        writer = Writer(builder)
        scales = writer.splat(scale)
        opposite = builder.fneg(scales)

        def body(number: ir.Value, which: int) -> None:
            bits = builder.load(builder.inttoptr(writer.offset(codes, number, 2), ir.PointerType()), typ=ir.IntType(16))
            bits.align = 1
            store(
                writer, builder.select(builder.bitcast(bits, _MASK), scales, opposite), writer.offset(out, number, 64)
            )

        vectors_of(writer, count, body)
        return context.get_dummy_value()

    return types.void(streams, types.intp, types.float32, types.intp, types.intp), generate


@intrinsic
def stream_zeros(typingctx, out, count):  # noqa: ANN001, ANN201
    """out = 0 past the caches; `out` at a multiple of 64 bytes."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        out, count = args
        writer, zeros = Writer(builder), ir.Constant(VECTOR, [0.0] * LANES)
        vectors_of(writer, count, lambda number, which: writer.stream(zeros, writer.offset(out, number, 64)))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def settle_streams(typingctx):  # noqa: ANN001, ANN201
    """Let what was stored past the caches be seen by other cores before what is stored after this."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
