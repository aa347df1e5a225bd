"""`emit_lane_tile`: the tile of a product that is summed lane by lane, each lane's sums rounded to fixed point.

As `microkernel.emit_tile`, with the sum over p cut into lanes: what a lane comes to is scaled, rounded and added to
int32 numbers, which are in the first-level cache by then; so the lanes cost little more than the product.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hpctrain.kernels.microkernel import LANES, Tile

_WHOLE = ir.VectorType(ir.IntType(32), LANES)
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INT32 = ir.IntType(32)


@intrinsic(prefer_literal=True)
def emit_lane_tile(typingctx, mr, nr, whole, arguments):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Write a tile of `mr` rows and 16 `nr` columns (literals) into a kernel; `whole` as in `emit_tile`.

    The last argument is a tuple of whole numbers (a, ars, acs, b, bks, c, ldc, depth, lanes, fresh, scale, largest,
    rows, columns):

        C[i, j] += sum over l < lanes of rint(s sum over l depth <= p < (l + 1) depth of A[i ars + p acs] B[p bks + j])

    for i < rows <= mr, j < columns <= 16 nr; where `fresh` is not 0, C (int32) is stored and not added to.  `a b c` are
    addresses, `scale` that of s (float32), `largest` that of an int32, which becomes the largest of what it was and the
    bits of the sums' sizes.
    """
    sizes = mr.literal_value, nr.literal_value, bool(whole.literal_value)

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        values = [
            context.cast(builder, builder.extract_value(args[3], i), kind, types.int64)
            for i, kind in enumerate(arguments)
        ]
        _LaneTile(builder, *sizes, values).emit()
        return context.get_dummy_value()

    return types.void(mr, nr, whole, arguments), generate


class _LaneTile(Tile):
    """Writes the code of one tile."""

    def __init__(self, builder: ir.IRBuilder, mr: int, nr: int, whole: bool, arguments: list[ir.Value]) -> None:
        a, ars, acs, b, bks, c, ldc, depth, lanes, fresh, scale, largest, rows, columns = arguments
        nothing = ir.Constant(ir.IntType(64), 0)
        super().__init__(builder, mr, nr, whole, [a, ars, acs, b, bks, c, ldc, depth, nothing, nothing, rows, columns])
        self.lanes, self.fresh, self.scale, self.largest = lanes, fresh, scale, largest
        kind = ir.FunctionType(_VECTOR, [_VECTOR])
        self.rint = cgutils.get_or_insert_function(builder.module, kind, f"llvm.rint.v{LANES}f32")

    def emit(self) -> None:
        """Write the code."""
        builder = self.builder
        c_rows = self.row_addresses(self.c, self.ldc)
        for row in c_rows:
            for j in range(self.nr):
                self.prefetch(row, j)
        factor = builder.load(builder.inttoptr(self.scale, ir.PointerType()), typ=ir.FloatType())
        factor.align = 4
        scale = self.splat(factor)
        most = cgutils.alloca_once_value(builder, ir.Constant(_WHOLE, [0] * LANES))
        pointers, steps = self.pointers()
        with cgutils.for_range(builder, self.lanes) as lane:
            self.clear()
            self.sum_products(pointers, steps)
            stores = builder.and_(
                builder.icmp_unsigned("==", lane.index, self.word(0)),
                builder.icmp_unsigned("!=", self.fresh, self.word(0)),
            )
            for i in range(self.mr):
                with self.if_row(i):
                    for j in range(self.nr):
                        self._round(builder.load(self.sums[i][j], typ=_VECTOR), c_rows[i], j, scale, stores, most)
        self._keep_largest(builder.load(most, typ=_WHOLE))

    def _round(self, total: ir.Value, row: ir.Value, j: int, scale: ir.Value, stores: ir.Value, most: ir.Value) -> None:
        """Add a vector of a lane's sums to C, and take notice of its largest."""
        builder = self.builder
        size = builder.and_(builder.bitcast(total, _WHOLE), ir.Constant(_WHOLE, [0x7FFFFFFF] * LANES))
        before = builder.load(most, typ=_WHOLE)
        builder.store(builder.select(builder.icmp_unsigned(">", size, before), size, before), most)
        rounded = builder.fptosi(builder.call(self.rint, [builder.fmul(total, scale)]), _WHOLE)
        nothing = ir.Constant(_WHOLE, [0] * LANES)
        there = builder.select(stores, nothing, self.load(row, j, "i32", _WHOLE))
        self.store(builder.add(there, rounded), row, j, "i32", _WHOLE)

    def _keep_largest(self, vector: ir.Value) -> None:
        builder = self.builder
        kind = ir.FunctionType(_INT32, [_WHOLE])
        reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.umax.v{LANES}i32")
        found = builder.call(reduce, [vector])
        place = builder.inttoptr(self.largest, ir.PointerType())
        before = builder.load(place, typ=_INT32)
        builder.store(builder.select(builder.icmp_unsigned(">", found, before), found, before), place)
