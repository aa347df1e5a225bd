"""Which file and which part of it an example is: a row of the datasets, a window of rows, a whole file, or a group."""

from __future__ import annotations

import abc
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import h5py
import numpy as np

from hpctrain.data.datasets import matching_groups
from hpctrain.data.fields.member import Member, Want
from hpctrain.errors import UserError


class Examples(abc.ABC):
    """The examples of several files, one after another: those of file f are starts[f] .. starts[f + 1].

    paths     the files
    has_rows  whether the first axis of a dataset counts rows
    lazy      whether files are only looked at when they are read
    """

    has_rows = True
    lazy = False

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self.starts = [0]

    def __len__(self) -> int:
        return self.starts[-1]

    def _append(self, count: int) -> None:
        self.starts.append(self.starts[-1] + count)

    def file_of(self, example: int) -> int:
        """Return the number of the file that an example is in."""
        return bisect_right(self.starts, example) - 1

    def spans(self, lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
        """Yield (file, a, b) for the examples lo..hi: a..b are counted within the file."""
        if lo >= hi:
            return
        for file in range(self.file_of(lo), self.file_of(hi - 1) + 1):
            start, stop = self.starts[file], self.starts[file + 1]
            if start < stop:
                yield file, max(lo, start) - start, min(hi, stop) - start

    def begin(self, file: h5py.File) -> list[str]:
        """Take the next file; return the paths of what holds its examples: "" for the file itself, or groups."""
        return [""]

    def add_rows(self, rows: int, run: np.ndarray | None) -> None:
        """Take the number of rows of that file, where examples are rows; `run` (rows,) tells its runs apart."""
        raise TypeError("these examples have no rows")

    def stored_rows(self) -> list[int]:
        """Return how many numbers a dataset with one for each row has in each file; for each example without rows."""
        return np.diff(self.starts).tolist()

    def of_rows(self, file: int, values: np.ndarray, mixed: int) -> np.ndarray:
        """Return each example's value, given those of a file's rows: `mixed` where its rows have several."""
        return values

    def shaped(self, shape: tuple[int, ...], is_input: bool) -> tuple[int, ...]:
        """Return the shape of an example, given that of a row of a dataset (of all of it where there are no rows)."""
        return shape

    def fill(self, member: Member, file: int, a: int, b: int, out: np.ndarray, is_input: bool, want: Want) -> None:
        """Fill `out` (b - a, ...) with a member's values of the examples a..b of a file; see `Member.values`.

        Where examples have no rows, they are one, and the member is of it.
        """
        lo, hi = (a, b) if self.has_rows else (0, 1)
        if out.flags.c_contiguous and member.is_plain(out.dtype):
            member.read_direct(lo, hi, out)
        else:
            _store(member.values(lo, hi, want), out)

    def group(self, file: int, a: int) -> str:
        """Return the path of the group that holds an example's datasets, from the file's root: "" for the root."""
        return ""

    @abc.abstractmethod
    def place(self, name: str, file: int, a: int) -> str:
        """Return in words where an example's dataset of a name stands."""


class RowExamples(Examples):
    """Each row of the datasets is an example."""

    def add_rows(self, rows: int, run: np.ndarray | None) -> None:
        """Take the number of rows of the next file."""
        self._append(rows)

    def place(self, name: str, file: int, a: int) -> str:
        """Return "row 3 of 'x' in a.h5"."""
        return f"row {a} of {name!r} in {self.paths[file]}"


class FileExamples(Examples):
    """Each file is an example: 10^5 of them start as quickly as one, for none but the first is looked at before."""

    has_rows = False
    lazy = True

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths)
        self.starts = list(range(len(paths) + 1))

    def place(self, name: str, file: int, a: int) -> str:
        """Return "'x' in a.h5"."""
        return f"{name!r} in {self.paths[file]}"


