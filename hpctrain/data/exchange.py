"""`Feed`, `Window`, `ExchangeWindow`: several steps' rows on their way to the ranks that work on them.

A window is some steps of an epoch.  There are two: while one is worked on, the rows of the other come in.  Rows that
another rank holds arrive by an exchange, which all ranks work out by themselves: rows travel, indices do not.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpctrain.comm.group import Group, Request
from hpctrain.data.format import Arrays, RowFormat
from hpctrain.data.order import EpochOrder
from hpctrain.data.sharding import own_shares, worker_range
from hpctrain.errors import UserError
from hpctrain.kernels.rows import assemble_rows, pack_rows, plan_window
from hpctrain.kernels.select import copy_rows


@dataclass(frozen=True)
class Steps:
    """The arithmetic of an epoch's steps.

    total   examples of the epoch
    batch   examples of a step over all ranks; the last step takes what is left
    unit    rows that stay together on one rank, see `sharding.worker_range`
    window  steps of a window
    """

    group: Group
    format: RowFormat
    total: int
    batch: int
    unit: int
    window: int

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return -(-self.total // self.batch)

    @property
    def most(self) -> int:
        """Rows of a step on one rank, at most."""
        return worker_range(self.batch, 0, self.group.size, self.unit)[1]  # rank 0's share is never the smaller one

    @property
    def positions(self) -> int:
        """Examples of a window over all ranks, at most."""
        return min(self.window * self.batch, self.total)

    def range(self, step: int) -> tuple[int, int]:
        """Return the positions lo..hi of the window that begins with a step; none past the epoch's end."""
        lo = min(step * self.batch, self.total)
        return lo, min(lo + self.positions, self.total)

    def share(self, step: int) -> tuple[int, int]:
        """Return this rank's lo..hi among the positions of a step's batch."""
        rows = min(self.batch, self.total - step * self.batch)
        return worker_range(rows, self.group.rank, self.group.size, self.unit)

    def shares(self, positions: int) -> list[tuple[int, int]]:
        """Return for each step of a window of so many positions this rank's lo..hi among them."""
        shares = []
        for at in range(0, positions, self.batch):
            lo, hi = worker_range(min(self.batch, positions - at), self.group.rank, self.group.size, self.unit)
            shares.append((at + lo, at + hi))
        return shares


class Held:
    """Rows in this rank's memory that are handed out, and which rank holds which examples.

    words   uint32 (rows, words) views of the inputs, targets and stored weights, see `RowFormat.words`
    firsts  (chunks + 1,) int64: chunk c has the examples firsts[c] .. firsts[c + 1]
    owners  (chunks,) int64: the rank that holds a chunk
    bases   (chunks,) int64: of a chunk that this rank holds, the row of `words` at which it begins

    `may_fail`: whether `hold` may raise a `UserError`, on any rank.
    """

    may_fail = False

    def __init__(self, words: Arrays, firsts: np.ndarray, owners: np.ndarray, bases: np.ndarray) -> None:
        self.words, self.firsts, self.owners, self.bases = words, firsts, owners, bases

    def begin(self, order: EpochOrder, position: int) -> None:
        """Get ready for an epoch, from a position on."""

    def hold(self, position: int) -> None:
        """Return when all rows that this rank holds are here up to a position of the epoch."""

    def release(self, position: int) -> None:
        """Say that the rows before a position are not needed any more."""


class Window(ABC):
    """Several steps' rows for this rank to work on."""

    @abstractmethod
    def start(self, order: EpochOrder, step: int) -> None:
        """Have the rows of the steps from `step` on brought; past the epoch's end do nothing."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the rows are here, or none are under way; raises what went wrong on this rank."""

    def settle(self) -> None:
        """Return when nothing is under way any more; what went wrong does not matter."""
        with contextlib.suppress(Exception):
            self.wait()

    @abstractmethod
    def test(self) -> None:
        """Move what is under way on."""

    def take_waited(self) -> float:
        """Return the seconds that `start` waited since the last call."""
        return 0.0

    @abstractmethod
    def rows(self, step: int) -> tuple[np.ndarray, Arrays]:
        """Return the ids and the arrays of this rank's share of a step of the window; valid until the next call."""


