"""Register tiles: the inner loops of every convolution, written as LLVM vector code.

A tile keeps `rows` x `vectors` vectors of results in registers and runs over three nested loops of products, so that
all taps of a kernel (or all pixels of an image, for a weight gradient) are summed without touching memory for the
results.  It works on addresses with strides in elements, because the same tile walks images, weights and gradients
alike; the last vector is masked, so that any number of channels fits.  Float64 runs through the same code.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
"""Elements of one vector; LLVM splits it where the CPU's registers are narrower."""

ACCUMULATE, BIAS, RELU = 1, 2, 4
"""Bits of a tile's `mode`: add to what stands in c; add the bias; take the positive part of the result."""


_WORD, _INT32 = ir.IntType(64), ir.IntType(32)


class Walk(NamedTuple):
    """Where a tile reads one factor: an address, and strides in elements for the tile's rows and its three loops."""

    address: int
    row: int
    inner: int
    middle: int
    outer: int


class Trips(NamedTuple):
    """How often a tile's three nested loops run: the length of its sum is their product."""

    inner: int
    middle: int
    outer: int


@intrinsic
def address(typingctx, array):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Return the address of an array's first element."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.intp))

    return types.intp(array), generate


@intrinsic
def address_of_one(typingctx, zero):  # noqa: ANN001, ANN201
    """Return the address of a 1.0 of the type of `zero`, valid until the calling function returns."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        one = ir.Constant(context.get_value_type(zero), 1.0)
        return builder.ptrtoint(cgutils.alloca_once_value(builder, one), context.get_value_type(types.intp))

    return types.intp(zero), generate


@intrinsic
def item_bytes(typingctx, zero):  # noqa: ANN001, ANN201
    """Return the size of a scalar's type in bytes."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        return ir.Constant(context.get_value_type(types.intp), zero.bitwidth // 8)

    return types.intp(zero), generate


