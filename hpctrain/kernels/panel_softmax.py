"""The softmax of attention on panels of 32 queries: scores[k, q], the softmax running over k, in vector registers.

Written as vector code rather than as loops, because each lane's maximum and sum then stay in a register over all keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from hpctrain.kernels.panels import LANES
from hpctrain.kernels.vector_ir import Value

TOP, TOTAL, FADE = 0, 1, 2
"""Rows of `stats` in the forward pass: the highest score so far, the sum of the weights so far, and by what that sum
and the weighted values of the blocks before are to be multiplied."""
BOTTOM, DELTA = 0, 1
"""Rows of `stats` in the backward pass: the logarithm of the sum of weights, and the sum over features of dC C."""

_LOG2_E = math.log2(math.e)
_LN2_HIGH, _LN2_LOW = 0.693359375, math.log(2.0) - 0.693359375
_LOWEST = -87.0  # e^-87 is about the smallest normal float32: weights below it are zero
# (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, near minimax, as in vector_math
_TAIL = (0.49999998144, 0.166665431766, 0.041667201816, 0.008366580476, 0.001388250758)


def _exp(x: Value) -> Value:
    """e^x for x up to about 0: no overflow to care for.  float64 goes through libm, lane by lane."""
    builder, kind = x.builder, x.value.type
    if str(kind.element) == "double":
        result = x.value
        for lane in range(kind.count):
            place = ir.Constant(ir.IntType(32), lane)
            value = Value(builder, builder.extract_element(x.value, place)).call("exp").value
            result = builder.insert_element(result, value, place)
        return Value(builder, result)
    bounded = (x > _LOWEST).then(x, _LOWEST)
    n = (bounded * _LOG2_E).nearest()
    r = n.times_plus(-_LN2_LOW, n.times_plus(-_LN2_HIGH, bounded))
    value = ((r * r).times_plus(r.polynomial(_TAIL), r) + 1.0) * n.power_of_two()
    return x.is_nan().then(x, (x < _LOWEST).then(x.constant(0.0), value))


class _Panel:
    """Access to the panels of an intrinsic's arrays, `width` columns at a time."""

    def __init__(self, context, builder, kinds, values) -> None:  # noqa: ANN001
        self.builder = builder
        self.item = kinds[0].dtype.bitwidth // 8
        self.width = 64 // self.item
        self.vector = ir.VectorType(context.get_value_type(kinds[0].dtype), self.width)
        self.index = context.get_value_type(types.intp)
        self._data = [context.make_array(k)(context, builder, v).data for k, v in zip(kinds, values, strict=True)]

    def place(self, array: int, row: int | ir.Value, column: int) -> ir.Value:
        """Return the address of `width` columns of an array's row."""
        row = ir.Constant(self.index, row) if isinstance(row, int) else row
        offset = self.builder.add(
            self.builder.mul(row, ir.Constant(self.index, LANES)), ir.Constant(self.index, column)
        )
        return self.builder.bitcast(self.builder.gep(self._data[array], [offset]), self.vector.as_pointer())

    def load(self, array: int, row: int | ir.Value, column: int) -> Value:
        """Return `width` columns of an array's row."""
        value = self.builder.load(self.place(array, row, column))
        value.align = self.item
        return Value(self.builder, value)

    def store(self, value: Value, array: int, row: int | ir.Value, column: int) -> None:
        """Write `width` columns of an array's row."""
        self.builder.store(value.value, self.place(array, row, column)).align = self.item

    def fold(self, rows: ir.Value, start: Value, step: Callable[[ir.Value, Value], Value]) -> Value:
        """Return the last of total = step(row, total) over all rows, from `start`."""
        slot = cgutils.alloca_once_value(self.builder, start.value)
        with cgutils.for_range(self.builder, rows) as loop:
            self.builder.store(step(loop.index, Value(self.builder, self.builder.load(slot))).value, slot)
        return Value(self.builder, self.builder.load(slot))


def _check(*arrays: types.Type) -> None:
    for array in arrays:
        if array.dtype not in (types.float32, types.float64) or array.dtype != arrays[0].dtype or array.layout != "C":
            raise TypingError("panels are C-contiguous arrays of float32 or float64")


@intrinsic
def soften(typingctx, scores, rows, stats):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Turn a block's scores (rows, 32) into weights e^(score - top), in place, and bring `stats` up to date.

    Online softmax (Milakov & Gimelshein 2018): top' = max(top, scores), fade = e^(top - top'),
    total' = fade total + sum of the weights.  A query that has seen no key (top' = -infinity) gets weights 0.
    """
    _check(scores, stats)

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        panel = _Panel(context, builder, (scores, stats), (args[0], args[2]))
        for column in range(0, LANES, panel.width):
            before = panel.load(1, TOP, column)

            def highest(row, top, column=column):  # noqa: ANN001, ANN202
                score = panel.load(0, row, column)
                return (score > top).then(score, top)

            top = panel.fold(args[1], before, highest)
            # e^(-infinity - 0) is 0, e^(-infinity + infinity) would be NaN.
            shift = top.equals(-math.inf).then(top.constant(0.0), top)
            fade = _exp(before - shift)

            def weigh_row(row, total, column=column, shift=shift):  # noqa: ANN001, ANN202
                weight = _exp(panel.load(0, row, column) - shift)
                panel.store(weight, 0, row, column)
                return total + weight

            total = panel.fold(args[1], panel.load(1, TOTAL, column) * fade, weigh_row)
            for value, name in ((top, TOP), (total, TOTAL), (fade, FADE)):
                panel.store(value, 1, name, column)
        return context.get_dummy_value()

    return types.void(scores, types.intp, stats), generate


@intrinsic
def soften_backward(typingctx, scores, d_scores, rows, stats):  # noqa: ANN001, ANN201
    """scores becomes P = e^(scores - bottom), d_scores (dP when called) becomes P (dP - delta); both (rows, 32)."""
    _check(scores, d_scores, stats)

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        panel = _Panel(context, builder, (scores, d_scores, stats), (args[0], args[1], args[3]))
        for column in range(0, LANES, panel.width):
            bottom, delta = panel.load(2, BOTTOM, column), panel.load(2, DELTA, column)
            with cgutils.for_range(builder, args[2]) as loop:
                weight = _exp(panel.load(0, loop.index, column) - bottom)
                slope = panel.load(1, loop.index, column)
                panel.store(weight, 0, loop.index, column)
                panel.store(weight * (slope - delta), 1, loop.index, column)
        return context.get_dummy_value()

    return types.void(scores, d_scores, types.intp, stats), generate
