"""`BatchLoader`: turns this rank's shard into its share of every global batch.

Which examples form a batch depends on seed, epoch and step alone.  A batch's rows are shared evenly among the ranks to
work on, wherever they are held; they come one window (several steps) ahead, see `exchange`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from hpctrain.batch import Batch
from hpctrain.comm.group import Group
from hpctrain.data import exchange
from hpctrain.data.exchange import Steps, Window
from hpctrain.data.format import RowFormat
from hpctrain.data.order import Chunks, EpochOrder
from hpctrain.data.shard import Shard
from hpctrain.data.sharding import worker_range
from hpctrain.data.ways import mixing
from hpctrain.kernels.select import copy_rows

WINDOW_BYTES = 32 << 20
BUFFER_BYTES = 64 << 20
_INDEX_BYTES = 32  # of int64 indices that go with a row
_WINDOWS_A_POOL = 8  # so that two windows together never reach into a third pool


class BatchLoader:
    """Batches of one part of the data, the same global batches at every world size.

    group         the ranks that share the work; all of them must make the same calls
    shard         this rank's rows
    global_batch  examples of one step over all ranks; the last step of an epoch takes what is left
    seed, shuffle see `order.EpochOrder`
    unit          rows that stay together on one rank, see `sharding.worker_range`
    window_bytes  rows of one window, over all ranks.  There are two windows, and a rank keeps what it sends and what it
                  receives of each: at most four times this, with a global shuffle about 4 / size of it.  A window is
                  never less than one step.
    buffer_bytes  rows that are mixed with each other under "chunks", see `pool_rows`
    """

    def __init__(
        self,
        group: Group,
        shard: Shard,
        global_batch: int,
        seed: int,
        shuffle: str = "global",
        window_bytes: int = WINDOW_BYTES,
        unit: int = 1,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        if global_batch < 1 or shard.total < 1:
            raise ValueError(f"no batches of {global_batch} from {shard.total} examples")
        self.group, self.shard = group, shard
        self.seed, self.shuffle = seed, shuffle
        self.global_batch = global_batch
        batch = min(global_batch, shard.total)
        self.chunks: Chunks | None = None
        if shard.cuts is not None and shuffle in ("chunks", "none"):
            self.chunks = Chunks(shard.cuts, pool_rows(shard.format, batch, buffer_bytes))
            window_bytes = min(window_bytes, self.chunks.pool_rows * shard.format.row_bytes // _WINDOWS_A_POOL)
        if shard.window_bytes is not None:
            window_bytes = min(window_bytes, shard.window_bytes)
        window = _window_steps(shard.format, shard.total, batch, window_bytes)
        self.steps = Steps(group, shard.format, shard.total, batch, unit, window)
        self.steps_per_epoch = self.steps.per_epoch
        self._ordered, most = shard.total, self.steps.most  # how many rows each epoch puts in order
        if shuffle == "local":
            self._feed = shard.own_feed(self.steps)
            self._ordered, most = self._feed.rows, self._feed.most
        else:
            self._feed = shard.feed(self.steps, self.chunks)
        self._weight = shard.format.full_weight(most)
        self.waited_s = 0.0  # for rows that were not there yet; whoever reads it may set it back

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield this rank's share of each step's batch, from step `first` of the epoch on; shares may be empty.

        A batch's arrays are valid until the next one is asked for.  One epoch at a time; close the iterator (all ranks
        at the same step) to end early.  `Batch.step` is epoch * steps_per_epoch + step within the epoch.
        """
        order = EpochOrder(self._ordered, self.seed, epoch, self.shuffle, self.chunks, self.group.rank)
        window, following = self._feed.windows
        with self._agreed():
            self._feed.begin(order, min(first * self.steps.batch, self.steps.total))
        try:
            window.start(order, first)
            for begin in range(first, self.steps_per_epoch, self.steps.window):
                end = min(begin + self.steps.window, self.steps_per_epoch)
                following.start(order, end)  # on its way while this window is worked on
                self._wait(window)
                for step in range(begin, end):
                    yield self._make(window, epoch, step, step - begin)
                    following.test()  # MPI moves messages on only when it is called
                window, following = following, window
        finally:
            for each in self._feed.windows:
                each.settle()

    def _agreed(self) -> AbstractContextManager[None]:
        """Make what goes wrong on one rank alone an error of all, where anything can."""
        return self.group.agreed() if self._feed.may_fail else nullcontext()

    def _wait(self, window: Window) -> None:
        started = time.perf_counter()
        with self._agreed():
            window.wait()
        self.waited_s += time.perf_counter() - started + sum(each.take_waited() for each in self._feed.windows)

    def _make(self, window: Window, epoch: int, step: int, step_of_window: int) -> Batch:
        ids, (inputs, targets, stored) = window.rows(step_of_window)
        weight = self._weight[: len(ids)]
        self.shard.format.spread(stored, weight)
        first = self.steps.share(step)[0]
        return Batch(inputs, targets, weight, ids, epoch * self.steps_per_epoch + step, epoch, first)

    def describe(self) -> str:
        """Say what order the examples come in, and what that costs in mixing."""
        total, chunks = self.shard.total, self.chunks
        if chunks is None or self.shuffle != "chunks":
            return mixing(self.shuffle, 0, 0, total)
        return mixing(self.shuffle, total // max(1, len(chunks)), chunks.pool_rows, total)

    def warm_up(self) -> None:
        """Compile or load the kernels; no communication, no file."""
        chunks = None if self.chunks is None else Chunks(np.array([0, 1]), 1)
        EpochOrder(1, 0, 0, self.shuffle, chunks).ids(0, 1)
        exchange.warm_up(self.shard.format)
        if self.shuffle == "local":
            words = self.shard.format.words(*self.shard.format.empty(1))
            for array in words:
                copy_rows(array, np.zeros(1, np.int64), array)
        self.shard.warm_up()


def pool_rows(form: RowFormat, batch: int, buffer_bytes: int) -> int:
    """Return how many examples make a pool, at least: as many as a buffer takes, and two batches or more."""
    return max(buffer_bytes // form.row_bytes, 2 * batch, 1)


def exchange_bytes(
    form: RowFormat,
    rows: int,
    global_batch: int,
    size: int,
    shuffle: str = "global",
    unit: int = 1,
    window_bytes: int = WINDOW_BYTES,
) -> int:
    """Return the memory that a `BatchLoader` of these settings takes on a rank; `rows` are the part's, over all ranks.

    It makes room for more, which is never used: with a global shuffle a rank sends its even share of a window.
    """
    batch = min(global_batch, rows)
    steps = _window_steps(form, rows, batch, window_bytes)
    most = worker_range(batch, 0, size, unit)[1]
    positions = min(steps * batch, rows)
    arriving = steps * most * (size - 1) // size
    leaving = arriving if shuffle == "global" else min(positions, -(-rows // size)) * (size - 1) // size
    window = 8 * (2 * positions + steps * most + leaving) + form.row_bytes * (leaving + arriving)
    windows = 1 if steps * batch >= rows else 2
    return windows * window + most * (form.row_bytes + 4 * form.positions)


def _window_steps(form: RowFormat, rows: int, batch: int, window_bytes: int) -> int:
    """Return how many steps' rows are exchanged at a time."""
    return max(1, min(-(-rows // batch), window_bytes // (batch * (form.row_bytes + _INDEX_BYTES))))
