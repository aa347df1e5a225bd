"""`Elements`: which numbers of an example a step is about, and which of them share a number of the step's.

A column is a place on the last axis: of a table's row (F,) one of its numbers, of an image (H, W, C) a channel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from hpctrain.errors import UserError, nearest

_LINE = 1024  # numbers in a line, about: what a step's numbers are spread over where they are the same at all positions
_LISTED = 20


def _read_columns(value: Any) -> Any:
    items = value if isinstance(value, (list, tuple)) else (value,)
    if not items or not all(isinstance(item, (int, str)) and not isinstance(item, bool) for item in items):
        raise ValueError('must be a list of columns: numbers, names or ranges such as "0:53"')
    return tuple(items)


ColumnList = Annotated[tuple[int | str, ...], BeforeValidator(_read_columns)]
"""An option: numbers of columns (counted from 0, from the end where negative), names, or ranges "first:end"."""


def column_names(spans: Mapping[str, Sequence[int]], shape: tuple[int, ...]) -> list[str] | None:
    """Return each column's name, given names -> (lo, hi) and the shape of an example; None where some have none."""
    names = [""] * shape[-1]
    for name, (lo, hi) in spans.items():
        names[lo:hi] = [name] * (hi - lo)
    return names if all(names) and len(names) == shape[-1] else None


def find_columns(
    wanted: Sequence[int | str] | None, count: int, names: Sequence[str] | None, where: str
) -> tuple[int, ...]:
    """Return the numbers of the columns that an option names, rising; None: all of `count`.

    `names` are the columns' own, where they have any; `where` is the option's key.  Raises `UserError` for a column
    that is not there or is named twice.
    """
    if wanted is None:
        return tuple(range(count))
    found: list[int] = []
    for item in wanted:
        found += _columns_of(item, count, names, where)
    found.sort()
    for column, following in zip(found, found[1:], strict=False):
        if column == following:
            raise UserError(f"{where} names column {column} twice", found=list(wanted))
    return tuple(found)


def _columns_of(item: int | str, count: int, names: Sequence[str] | None, where: str) -> list[int]:
    if isinstance(item, str) and names is not None:
        # "features/pt" and "events[pt]" are pt too, where there is no other.
        whole = {name for name in names if item in (name, _last(name))}
        if item in whole or len(whole) == 1:
            name = item if item in whole else whole.pop()
            return [column for column, other in enumerate(names) if other == name]
    if isinstance(item, str):
        match = re.fullmatch(r"\s*(-?\d*)\s*:\s*(-?\d*)\s*", item)
        if match is None or "-" in match.groups():
            listed = ", ".join((names or [])[:_LISTED])
            guess = nearest(item, list(names or []))
            raise UserError(
                f"{where}: there is no column {item!r}",
                allowed=f"the columns {listed}" if names else f'numbers from 0 to {count - 1}, or a range: "0:{count}"',
                hint=f"did you mean {guess!r}?" if guess else None,
            )
        bounds = [int(text) if text else default for text, default in zip(match.groups(), (0, count), strict=True)]
        low, high = (bound + count if bound < 0 else bound for bound in bounds)
        if not 0 <= low < high <= count:
            raise _out_of_range(item, count, where)
        return list(range(low, high))
    if not -count <= item < count:
        raise _out_of_range(item, count, where)
    return [item % count]


def _last(name: str) -> str:
    """Return the last part of a name: "pt" of "features/pt" and of "events[pt]"."""
    match = re.fullmatch(r".*\[(\w+)\]", name)
    return match[1] if match else name.rpartition("/")[2]


def _out_of_range(item: int | str, count: int, where: str) -> UserError:
    return UserError(
        f"{where} is out of range",
        found=repr(item),
        allowed=f"columns from 0 to {count - 1}: the last axis of an example has {count}",
    )


@dataclass(frozen=True)
class Elements:
    """The numbers of an example that a step is about.

    shape    of one example
    columns  places on its last axis, rising
    axis     who shares a number of the step's: "column", nobody (each of the example's numbers in these columns has its
             own); "channel", all of a column; "all", all of them
    """

    shape: tuple[int, ...]
    columns: tuple[int, ...]
    axis: str = "column"

    @property
    def size(self) -> int:
        """Numbers in an example."""
        return math.prod(self.shape)

    @property
    def positions(self) -> int:
        """Numbers in an example for each column."""
        return self.size // self.shape[-1]

    @property
    def count(self) -> int:
        """How many numbers of its own the step has."""
        if self.axis == "all":
            return 1
        return len(self.columns) * (self.positions if self.axis == "column" else 1)

    @cached_property
    def width(self) -> int:
        """Numbers in a line: examples are seen as lines that all get the same."""
        if self.axis == "column":
            return self.size
        channels, positions = self.shape[-1], self.positions
        most = max(1, min(positions, _LINE // channels))
        return channels * next(count for count in range(most, 0, -1) if positions % count == 0)

    def spread(self, values: np.ndarray | float, elsewhere: float) -> np.ndarray:
        """Return a line (width,) float64 with the step's numbers in their places and `elsewhere` in all others."""
        channels = self.shape[-1]
        line = np.full((self.width // channels, channels), elsewhere, np.float64)
        values = np.asarray(values, np.float64)
        if self.axis == "column" and values.size > 1:
            values = values.reshape(self.positions, len(self.columns))
        line[:, list(self.columns)] = values
        return line.reshape(-1)

    def values(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of examples (n, size), C-contiguous (lines, count): a column for each number of the step.

        A view where all columns are meant.
        """
        if len(self.columns) < self.shape[-1]:
            rows = rows.reshape(len(rows), self.positions, self.shape[-1])[:, :, list(self.columns)]
        return np.ascontiguousarray(rows).reshape(-1, self.count)

    def name(self, index: int) -> str:
        """Return words for one of the step's numbers: "column 3", "the number at (2, 3, 0) of an example"."""
        if self.axis == "all":
            return "all columns" if len(self.columns) == self.shape[-1] else f"columns {list(self.columns)}"
        position, column = divmod(index, len(self.columns))
        column = self.columns[column]
        if self.axis == "channel" or self.positions == 1:
            return f"column {column}"
        place = (*(int(i) for i in np.unravel_index(position, self.shape[:-1])), column)
        return f"the number at {place} of an example"