class GroupExamples(Examples):
    """Each group of a file that fits a pattern is an example."""

    has_rows = False

    def __init__(self, paths: Sequence[str], pattern: str) -> None:
        super().__init__(paths)
        self.pattern = pattern
        self._names: list[list[str]] = []

    def begin(self, file: h5py.File) -> list[str]:
        """Take the next file; return the paths of its groups that are examples."""
        self._names.append(matching_groups(file, self.pattern))
        self._append(len(self._names[-1]))
        return self._names[-1]

    def spans(self, lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
        """Yield one example at a time: each has datasets of its own."""
        for file, a, b in super().spans(lo, hi):
            yield from ((file, at, at + 1) for at in range(a, b))

    def group(self, file: int, a: int) -> str:
        """Return the path of an example's group."""
        return self._names[file][a]

    def place(self, name: str, file: int, a: int) -> str:
        """Return "'x' of group 'sample_3' in a.h5"."""
        return f"{name!r} of group {self.group(file, a)!r} in {self.paths[file]}"


@dataclass(frozen=True)
class Windows:
    """Examples cut out of long series of rows.

    length   rows of an example's input
    horizon  how many rows behind the window's last the target stands: one number, or several
    stride   rows from one window's beginning to the next one's
    run      path of a dataset (rows,); no window reaches over a change of its value
    """

    length: int
    horizon: int | tuple[int, ...] = 1
    stride: int = 1
    run: str | None = None

    @property
    def ahead(self) -> tuple[int, ...]:
        """The horizons."""
        return (self.horizon,) if isinstance(self.horizon, int) else self.horizon

    @property
    def reach(self) -> int:
        """Rows from a window's first to the last that its target takes."""
        return self.length + max(self.ahead)

    @property
    def sharing(self) -> int:
        """How many of the windows that follow one have rows in common with it; 0: none overlaps another."""
        return (self.reach - 1) // self.stride


class WindowExamples(Examples):
    """Each window of rows is an example; none reaches over the end of a file or of a run."""

    def __init__(self, paths: Sequence[str], windows: Windows) -> None:
        super().__init__(paths)
        self._windows = windows
        self._rows: list[int] = []
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []  # by file: first examples (one more than runs), first rows

    def add_rows(self, rows: int, run: np.ndarray | None) -> None:
        """Take the number of rows of the next file; `run` (rows,) tells its runs apart."""
        windows = self._windows
        changes = np.empty(0, np.int64) if run is None else np.flatnonzero(run[1:] != run[:-1]) + 1
        bounds = np.concatenate([[0], changes, [rows]])
        lengths = np.diff(bounds)
        counts = np.maximum(0, (lengths - windows.reach) // windows.stride + 1)
        first = np.concatenate([[0], np.cumsum(counts)])
        self._rows.append(rows)
        self._runs.append((first, bounds[:-1]))
        self._append(int(first[-1]))

    def stored_rows(self) -> list[int]:
        """Return the number of rows of each file."""
        return list(self._rows)

    def of_rows(self, file: int, values: np.ndarray, mixed: int) -> np.ndarray:
        """Return the value that all rows of a window have, those of its target too; `mixed` where they differ."""
        (first, rows), reach, stride = self._runs[file], self._windows.reach, self._windows.stride
        found = np.empty(int(first[-1]), values.dtype)
        for run in np.flatnonzero(np.diff(first)):
            count = int(first[run + 1] - first[run])
            own = values[rows[run] :][: (count - 1) * stride + reach]
            changes = np.concatenate([[0], np.cumsum(own[1:] != own[:-1])])
            is_one = changes[: len(own) - reach + 1 : stride] == changes[reach - 1 :: stride]
            found[first[run] : first[run + 1]] = np.where(is_one, own[: len(own) - reach + 1 : stride], mixed)
        return found

    def stretches(self) -> np.ndarray:
        """Return the numbers of windows, int64, in each run of each file."""
        return np.concatenate([np.empty(0, np.int64), *(np.diff(first) for first, _ in self._runs)])

    def shaped(self, shape: tuple[int, ...], is_input: bool) -> tuple[int, ...]:
        """Return (length, columns, ...) for inputs; for targets the row's shape, with several horizons behind them."""
        if is_input:
            return (self._windows.length, *(shape or (1,)))
        return shape if isinstance(self._windows.horizon, int) else (len(self._windows.ahead), *shape)

    def _pieces(self, file: int, a: int, b: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first example, past the last one, first row of the first one) for each run in a..b."""
        first, rows = self._runs[file]
        at = a
        while at < b:
            run = int(np.searchsorted(first, at, side="right")) - 1
            end = min(b, int(first[run + 1]))
            yield at, end, int(rows[run]) + (at - int(first[run])) * self._windows.stride
            at = end

    def fill(self, member: Member, file: int, a: int, b: int, out: np.ndarray, is_input: bool, want: Want) -> None:
        """Fill `out` with windows: the rows that several of them share are read once."""
        windows = self._windows
        first, last = windows.length - 1 + min(windows.ahead), windows.length - 1 + max(windows.ahead)
        first, last = (0, windows.length - 1) if is_input else (first, last)
        wanted = slice(None) if is_input else np.array(windows.ahead) - min(windows.ahead)
        for at, end, row in self._pieces(file, a, b):
            values = member.values(row + first, row + (end - at - 1) * windows.stride + last + 1, want)
            views = np.lib.stride_tricks.sliding_window_view(values, last - first + 1, axis=0)[:: windows.stride]
            part = out[at - a : end - a]
            _store(np.moveaxis(views, -1, 1)[:, wanted], part)

    def place(self, name: str, file: int, a: int) -> str:
        """Return "the window from row 3 of 'x' in a.h5"."""
        row = next(self._pieces(file, a, a + 1))[2]
        return f"the window of {self._windows.length} rows from row {row} of {name!r} in {self.paths[file]}"


def examples_of(kind: str, paths: Sequence[str], group: str, windows: Windows | None) -> Examples:
    """Return the examples of a kind: "rows", "files" or "groups"; with `windows` the rows are cut into them."""
    if windows is not None:
        return WindowExamples(paths, windows)
    if kind == "rows":
        return RowExamples(paths)
    if kind == "files":
        return FileExamples(paths)
    if kind == "groups":
        return GroupExamples(paths, group)
    raise UserError("unknown data.examples", found=repr(kind), allowed='"rows", "files", "groups"')


def _store(values: np.ndarray, out: np.ndarray) -> None:
    """Copy numbers into an array of as many."""
    if values.shape != out.shape:
        short, room = np.squeeze(values), np.squeeze(out)  # axes of one number put in or left out need no copy
        values, out = (short, room) if short.shape == room.shape else (values.reshape(out.shape), out)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows becomes infinite, and is found then
        out[...] = values
