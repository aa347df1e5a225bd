"""`microkernel(mr, nr)`: the innermost loop of a matrix product, with the result's tile kept in vector registers.

LLVM vectorises one loop; it does not block a product for registers.  So the tile (mr rows of nr vectors of 16 float32)
is written as vector IR by an intrinsic; LLVM splits a vector of 16 where the CPU has shorter ones.  A step of the loop
loads nr vectors of B, broadcasts mr numbers of A and does mr x nr fused multiply-adds (Goto & van de Geijn, "Anatomy of
high-performance matrix multiplication", ACM TOMS 34, 2008).  What is looped over around it, and in what order, is the
business of `matmul.py` and of the convolutions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hpctrain.kernels.jit import kernel

LANES = 16  # float32 in a vector
ADD, BIAS, RELU = 1, 2, 4  # bits of `mode`

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_WORD, _INT32 = ir.IntType(64), ir.IntType(32)


@functools.cache
def microkernel(mr: int, nr: int) -> Callable:
    """Return the compiled function for tiles of `mr` rows and 16 `nr` columns of float32.

    f(a, ars, acs, aos, b, bks, bos, c, ldc, k, outer, mode, bias) computes, for i < mr, j < 16 nr,

        C[i, j] = sum over o < outer, p < k of A[i ars + p acs + o aos] B[p bks + o bos + j]

    `a b c bias` are addresses (`array.ctypes.data`), everything else counts elements; `ldc` is the distance of C's
    rows.  `mode` is a sum of ADD (the sum starts from what C holds, else C is only written), BIAS (bias[j] is added
    after the sum) and RELU (the result is max(0, .) after that; NaN stays NaN).  Needs mr nr + nr + 1 vector registers.
    """
    emit = _emitter(mr, nr, bounded=False)

    @kernel(cache=False)
    def tile(a, ars, acs, aos, b, bks, bos, c, ldc, k, outer, mode, bias):  # noqa: ANN001, ANN202
        emit(a, ars, acs, aos, b, bks, bos, c, ldc, k, outer, mode, bias)

    return tile


@functools.cache
def bounded_microkernel(mr: int, nr: int) -> Callable:
    """Return the function for tiles at the rim: f(..., bias, rows, columns), 1 <= rows <= mr, 1 <= columns <= 16 nr.

    As `microkernel`; nothing outside of the given rows and columns is read or written.
    """
    emit = _emitter(mr, nr, bounded=True)

    @kernel(cache=False)
    def tile(a, ars, acs, aos, b, bks, bos, c, ldc, k, outer, mode, bias, rows, columns):  # noqa: ANN001, ANN202
        emit(a, ars, acs, aos, b, bks, bos, c, ldc, k, outer, mode, bias, rows, columns)

    return tile


def _emitter(mr: int, nr: int, bounded: bool) -> Callable:
    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _Tile(builder, mr, nr, args, bounded).emit()
        return context.get_dummy_value()

    if bounded:

        @intrinsic
        def emit(typingctx, a, ars, acs, aos, b, bks, bos, c, ldc, k, outer, mode, bias, rows, columns):  # noqa: ANN001, ANN202
            return types.void(*[types.intp] * 15), generate

    else:

        @intrinsic
        def emit(typingctx, a, ars, acs, aos, b, bks, bos, c, ldc, k, outer, mode, bias):  # noqa: ANN001, ANN202
            return types.void(*[types.intp] * 13), generate

    return emit


class _Tile:
    """Writes the code of one tile."""

    def __init__(self, builder: ir.IRBuilder, mr: int, nr: int, args: list[ir.Value], bounded: bool) -> None:
        self.builder, self.mr, self.nr = builder, mr, nr
        a, ars, acs, aos, b, bks, bos, c, ldc, self.k, self.outer, self.mode, self.bias = args[:13]
        self.a, self.b, self.c = a, b, c
        self.ars, self.acs, self.aos, self.bks, self.bos, self.ldc = (
            builder.mul(stride, self._word(4)) for stride in (ars, acs, aos, bks, bos, ldc)
        )
        self.rows, self.columns = args[13:] if bounded else (None, None)
        self.zero = ir.Constant(_VECTOR, [0.0] * LANES)
        self.fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        )
        # Kept as stack variables: LLVM moves them into registers (an intrinsic cannot write phi nodes for loops easily).
        self.sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(nr)] for _ in range(mr)]
        self.masks = [self._mask(j) for j in range(nr)] if bounded else [None] * nr

    def emit(self) -> None:
        builder = self.builder
        c_rows = self._row_addresses(self.c, self.ldc)
        self._start(c_rows)
        with cgutils.for_range(builder, self.outer) as outer:
            a_outer = builder.add(self.a, builder.mul(outer.index, self.aos))
            b_outer = builder.add(self.b, builder.mul(outer.index, self.bos))
            with cgutils.for_range(builder, self.k) as inner:
                self._multiply_add(
                    builder.add(a_outer, builder.mul(inner.index, self.acs)),
                    builder.add(b_outer, builder.mul(inner.index, self.bks)),
                )
        self._finish()
        for i in range(self.mr):
            with self._if_row(i):
                for j in range(self.nr):
                    self._store(builder.load(self.sums[i][j], typ=_VECTOR), c_rows[i], j)

    def _start(self, c_rows: list[ir.Value]) -> None:
        with self.builder.if_else(self._has(ADD)) as (adding, storing):
            with adding:
                for i in range(self.mr):
                    for j in range(self.nr):
                        self.builder.store(self._load(c_rows[i], j), self.sums[i][j])
            with storing:
                for i in range(self.mr):
                    for j in range(self.nr):
                        self.builder.store(self.zero, self.sums[i][j])

    def _multiply_add(self, a: ir.Value, b: ir.Value) -> None:
        builder = self.builder
        vectors = [self._load(b, j) for j in range(self.nr)]
        for i, address in enumerate(self._row_addresses(a, self.ars)):
            number = builder.load(builder.inttoptr(address, ir.FloatType().as_pointer()), typ=ir.FloatType())
            number.align = 4
            everywhere = self._splat(number)
            for j in range(self.nr):
                total = builder.load(self.sums[i][j], typ=_VECTOR)
                builder.store(builder.call(self.fma, [everywhere, vectors[j], total]), self.sums[i][j])

    def _finish(self) -> None:
        builder = self.builder
        with builder.if_then(self._has(BIAS)):
            for j in range(self.nr):
                bias = self._load(self.bias, j)
                for i in range(self.mr):
                    total = builder.load(self.sums[i][j], typ=_VECTOR)
                    builder.store(builder.fadd(total, bias), self.sums[i][j])
        with builder.if_then(self._has(RELU)):
            for i in range(self.mr):
                for j in range(self.nr):
                    total = builder.load(self.sums[i][j], typ=_VECTOR)
                    not_positive = builder.fcmp_ordered("<=", total, self.zero)
                    builder.store(builder.select(not_positive, self.zero, total), self.sums[i][j])

    def _row_addresses(self, first: ir.Value, stride: ir.Value) -> list[ir.Value]:
        """Addresses of the tile's rows; those past the bound fall together with the last one within."""
        addresses = [first]
        for i in range(1, self.mr):
            step = stride
            if self.rows is not None:
                inside = self.builder.icmp_signed("<", self._word(i), self.rows)
                step = self.builder.select(inside, stride, self._word(0))
            addresses.append(self.builder.add(addresses[-1], step))
        return addresses

    def _if_row(self, i: int):  # noqa: ANN202 (a context manager)
        bound = self._word(self.mr) if self.rows is None else self.rows
        return self.builder.if_then(self.builder.icmp_signed("<", self._word(i), bound))

    def _load(self, address: ir.Value, j: int) -> ir.Value:
        pointer = self._pointer(address, j)
        if self.masks[j] is None:
            value = self.builder.load(pointer, typ=_VECTOR)
            value.align = 4
            return value
        kind = ir.FunctionType(_VECTOR, [pointer.type, _INT32, self.masks[j].type, _VECTOR])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
        return self.builder.call(function, [pointer, ir.Constant(_INT32, 4), self.masks[j], self.zero])

    def _store(self, value: ir.Value, address: ir.Value, j: int) -> None:
        pointer = self._pointer(address, j)
        if self.masks[j] is None:
            self.builder.store(value, pointer, align=4)
            return
        kind = ir.FunctionType(ir.VoidType(), [_VECTOR, pointer.type, _INT32, self.masks[j].type])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.store.v{LANES}f32.p0")
        self.builder.call(function, [value, pointer, ir.Constant(_INT32, 4), self.masks[j]])

    def _pointer(self, address: ir.Value, j: int) -> ir.Value:
        moved = self.builder.add(address, self._word(4 * LANES * j))
        return self.builder.inttoptr(moved, _VECTOR.as_pointer())

    def _mask(self, j: int) -> ir.Value:
        """Which lanes of the j-th vector are within the bound."""
        kind = ir.VectorType(_INT32, LANES)
        places = ir.Constant(kind, [LANES * j + lane for lane in range(LANES)])
        return self.builder.icmp_signed("<", places, self._splat(self.builder.trunc(self.columns, _INT32)))

    def _splat(self, number: ir.Value) -> ir.Value:
        kind = ir.VectorType(number.type, LANES)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, number, ir.Constant(_INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES))

    def _has(self, bit: int) -> ir.Value:
        return self.builder.icmp_unsigned("!=", self.builder.and_(self.mode, self._word(bit)), self._word(0))

    @staticmethod
    def _word(number: int) -> ir.Constant:
        return ir.Constant(_WORD, number)
