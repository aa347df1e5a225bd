"""Sums in memory that the ranks of a node share: waiting for each other by flags, and adding up in place.

`rows` (P, stride) float32 has a row for each rank; `flags` (8 P,) int64 has a cache line for each rank, of which the
first number is used: how often the rank has come to a meeting.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types, typing
from numba.extending import intrinsic

from hpctrain.kernels.jit import kernel

LINE = 8  # int64 numbers of a cache line
BLOCK = 1024  # floats that are added up at a time: they stay in the first-level cache
YIELDS = 2000  # looks after which a rank that waits sleeps between them
_SLEEP_US = 50
_NAPS = 20

_sched_yield = types.ExternalFunction("sched_yield", typing.signature(types.int32))
_usleep = types.ExternalFunction("usleep", typing.signature(types.int32, types.uint32))


def _place(context, builder, array_type, array, index):  # noqa: ANN001, ANN202 (numba's code generation protocol)
    made = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, made, [index])


@intrinsic
def load_flag(typingctx, flags, index):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Return flags[index]; what was written before that flag was stored is seen by whoever loads it."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        place = _place(context, builder, signature.args[0], *args)
        return builder.load_atomic(place, "acquire", 8, typ=ir.IntType(64))

    return types.int64(flags, types.intp), generate


@intrinsic
def store_flag(typingctx, flags, index, value):  # noqa: ANN001, ANN201
    """flags[index] = value, after everything that was written before."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        place = _place(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], place, "release", 8)
        return context.get_dummy_value()

    return types.void(flags, types.intp, types.int64), generate


@kernel
def meet(flags: np.ndarray, rank: int, size: int, count: int, spins: int) -> bool:
    """Return whether all ranks have come to their meeting number `count`, counted from 1; waits a few milliseconds.

    Looks `spins` times, then `YIELDS` times lets others have the core between looks, and then sleeps; less than zero
    are so many looks less before it sleeps.  After `_NAPS` sleeps it gives up for now: others may wait for a message of
    this rank that only MPI, when it is called, moves on.  Then it is called again.
    """
    store_flag(flags, rank * LINE, count)
    for other in range(size):
        looks = 0
        while load_flag(flags, other * LINE) < count:
            looks += 1
            if looks > spins + YIELDS + _NAPS:
                return False
            if looks > spins + YIELDS:
                _usleep(np.uint32(_SLEEP_US))
            elif looks > spins:
                _sched_yield()
    return True


@kernel
def add_rows(rows: np.ndarray, size: int, lo: int, hi: int, first: int, last: int, scratch: np.ndarray) -> None:
    """rows[q, i] = sum over p < size of rows[p, i], for lo <= i < hi and first <= q < last; scratch (BLOCK,) float32.

    The sum is taken in rank order, so that it has the same bits whoever takes it.
    """
    for start in range(lo, hi, BLOCK):
        count = min(BLOCK, hi - start)
        given = rows[0, start : start + count]
        for i in range(count):
            scratch[i] = given[i]
        for other in range(1, size):
            given = rows[other, start : start + count]
            for i in range(count):
                scratch[i] += given[i]
        for to in range(first, last):
            out = rows[to, start : start + count]
            for i in range(count):
                out[i] = scratch[i]


@kernel
def add_chosen(rows: np.ndarray, given: np.ndarray, to: np.ndarray, lo: int, hi: int, scratch: np.ndarray) -> None:
    """rows[q, i] = sum over p in given of rows[p, i], for lo <= i < hi and q in to; scratch (BLOCK,) of rows' type.

    given, to  int64: numbers of rows; the sum is taken in the order of `given`
    """
    for start in range(lo, hi, BLOCK):
        count = min(BLOCK, hi - start)
        values = rows[given[0], start : start + count]
        for i in range(count):
            scratch[i] = values[i]
        for place in range(1, given.size):
            values = rows[given[place], start : start + count]
            for i in range(count):
                scratch[i] += values[i]
        for place in range(to.size):
            out = rows[to[place], start : start + count]
            for i in range(count):
                out[i] = scratch[i]


@kernel
def sum_rows(
    rows: np.ndarray,
    flags: np.ndarray,
    rank: int,
    size: int,
    count: int,
    spins: int,
    lo: int,
    hi: int,
    scratch: np.ndarray,
    met: int,
) -> int:
    """Meet, `add_rows` for every row, and meet again: an all-reduce of which this rank does lo..hi, in one call.

    Returns how often it has met: 2, or less where others are late, to be called again with that as `met`; first 0.
    """
    if met == 0:
        if not meet(flags, rank, size, count, spins):
            return 0
        add_rows(rows, size, lo, hi, 0, size, scratch)
    return 2 if meet(flags, rank, size, count + 1, spins) else 1


@kernel
def copy_row(rows: np.ndarray, source: int, to: int, lo: int, hi: int) -> None:
    """rows[to, lo:hi] = rows[source, lo:hi]."""
    given, out = rows[source, lo:hi], rows[to, lo:hi]
    for i in range(hi - lo):
        out[i] = given[i]


@kernel
def spread_row(rows: np.ndarray, size: int, source: int, lo: int, hi: int) -> None:
    """rows[p, lo:hi] = rows[source, lo:hi] for every other p < size."""
    for to in range(size):
        if to != source:
            copy_row(rows, source, to, lo, hi)
