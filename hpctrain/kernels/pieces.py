"""Operations on rows of short vectors (places of a few channels), written as vector code.

LLVM checks before every loop whether its arrays overlap, and leaves a loop of 16 to its scalar remainder; with few
channels that is most of the time.  Here a piece of 16 channels is read, computed and written at once; what is left of
the channels is done one by one.  All functions take (arrays..., first places, steps between places, places, channels).
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.vector_ir import Value
from hpctrain.kernels.views import keep_apart

_LANES = 16


def _piece(lanes: int, formula: Callable[..., dict[int, Value]]) -> Callable:
    """Return f(arrays, places): `formula` is given what stands in the arrays there, and says what to write to which."""

    @intrinsic
    def piece(typingctx, arrays, places):  # noqa: ANN001, ANN202 (numba's typing protocol)
        def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
            kind = signature.args[0].dtype
            vector = ir.VectorType(context.get_value_type(kind.dtype), lanes)
            pointers, values = [], []
            for number in range(signature.args[0].count):
                array = context.make_array(kind)(context, builder, builder.extract_value(args[0], number))
                first = builder.gep(array.data, [builder.extract_value(args[1], number)])
                word = builder.ptrtoint(first, context.get_value_type(types.intp))
                pointers.append(builder.inttoptr(word, ir.PointerType()))
                loaded = builder.load(pointers[-1], align=kind.dtype.bitwidth // 8, typ=vector)
                values.append(Value(builder, loaded))
            for number, value in formula(*values).items():
                builder.store(value.value, pointers[number], align=kind.dtype.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(arrays, places), generate

    return piece


def _rows(formula: Callable[..., dict[int, Value]]) -> Callable:
    """Return f(x, y, x_at, x_step, y_at, y_step, count, channels), which runs a formula of (x, y) along a row."""
    many, one = _piece(_LANES, formula), _piece(1, formula)

    @kernel(cache=False, no_cpython_wrapper=True)
    def rows(x, y, x_at, x_step, y_at, y_step, count, channels):  # noqa: ANN001, ANN202
        keep_apart()
        whole = channels // _LANES * _LANES
        for place in range(count):
            a, b = x_at + place * x_step, y_at + place * y_step
            for c in range(0, whole, _LANES):
                many((x, y), (a + c, b + c))
            for c in range(whole, channels):
                one((x, y), (a + c, b + c))

    return rows


def _take_rows(formula: Callable[..., dict[int, Value]]) -> Callable:
    """Return f(x, y, left, dx, x_at, x_step, y_at, left_at, count, channels); places of y and left stand in a row."""
    many, one = _piece(_LANES, formula), _piece(1, formula)

    @kernel(cache=False, no_cpython_wrapper=True)
    def rows(x, y, left, dx, x_at, x_step, y_at, left_at, count, channels):  # noqa: ANN001, ANN202
        keep_apart()
        whole = channels // _LANES * _LANES
        for place in range(count):
            a, b, t = x_at + place * x_step, y_at + place * channels, left_at + place * channels
            for c in range(0, whole, _LANES):
                many((x, y, left, dx), (a + c, b + c, t + c, a + c))
            for c in range(whole, channels):
                one((x, y, left, dx), (a + c, b + c, t + c, a + c))

    return rows


def _maximum(x: Value, y: Value) -> dict[int, Value]:
    """y = the larger one; NaN if one is NaN."""
    return {1: x.is_nan().then(x, (x > y).then(x, y))}


def _take(x: Value, y: Value, left: Value, dx: Value) -> tuple[Value, Value]:
    # Not less, rather than equal: so NaN finds its place, too.
    less, zero = x < y, left.constant(0.0)
    return less.then(zero, left), less.then(left, zero)


def _take_stored(x: Value, y: Value, left: Value, dx: Value) -> dict[int, Value]:
    taken, rest = _take(x, y, left, dx)
    return {3: taken, 2: rest}


def _take_added(x: Value, y: Value, left: Value, dx: Value) -> dict[int, Value]:
    taken, rest = _take(x, y, left, dx)
    return {3: dx + taken, 2: rest}


maximum_rows = _rows(_maximum)
"""y = max(x, y); NaN if one of them is."""

add_rows = _rows(lambda x, y: {1: x + y})
"""y = x + y."""

copy_rows = _rows(lambda x, y: {1: x})
"""y = x."""

take_rows = _take_rows(_take_stored)
"""Where x is y (the maximum): dx = left and left = 0; else dx = 0."""

take_rows_added = _take_rows(_take_added)
"""Where x is y (the maximum): dx = dx + left and left = 0."""
