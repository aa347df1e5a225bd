"""`emit_tile`: the innermost loop of a matrix product, with the result's tile kept in vector registers.

LLVM vectorises one loop; it does not block a product for registers.  So the tile (mr rows of nr vectors of 16 float32)
is written as vector IR by an intrinsic; LLVM splits a vector of 16 where the CPU has shorter ones.  A step of the loop
loads nr vectors of B, broadcasts mr numbers of A and does mr x nr fused multiply-adds (Goto & van de Geijn, "Anatomy of
high-performance matrix multiplication", ACM TOMS 34, 2008).  What is looped over around it, and in what order, is the
business of `matmul.py`.
"""

from __future__ import annotations

import contextlib

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16  # float32 in a vector
ADD, BIAS, RELU = 1, 2, 4  # bits of `mode`
_ROWS_OF_POINTER = 3

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_WORD, _INT32 = ir.IntType(64), ir.IntType(32)


@intrinsic(prefer_literal=True)
def emit_tile(typingctx, mr, nr, whole, arguments):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Write a tile of `mr` rows and 16 `nr` columns (literals) into a kernel.

    `whole`, a literal too: 1 where rows = mr and columns = 16 nr, which is quicker; 0 for any tile.  The last argument
    is a tuple of whole numbers (a, ars, acs, b, bks, c, ldc, k, mode, bias, rows, columns):

        C[i, j] = sum over p < k of A[i ars + p acs] B[p bks + j],  i < rows <= mr, j < columns <= 16 nr

    `a b c bias` are addresses (`array.ctypes.data`), everything else counts elements; `ldc` is the distance of C's
    rows.  `mode` is a sum of ADD (what C holds is added to the sum; else C is only written), BIAS (bias[j] is added
    after that) and RELU (the result is max(0, .) after that; NaN stays NaN).  Nothing outside of the given rows and
    columns is read or written.  Each sum is taken in the order of p, whatever the tile's size.  At least one row and
    column; it needs mr nr + nr + 1 vector registers to be fast.
    """
    sizes = mr.literal_value, nr.literal_value, bool(whole.literal_value)

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        values = [
            context.cast(builder, builder.extract_value(args[3], i), kind, types.int64)
            for i, kind in enumerate(arguments)
        ]
        Tile(builder, *sizes, values).emit()
        return context.get_dummy_value()

    return types.void(mr, nr, whole, arguments), generate


class Tile:
    """Writes the code of one tile; `lane_tile` has another kind."""

    def __init__(self, builder: ir.IRBuilder, mr: int, nr: int, whole: bool, arguments: list[ir.Value]) -> None:
        self.builder, self.mr, self.nr, self.whole = builder, mr, nr, whole
        self.a, ars, acs, self.b, bks, self.c, ldc, self.k, self.mode, self.bias, self.rows, self.columns = arguments
        self.ars, self.acs, self.bks, self.ldc = (builder.mul(s, self.word(4)) for s in (ars, acs, bks, ldc))
        self.zero = ir.Constant(_VECTOR, [0.0] * LANES)
        self.fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        )
        # Written as stack variables, which LLVM turns into registers.
        self.sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(nr)] for _ in range(mr)]
        self.masks = [] if whole else [self._mask(j) for j in range(nr)]

    def emit(self) -> None:
        """Write the code."""
        builder = self.builder
        c_rows = self.row_addresses(self.c, self.ldc)
        # C is wanted at the end; until then its lines can be on their way.
        for row in c_rows:
            for j in range(self.nr):
                self.prefetch(row, j)
        self.clear()
        self.sum_products(*self.pointers())
        self._finish(c_rows)
        for i in range(self.mr):
            with self.if_row(i):
                for j in range(self.nr):
                    self.store(builder.load(self.sums[i][j], typ=_VECTOR), c_rows[i], j)

    def clear(self) -> None:
        """Set the sums to zero."""
        for sums in self.sums:
            for total in sums:
                self.builder.store(self.zero, total)

    def pointers(self) -> tuple[list[ir.Value], list[ir.Value]]:
        """Return variables with where A and B (the last) are read, and how far each moves from p to p + 1."""
        # A pointer for every third row of A: LLVM would walk from row to row with one pointer, whose additions wait for
        # each other, or keep one for each, for which there are not enough registers.
        starts = [*self.row_addresses(self.a, self.ars)[::_ROWS_OF_POINTER], self.b]
        steps = [self.acs] * (len(starts) - 1) + [self.bks]
        return [cgutils.alloca_once_value(self.builder, self._hidden(start)) for start in starts], steps

    def sum_products(self, pointers: list[ir.Value], steps: list[ir.Value]) -> None:
        """Add the products of the next k numbers p to the sums; the pointers move on."""
        builder = self.builder
        with cgutils.for_range(builder, self.k):
            at = [builder.load(pointer, typ=_WORD) for pointer in pointers]
            self._multiply_add(at[:-1], at[-1])
            for pointer, now, step in zip(pointers, at, steps, strict=True):
                builder.store(builder.add(now, step), pointer)

    def _multiply_add(self, a: list[ir.Value], b: ir.Value) -> None:
        builder = self.builder
        vectors = [self.load(b, j) for j in range(self.nr)]
        steps = self._row_steps(self.ars)
        for i in range(self.mr):
            address = a[i // _ROWS_OF_POINTER]
            for step in steps[i - i % _ROWS_OF_POINTER + 1 : i + 1]:
                address = builder.add(address, step)
            number = builder.load(builder.inttoptr(address, ir.FloatType().as_pointer()), typ=ir.FloatType())
            number.align = 4
            everywhere = self.splat(number)
            for j in range(self.nr):
                total = builder.load(self.sums[i][j], typ=_VECTOR)
                builder.store(builder.call(self.fma, [everywhere, vectors[j], total]), self.sums[i][j])

    def _finish(self, c_rows: list[ir.Value]) -> None:
        builder = self.builder
        with builder.if_then(self._has(ADD)):
            for i in range(self.mr):
                for j in range(self.nr):
                    total = builder.load(self.sums[i][j], typ=_VECTOR)
                    builder.store(builder.fadd(self.load(c_rows[i], j), total), self.sums[i][j])
        with builder.if_then(self._has(BIAS)):
            for j in range(self.nr):
                bias = self.load(self.bias, j)
                for i in range(self.mr):
                    total = builder.load(self.sums[i][j], typ=_VECTOR)
                    builder.store(builder.fadd(total, bias), self.sums[i][j])
        with builder.if_then(self._has(RELU)):
            for i in range(self.mr):
                for j in range(self.nr):
                    total = builder.load(self.sums[i][j], typ=_VECTOR)
                    not_positive = builder.fcmp_ordered("<=", total, self.zero)
                    builder.store(builder.select(not_positive, self.zero, total), self.sums[i][j])

    def row_addresses(self, first: ir.Value, stride: ir.Value) -> list[ir.Value]:
        """Addresses of the tile's rows; those past the bound fall together with the last one within."""
        addresses = [first]
        for step in self._row_steps(stride)[1:]:
            addresses.append(self.builder.add(addresses[-1], step))
        return addresses

    def _row_steps(self, stride: ir.Value) -> list[ir.Value]:
        """How far each row is from the one before it."""
        if self.whole:
            return [stride] * self.mr
        inside = [self.builder.icmp_signed("<", self.word(i), self.rows) for i in range(self.mr)]
        return [self.builder.select(condition, stride, self.word(0)) for condition in inside]

    def _hidden(self, word: ir.Value) -> ir.Value:
        """The same number, of which LLVM does not know where it comes from (an empty piece of assembly)."""
        return self.builder.asm(ir.FunctionType(_WORD, [_WORD]), "", "=r,0", [word], side_effect=False)

    def if_row(self, i: int):  # noqa: ANN201 (a context manager)
        """Within, what is written is done where row i is one of the given rows."""
        if self.whole:
            return contextlib.nullcontext()
        return self.builder.if_then(self.builder.icmp_signed("<", self.word(i), self.rows))

    def load(self, address: ir.Value, j: int, suffix: str = "f32", vector: ir.Type = _VECTOR) -> ir.Value:
        """Return the j-th vector of a row; zero outside of the given columns."""
        pointer = self._pointer(address, j)
        if self.whole:
            loaded = self.builder.load(pointer, typ=vector)
            loaded.align = 4
            return loaded
        kind = ir.FunctionType(vector, [pointer.type, _INT32, self.masks[j].type, vector])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.load.v{LANES}{suffix}.p0")
        nothing = ir.Constant(vector, [0 if suffix == "i32" else 0.0] * LANES)
        return self.builder.call(function, [pointer, ir.Constant(_INT32, 4), self.masks[j], nothing])

    def store(self, value: ir.Value, address: ir.Value, j: int, suffix: str = "f32", vector: ir.Type = _VECTOR) -> None:
        """Store the j-th vector of a row, up to the last of the given columns."""
        pointer = self._pointer(address, j)
        if self.whole:
            self.builder.store(value, pointer).align = 4
            return
        kind = ir.FunctionType(ir.VoidType(), [vector, pointer.type, _INT32, self.masks[j].type])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.store.v{LANES}{suffix}.p0")
        self.builder.call(function, [value, pointer, ir.Constant(_INT32, 4), self.masks[j]])

    def prefetch(self, address: ir.Value, j: int) -> None:
        """Have the j-th vector of a row fetched, to be written to."""
        pointer = self._pointer(address, j)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INT32, _INT32, _INT32])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(function, [pointer, *(ir.Constant(_INT32, value) for value in (1, 3, 1))])

    def _pointer(self, address: ir.Value, j: int) -> ir.Value:
        moved = self.builder.add(address, self.word(4 * LANES * j))
        return self.builder.inttoptr(moved, ir.PointerType())

    def _mask(self, j: int) -> ir.Value:
        """Which lanes of the j-th vector are within the bound."""
        kind = ir.VectorType(_INT32, LANES)
        places = ir.Constant(kind, [LANES * j + lane for lane in range(LANES)])
        return self.builder.icmp_signed("<", places, self.splat(self.builder.trunc(self.columns, _INT32)))

    def splat(self, number: ir.Value) -> ir.Value:
        """Return a vector with the number in every lane."""
        kind = ir.VectorType(number.type, LANES)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, number, ir.Constant(_INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES))

    def _has(self, bit: int) -> ir.Value:
        return self.builder.icmp_unsigned("!=", self.builder.and_(self.mode, self.word(bit)), self.word(0))

    @staticmethod
    def word(number: int) -> ir.Constant:
        """Return a whole number of 64 bits."""
        return ir.Constant(_WORD, number)