@dataclass(frozen=True)
class Feed:
    """Where training takes its rows from: two windows, in turn."""

    windows: tuple[Window, Window]

    @property
    def may_fail(self) -> bool:
        """Whether `begin` or a window's `wait` may raise a `UserError` on some ranks alone."""
        return False

    def begin(self, order: EpochOrder, position: int) -> None:
        """Get ready for an epoch, from a position on."""
        for window in self.windows:
            window.settle()


@dataclass(frozen=True)
class ExchangeFeed(Feed):
    """Rows that the ranks hold, each its own, and exchange."""

    windows: tuple[ExchangeWindow, ExchangeWindow]
    held: Held

    @classmethod
    def of(cls, steps: Steps, held: Held) -> ExchangeFeed:
        """Make the windows; they put a step's rows together in the same place."""
        out = steps.format.empty(steps.most)
        return cls((ExchangeWindow(steps, held, out), ExchangeWindow(steps, held, out)), held)

    @property
    def may_fail(self) -> bool:
        """Whether the rows that ranks hold may fail to come."""
        return self.held.may_fail

    def begin(self, order: EpochOrder, position: int) -> None:
        """Get ready for an epoch, from a position on."""
        for window in self.windows:
            window.settle()
            window.forget()
        self.held.begin(order, position)


