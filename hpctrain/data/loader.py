"""`BatchLoader`: turns this rank's shard into its share of every global batch.

Which examples form a batch depends on seed, epoch and step alone.  A batch's rows are shared evenly among the ranks to
work on, wherever they are held; rows held elsewhere arrive by an exchange one window (several steps) ahead.  All ranks
work out who needs what, so that rows travel and indices do not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpctrain.batch import Batch
from hpctrain.comm.group import Group, Request
from hpctrain.data.format import RowFormat
from hpctrain.data.shard import Shard
from hpctrain.data.sharding import EpochOrder, worker_range
from hpctrain.kernels.rows import assemble_rows, pack_rows, plan_window

WINDOW_BYTES = 32 << 20
_INDEX_BYTES = 24  # of int64 indices that go with a row


class BatchLoader:
    """Batches of one part of the data, the same global batches at every world size.

    group         the ranks that share the work; all of them must make the same calls
    shard         this rank's rows
    global_batch  examples of one step over all ranks; the last step of an epoch takes what is left
    seed, shuffle see `sharding.EpochOrder`
    unit          rows that stay together on one rank, see `sharding.worker_range`
    window_bytes  rows of one window, over all ranks.  There are two windows, and a rank keeps what it sends and what it
                  receives of each: at most four times this, with a global shuffle about 4 / size of it.  A window is
                  never less than one step.
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
    ) -> None:
        if global_batch < 1 or shard.total < 1:
            raise ValueError(f"no batches of {global_batch} from {shard.total} examples")
        self.group, self.shard = group, shard
        self.seed, self.shuffle = seed, shuffle
        self.global_batch, self.unit = global_batch, unit
        self._batch = batch = min(global_batch, shard.total)
        self.steps_per_epoch = -(-shard.total // batch)
        self._window_steps = _window_steps(shard.format, shard.total, batch, window_bytes)
        self._words = shard.format.words(shard.inputs, shard.targets, shard.stored_weight)
        most = worker_range(batch, 0, group.size, unit)[1]  # rank 0's share is never the smaller one
        self._inputs, self._targets, self._stored = shard.format.empty(most)
        self._weight = shard.format.full_weight(most)
        self._windows = [_Window(self, most), _Window(self, most)]

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield this rank's share of each step's batch, from step `first` of the epoch on; shares may be empty.

        A batch's arrays are valid until the next one is asked for.  One epoch at a time; close the iterator (all ranks
        at the same step) to end early.  `Batch.step` is epoch * steps_per_epoch + step within the epoch.
        """
        order = EpochOrder(self.shard.total, self.seed, epoch, self.shuffle)
        window, following = self._windows
        try:
            window.start(order, first)
            for begin in range(first, self.steps_per_epoch, self._window_steps):
                end = min(begin + self._window_steps, self.steps_per_epoch)
                following.start(order, end)  # on its way while this window is worked on
                window.wait()
                for step in range(begin, end):
                    yield self._make(window, epoch, step, step - begin)
                    following.test()  # MPI moves messages on only when it is called
                window, following = following, window
        finally:
            for each in self._windows:
                each.wait()

    def _make(self, window: _Window, epoch: int, step: int, step_of_window: int) -> Batch:
        ids, source = window.share(step_of_window)
        rows = len(ids)
        inputs, targets, stored = self._inputs[:rows], self._targets[:rows], self._stored[:rows]
        weight, form = self._weight[:rows], self.shard.format
        assemble_rows(*self._words, window.received, source, *form.words(inputs, targets, stored))
        form.spread(stored, weight)
        return Batch(inputs, targets, weight, ids, epoch * self.steps_per_epoch + step, epoch)

    def warm_up(self) -> None:
        """Compile or load the kernels, on one dummy row; no communication."""
        form = self.shard.format
        own, out = form.words(*form.empty(1)), form.words(*form.empty(1))
        for array in own:
            array.fill(0)
        wire = np.zeros((1, sum(array.shape[1] for array in own)), np.uint32)
        index, rows = np.zeros(1, np.int64), np.zeros((3, 1), np.int64)
        EpochOrder(1, 0, 0).ids(0, 1)
        plan_window(index.copy(), 1, 1, np.array([0, 1]), 0, index.copy(), rows[0], rows[1], index, rows[2])
        pack_rows(*own, index, wire)
        assemble_rows(*own, wire, index, *out)


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
    window = 8 * (positions + steps * most + leaving) + form.row_bytes * (leaving + arriving)
    windows = 1 if steps * batch >= rows else 2
    return windows * window + most * (form.row_bytes + 4 * form.positions)


def _window_steps(form: RowFormat, rows: int, batch: int, window_bytes: int) -> int:
    """Return how many steps' rows are exchanged at a time."""
    return max(1, min(-(-rows // batch), window_bytes // (batch * (form.row_bytes + _INDEX_BYTES))))


class _Window:
    """The exchange for several steps, and its buffers.

    The send buffer is made for the worst case (all rows of the window held here); memory is only taken as it is used.
    """

    def __init__(self, loader: BatchLoader, most: int) -> None:
        self._loader = loader
        size, steps = loader.group.size, loader._window_steps
        words = sum(array.shape[1] for array in loader._words)
        alone = size == 1
        positions = min(steps * loader._batch, loader.shard.total)
        leaving = 0 if alone else min(positions, len(loader.shard))
        self._ids = np.empty(positions, np.int64)
        self._source = np.empty(steps * most, np.int64)
        self._send_index = np.empty(leaving, np.int64)
        self._send = np.empty((leaving, words), np.uint32)
        self.received = np.empty((0 if alone else steps * most, words), np.uint32)
        self._send_rows, self._receive_rows, self._cursor = np.zeros((3, size), np.int64)
        self._shares: list[tuple[np.ndarray, np.ndarray]] = []
        self._request: Request | None = None

    def start(self, order: EpochOrder, step: int) -> None:
        """Plan the window that begins with a step of the epoch and start its exchange; past the epoch do nothing."""
        loader, group = self._loader, self._loader.group
        lo = step * loader._batch
        hi = min(lo + len(self._ids), loader.shard.total)
        if lo >= hi:
            return
        ids = order.fill(lo, self._ids[: hi - lo])
        leaving = plan_window(
            ids,
            loader._batch,
            loader.unit,
            loader.shard.starts,
            group.rank,
            self._send_index,
            self._send_rows,
            self._receive_rows,
            self._source,
            self._cursor,
        )
        self._shares = self._cut(ids)
        if group.size > 1:
            pack_rows(*loader._words, self._send_index[:leaving], self._send)
            arriving = int(self._receive_rows.sum())
            self._request = group.all_to_all(
                self._send[:leaving], self._send_rows, self.received[:arriving], self._receive_rows
            )

    def _cut(self, ids: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each step the ids and the sources of this rank's share."""
        shares, done = [], 0
        for at in range(0, len(ids), self._loader._batch):
            batch = ids[at : at + self._loader._batch]
            lo, hi = worker_range(len(batch), self._loader.group.rank, self._loader.group.size, self._loader.unit)
            shares.append((batch[lo:hi], self._source[done : done + hi - lo]))
            done += hi - lo
        return shares

    def share(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids and the sources (see `plan_window`) of this rank's share of a step of the window."""
        return self._shares[step]

    def test(self) -> None:
        """Move the exchange on."""
        if self._request is not None and self._request.test():
            self._request = None

    def wait(self) -> None:
        """Return when the exchange is complete, or none is under way."""
        if self._request is not None:
            self._request.wait()
            self._request = None