@intrinsic
def copy_bytes(typingctx, to, start, count):  # noqa: ANN001, ANN201
    """Copy bytes from one address to another; the two do not overlap."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        to, start = (builder.inttoptr(word, ir.PointerType()) for word in args[:2])
        cgutils.raw_memcpy(builder, to, start, args[2], ir.Constant(_WORD, 1))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


class _TileWriter:
    """Writes one tile's code: vectors of `LANES` elements at addresses, the last of each row masked."""

    def __init__(self, builder: ir.IRBuilder, bits: int, vectors: int, columns: ir.Value) -> None:
        self.builder = builder
        self.vectors = vectors
        self.bytes = bits // 8
        self.element = ir.FloatType() if bits == 32 else ir.DoubleType()
        self.vector = ir.VectorType(self.element, LANES)
        self.zeros = ir.Constant(self.vector, [0.0] * LANES)
        pointer, mask, align = ir.PointerType(), ir.VectorType(ir.IntType(1), LANES), _INT32
        suffix = f"v{LANES}f{bits}"
        self._fma = self._declare(f"llvm.fma.{suffix}", self.vector, [self.vector] * 3)
        self._load = self._declare(f"llvm.masked.load.{suffix}.p0", self.vector, [pointer, align, mask, self.vector])
        self._store = self._declare(
            f"llvm.masked.store.{suffix}.p0", ir.VoidType(), [self.vector, pointer, align, mask]
        )
        self._align = ir.Constant(_INT32, self.bytes)
        lane = ir.VectorType(_INT32, LANES)
        count = self.splat(builder.trunc(columns, _INT32), lane)
        self._mask = builder.icmp_signed("<", ir.Constant(lane, list(range(LANES))), count)

    def _declare(self, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
        return cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(result, arguments), name)

    def splat(self, value: ir.Value, kind: ir.VectorType) -> ir.Value:
        """A vector with the value in every lane."""
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES))

    def _pointer(self, base: ir.Value, j: int) -> ir.Value:
        offset = ir.Constant(_WORD, j * LANES * self.bytes)
        return self.builder.inttoptr(self.builder.add(base, offset), ir.PointerType())

    def load(self, base: ir.Value, j: int) -> ir.Value:
        """Vector j of the row at an address; zero beyond the last column."""
        if j == self.vectors - 1:
            return self.builder.call(self._load, [self._pointer(base, j), self._align, self._mask, self.zeros])
        loaded = self.builder.load(self._pointer(base, j), typ=self.vector)
        loaded.align = self.bytes
        return loaded

    def store(self, value: ir.Value, base: ir.Value, j: int) -> None:
        """Store vector j of a row, up to the last column."""
        if j == self.vectors - 1:
            self.builder.call(self._store, [value, self._pointer(base, j), self._align, self._mask])
        else:
            self.builder.store(value, self._pointer(base, j)).align = self.bytes

    def broadcast(self, base: ir.Value) -> ir.Value:
        """A vector of the one element at an address."""
        loaded = self.builder.load(self.builder.inttoptr(base, ir.PointerType()), typ=self.element)
        loaded.align = self.bytes
        return self.splat(loaded, self.vector)

    def hidden(self, word: ir.Value) -> ir.Value:
        """The same number, of which LLVM does not know where it comes from (an empty piece of assembly)."""
        kind = ir.FunctionType(_WORD, [_WORD])
        return self.builder.asm(kind, "", "=r,0", [word], side_effect=False)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c."""
        return self.builder.call(self._fma, [a, b, c])

    def in_bytes(self, elements: ir.Value) -> ir.Value:
        """A stride of elements in bytes."""
        return self.builder.mul(elements, ir.Constant(_WORD, self.bytes))

    def unpacked(self, walk: ir.Value) -> list[ir.Value]:
        """The address and the strides, in bytes, of a `Walk`."""
        first, *strides = (self.builder.extract_value(walk, index) for index in range(len(Walk._fields)))
        return [first, *map(self.in_bytes, strides)]


@intrinsic(prefer_literal=True)
def tile(typingctx, rows, vectors, zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    """C (rows, columns) = [C +] sum over the three loops of a(row) b(columns) [+ bias] [positive part of it]."""
    if not all(isinstance(size, types.IntegerLiteral) for size in (rows, vectors)):
        return None
    n_rows, n_vectors, word = rows.literal_value, vectors.literal_value, types.intp

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _, _, _, c, c_row, a, b, trips, mode, bias, columns = args
        write = _TileWriter(builder, zero.bitwidth, n_vectors, columns)
        cells = [(i, j) for i in range(n_rows) for j in range(n_vectors)]
        total = {cell: cgutils.alloca_once(builder, write.vector) for cell in cells}
        results, c_row = [c], write.in_bytes(c_row)
        for _ in range(n_rows - 1):
            results.append(builder.add(results[-1], c_row))

        def has(bit: int) -> ir.Value:
            return builder.icmp_unsigned("!=", builder.and_(mode, ir.Constant(_WORD, bit)), ir.Constant(_WORD, 0))

        def value(cell: tuple[int, int]) -> ir.Value:
            return builder.load(total[cell], typ=write.vector)

        with builder.if_else(has(ACCUMULATE)) as (then, otherwise):
            with then:
                for i, j in cells:
                    builder.store(write.load(results[i], j), total[i, j])
            with otherwise:
                for cell in cells:
                    builder.store(write.zeros, total[cell])

        a_address, a_row, *a_strides = write.unpacked(a)
        b_address, _, *b_strides = write.unpacked(b)
        trip = [builder.extract_value(trips, axis) for axis in range(3)]

        def multiply_add(a_at: list[ir.Value], b_at: ir.Value) -> None:
            b_row = [write.load(b_at, j) for j in range(n_vectors)]
            for i in range(n_rows):
                within = builder.mul(a_row, ir.Constant(_WORD, i % 3))
                factor = write.broadcast(builder.add(a_at[i // 3], within))
                for j in range(n_vectors):
                    builder.store(write.fma(factor, b_row[j], value((i, j))), total[i, j])

        with cgutils.for_range(builder, trip[2]) as outer:
            a_outer = builder.add(a_address, builder.mul(outer.index, a_strides[2]))
            b_outer = builder.add(b_address, builder.mul(outer.index, b_strides[2]))
            with cgutils.for_range(builder, trip[1]) as middle:
                a_middle = builder.add(a_outer, builder.mul(middle.index, a_strides[1]))
                b_middle = builder.add(b_outer, builder.mul(middle.index, b_strides[1]))
                # A pointer for every third row: LLVM would walk from row to row with one pointer, whose
                # additions wait for each other, longer than the products take.
                starts = [builder.add(a_middle, builder.mul(a_row, ir.Constant(_WORD, i))) for i in range(0, n_rows, 3)]
                pointers = [cgutils.alloca_once(builder, _WORD) for _ in range(len(starts) + 1)]
                for pointer, start in zip(pointers, [*starts, b_middle], strict=True):
                    builder.store(write.hidden(start), pointer)
                steps = [a_strides[0]] * len(starts) + [b_strides[0]]
                with cgutils.for_range(builder, trip[0]):
                    at = [builder.load(pointer, typ=_WORD) for pointer in pointers]
                    multiply_add(at[:-1], at[-1])
                    for pointer, now, step in zip(pointers, at, steps, strict=True):
                        builder.store(builder.add(now, step), pointer)

        with builder.if_then(has(BIAS)):
            for j in range(n_vectors):
                added = write.load(bias, j)
                for i in range(n_rows):
                    builder.store(builder.fadd(value((i, j)), added), total[i, j])
        with builder.if_then(has(RELU)):
            for cell in cells:
                # NaN is not below zero: it stays.
                below = builder.fcmp_ordered("<=", value(cell), write.zeros)
                builder.store(builder.select(below, write.zeros, value(cell)), total[cell])
        for i, j in cells:
            write.store(value((i, j)), results[i], j)
        return context.get_dummy_value()

    return types.void(rows, vectors, zero, word, word, a, b, trips, word, word, word), generate