class ExchangeWindow(Window):
    """A window whose rows are held by the ranks, each its own, and exchanged between them.

    The send buffer is made for the worst case (all rows of the window held here); memory is only taken as it is used.
    `out` is where a step's rows are put together.
    """

    def __init__(self, steps: Steps, held: Held, out: Arrays) -> None:
        self._steps, self._held, self._out = steps, held, out
        size, most = steps.group.size, steps.most
        words = sum(array.shape[1] for array in held.words)
        alone = size == 1
        positions = steps.positions
        leaving = 0 if alone else min(positions, len(held.words[0]))
        self._ids = np.empty(positions, np.int64)
        self._place = np.empty(positions, np.int64)
        self._source = np.empty(steps.window * most, np.int64)
        self._send_index = np.empty(leaving, np.int64)
        self._send = np.empty((leaving, words), np.uint32)
        self._received = np.empty((0 if alone else steps.window * most, words), np.uint32)
        self._send_rows, self._receive_rows, self._cursor = np.zeros((3, size), np.int64)
        self._shares: list[tuple[np.ndarray, np.ndarray]] = []
        self._request: Request | None = None
        self._failure: UserError | None = None  # of the window that is under way
        self._waited_s = 0.0
        self._done = 0  # what was needed before this position is not needed any more when this window starts anew

    def start(self, order: EpochOrder, step: int) -> None:
        """Plan the window and start its exchange; see `Window.start`."""
        steps, held, group = self._steps, self._held, self._steps.group
        lo, hi = steps.range(step)
        held.release(self._done)
        self._done = hi
        if lo >= hi:
            return
        started = time.perf_counter()
        try:
            held.hold(hi)
        except UserError as error:
            # The others are about to exchange rows with this rank: they get whatever stands there, and in `wait` learn
            # that it is nothing.
            self._failure = error
        self._waited_s += time.perf_counter() - started
        ids = order.fill(lo, self._ids[: hi - lo])
        leaving = plan_window(
            ids,
            steps.batch,
            steps.unit,
            held.firsts,
            held.owners,
            held.bases,
            group.rank,
            self._place,
            self._send_index,
            self._send_rows,
            self._receive_rows,
            self._source,
            self._cursor,
        )
        self._shares = self._cut(ids)
        if group.size > 1:
            pack_rows(*held.words, self._send_index[:leaving], self._send)
            arriving = int(self._receive_rows.sum())
            self._request = group.all_to_all(
                self._send[:leaving], self._send_rows, self._received[:arriving], self._receive_rows
            )

    def _cut(self, ids: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each step the ids and the sources (see `plan_window`) of this rank's share."""
        shares, done = [], 0
        for lo, hi in self._steps.shares(len(ids)):
            shares.append((ids[lo:hi], self._source[done : done + hi - lo]))
            done += hi - lo
        return shares

    def rows(self, step: int) -> tuple[np.ndarray, Arrays]:
        """Put a step's rows together; see `Window.rows`."""
        ids, source = self._shares[step]
        inputs, targets, stored = (array[: len(ids)] for array in self._out)
        words = self._steps.format.words(inputs, targets, stored)
        assemble_rows(*self._held.words, self._received, source, *words)
        return ids, (inputs, targets, stored)

    def test(self) -> None:
        """Move the exchange on."""
        if self._request is not None and self._request.test():
            self._request = None

    def wait(self) -> None:
        """Return when the exchange is complete, or none is under way; raises what kept this rank's rows away."""
        if self._request is not None:
            self._request.wait()
            self._request = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def take_waited(self) -> float:
        """Return the seconds that `start` waited since the last call."""
        waited, self._waited_s = self._waited_s, 0.0
        return waited

    def forget(self) -> None:
        """Forget the epoch before: it has nothing more to release."""
        self._done = 0


class OwnWindow(Window):
    """A window whose rows this rank holds itself: its part of each step.

    words  of the rows that are held
    ids    (rows,) int64: their example ids
    used   (steps + 1,) int64: how many of them are used before each step, see `sharding.own_shares`
    """

    def __init__(self, steps: Steps, words: Arrays, ids: np.ndarray, used: np.ndarray) -> None:
        self._steps, self._words, self._ids, self._used = steps, words, ids, used
        most = int(np.diff(used).max())
        self._out = steps.format.empty(most)
        self._rows, self._chosen = np.empty((2, most), np.int64)
        self._order: EpochOrder | None = None
        self._first = 0

    def start(self, order: EpochOrder, step: int) -> None:
        """Note where the window begins; see `Window.start`."""
        self._order, self._first = order, step

    def wait(self) -> None:
        """Do nothing: the rows are here."""

    def test(self) -> None:
        """Do nothing: nothing is under way."""

    def rows(self, step: int) -> tuple[np.ndarray, Arrays]:
        """Put a step's rows together; see `Window.rows`."""
        lo, hi = self._used[self._first + step : self._first + step + 2].tolist()
        rows = self._order.fill(lo, self._rows[: hi - lo])
        inputs, targets, stored = (array[: hi - lo] for array in self._out)
        for array, out in zip(self._words, self._steps.format.words(inputs, targets, stored), strict=True):
            copy_rows(array, rows, out)
        return np.take(self._ids, rows, out=self._chosen[: hi - lo]), (inputs, targets, stored)


@dataclass(frozen=True)
class OwnFeed(Feed):
    """Rows that this rank holds itself, without any from others.

    rows  that it holds
    most  of a step, at most
    """

    rows: int
    most: int

    @classmethod
    def of(cls, steps: Steps, words: Arrays, ids: np.ndarray, held: Sequence[int]) -> OwnFeed:
        """Make the windows; `held` are the rows of each rank."""
        used = own_shares(held, steps.group.rank, steps.batch)
        windows = (OwnWindow(steps, words, ids, used), OwnWindow(steps, words, ids, used))
        return cls(windows, len(ids), int(np.diff(used).max()))


def warm_up(form: RowFormat) -> None:
    """Compile or load the kernels of an exchange, on one dummy row; no communication."""
    own, out = form.words(*form.empty(1)), form.words(*form.empty(1))
    for array in own:
        array.fill(0)
    wire = np.zeros((1, sum(array.shape[1] for array in own)), np.uint32)
    index, rows, ends, zero = np.zeros(1, np.int64), np.zeros((3, 1), np.int64), np.array([0, 1]), np.zeros(1, np.int64)
    place = (ends, zero, zero.copy(), 0, zero.copy(), index.copy())
    plan_window(index.copy(), 1, 1, *place, rows[0], rows[1], index, rows[2])
    pack_rows(*own, index, wire)
    assemble_rows(*own, wire, index, *out)
