"""`strip`: any number of rows of a sum of products, by register tiles of a few fixed sizes.

Each size is code to compile; these are within a tenth of the best for every width tried.  The whole is compiled once
for all callers (`kernels/shared.py`), for float32 and for float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.core import types
from numba.extending import overload

from hpctrain.kernels.conv.tile import LANES, Trips, Walk, item_bytes, tile
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.shared import shared
from hpctrain.kernels.views import keep_apart


class Grid(NamedTuple):
    """How often a strip is repeated, in planes of lines; how far results and first factors are apart, in elements."""

    planes: int
    lines: int
    c_plane: int
    c_line: int
    a_plane: int
    a_line: int


class Goal(NamedTuple):
    """What a strip computes: `count` rows of `columns` results at an address, `row` elements apart.

    bias: an address; mode: a sum of ACCUMULATE, BIAS and RELU; overlap: 1 where a last tile may compute rows again that
    are done, which is right only where results are stored, not added.
    """

    address: int
    row: int
    count: int
    columns: int
    bias: int
    mode: int
    overlap: int


ALONE = Grid(1, 1, 0, 0, 0, 0)
"""The grid of a single strip."""


@kernel(no_cpython_wrapper=True)
def _tile_14_2(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(14, 2, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _tile_12_2(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(12, 2, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _tile_8_2(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(8, 2, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _tile_4_2(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(4, 2, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _tile_1_2(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(1, 2, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _tile_16_1(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(16, 1, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _tile_12_1(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(12, 1, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _tile_8_1(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(8, 1, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _tile_4_1(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(4, 1, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _tile_1_1(zero, c, c_row, a, b, trips, mode, bias, columns):  # noqa: ANN001, ANN202
    keep_apart()
    tile(1, 1, zero, c, c_row, a, b, trips, mode, bias, columns)


@kernel(no_cpython_wrapper=True)
def _rows_of_tile(left: int, count: int, wide: bool, overlap: int) -> int:
    """The rows of the next tile, with `left` of `count` rows to do: the fixed rule."""
    if wide and left % 4 == 2 and left >= 14:
        return 14
    if not wide and (left >= 28 or left == 16):
        return 16
    if left == 12 or left >= 20:
        return 12
    if left >= 8 or (overlap and left > 4 and count >= 8):
        return 8
    if left >= 4 or (overlap and count >= 4):
        return 4
    return 1


@kernel(no_cpython_wrapper=True)
def _cover(zero: float, goal: Goal, a: Walk, b: Walk, trips: Trips) -> None:
    size, wide = item_bytes(zero), goal.columns > LANES
    i = 0
    while i < goal.count:
        step = _rows_of_tile(goal.count - i, goal.count, wide, goal.overlap)
        if goal.overlap:
            i = min(i, goal.count - step)
        c = goal.address + i * goal.row * size
        at = Walk(a.address + i * a.row * size, a.row, a.inner, a.middle, a.outer)
        if wide:
            if step == 14:
                _tile_14_2(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns - LANES)
            elif step == 12:
                _tile_12_2(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns - LANES)
            elif step == 8:
                _tile_8_2(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns - LANES)
            elif step == 4:
                _tile_4_2(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns - LANES)
            else:
                _tile_1_2(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns - LANES)
        else:
            if step == 16:
                _tile_16_1(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns)
            elif step == 12:
                _tile_12_1(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns)
            elif step == 8:
                _tile_8_1(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns)
            elif step == 4:
                _tile_4_1(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns)
            else:
                _tile_1_1(zero, c, goal.row, at, b, trips, goal.mode, goal.bias, goal.columns)
        i += step


@kernel(no_cpython_wrapper=True)
def _cover_grid(zero: float, grid: Grid, goal: Goal, a: Walk, b: Walk, trips: Trips) -> None:
    size = item_bytes(zero)
    for plane in range(grid.planes):
        for line in range(grid.lines):
            c = goal.address + (plane * grid.c_plane + line * grid.c_line) * size
            at = a.address + (plane * grid.a_plane + line * grid.a_line) * size
            now = Goal(c, goal.row, goal.count, goal.columns, goal.bias, goal.mode, goal.overlap)
            _cover(zero, now, Walk(at, a.row, a.inner, a.middle, a.outer), b, trips)


def _grid_float32(
    planes, lines, c_plane, c_line, a_plane, a_line,
    c, row, count, columns, bias, mode, overlap, a, a_row, a_1, a_2, a_3, b, b_row, b_1, b_2, b_3, t_1, t_2, t_3,
):  # noqa: ANN001, ANN202  # fmt: skip
    grid, goal = (
        Grid(planes, lines, c_plane, c_line, a_plane, a_line),
        Goal(c, row, count, columns, bias, mode, overlap),
    )
    walks = Walk(a, a_row, a_1, a_2, a_3), Walk(b, b_row, b_1, b_2, b_3)
    _cover_grid(np.float32(0), grid, goal, walks[0], walks[1], Trips(t_1, t_2, t_3))


def _grid_float64(
    planes, lines, c_plane, c_line, a_plane, a_line,
    c, row, count, columns, bias, mode, overlap, a, a_row, a_1, a_2, a_3, b, b_row, b_1, b_2, b_3, t_1, t_2, t_3,
):  # noqa: ANN001, ANN202  # fmt: skip
    grid, goal = (
        Grid(planes, lines, c_plane, c_line, a_plane, a_line),
        Goal(c, row, count, columns, bias, mode, overlap),
    )
    walks = Walk(a, a_row, a_1, a_2, a_3), Walk(b, b_row, b_1, b_2, b_3)
    _cover_grid(np.float64(0), grid, goal, walks[0], walks[1], Trips(t_1, t_2, t_3))


_call_float32 = shared(_grid_float32, "conv_strip_float32")
_call_float64 = shared(_grid_float64, "conv_strip_float64")


def strip(zero: float, grid: Grid, goal: Goal, a: Walk, b: Walk, trips: Trips) -> None:
    """Compute a goal, of at most 2 * LANES columns, for all lines of a grid, by tiles.  For use in kernels.

    c[i, j] = [c[i, j] +] sum over the trips of a[i] b[j] [+ bias[j]], then its positive part, as the mode says; `zero`
    is a 0 of the arrays' type.  (Options stand in tuples because numba compiles a function anew for each literal.)
    """
    raise TypeError("strip is called by compiled code only")


@overload(strip)
def _strip(zero, grid, goal, a, b, trips):  # noqa: ANN001, ANN202 (numba's typing protocol)
    call = _call_float32 if zero == types.float32 else _call_float64

    def compiled(zero, grid, goal, a, b, trips):  # noqa: ANN001, ANN202
        c, row, count, columns, bias, mode, overlap = goal
        a_0, a_row, a_1, a_2, a_3 = a
        b_0, b_row, b_1, b_2, b_3 = b
        call(
            (grid[0], grid[1], grid[2], grid[3], grid[4], grid[5])
            + (c, row, count, columns, bias, mode, overlap)
            + (a_0, a_row, a_1, a_2, a_3, b_0, b_row, b_1, b_2, b_3)
            + (trips[0], trips[1], trips[2])
        )

    return compiled
