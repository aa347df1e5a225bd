"""`MappedShard`: rows that stay where they stand in the files, which all ranks see.  Nothing is read beforehand.

Every rank gathers the rows that it works on, in any order, through maps of the files: no exchange, and data may be
larger than memory.  The system's page cache holds what fits.  A thread gathers the next window while this one is
worked on.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hpctrain.batch import Batch
from hpctrain.comm.group import Group
from hpctrain.data.exchange import Feed, Steps, Window
from hpctrain.data.fields.opened import Stamp
from hpctrain.data.format import Arrays, RowFormat
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.mapping import MappedRows
from hpctrain.data.order import Chunks, EpochOrder
from hpctrain.data.parts import PartRows, part_bytes
from hpctrain.data.shard import Shard, Weigh, weighed_rows
from hpctrain.data.sharding import row_range
from hpctrain.kernels import lost_pages
from hpctrain.kernels.select import copy_rows, gather_rows, rank_blocks, select_rows

WINDOW_BYTES = 4 << 20  # of a rank: what is gathered is used while it is in the processor's caches


class FileMaps:
    """The inputs of a source as maps of its files.

    stamps  what the files were when the source looked at them
    """

    def __init__(self, places: list[MappedRows], width: int, stamps: dict[str, Stamp]) -> None:
        lost_pages.watch()
        self._stamps = [stamps[place.path] for place in places]
        self.words = [place.open(width) for place in places]
        self.firsts = [place.first for place in places]

    def check(self) -> None:
        """Raise a `UserError` where a file is not what it was when it was opened."""
        for stamp in self._stamps:
            stamp.check()


@dataclass(frozen=True)
class MappedShard(Shard):
    """One part of the data in mapped files.

    source   names the rows with bad values; not read from any more
    part     which rows of the source are the part's
    count    examples of the part
    maps     the inputs
    targets, stored  of all rows of the source, in memory, as `RowFormat.empty` describes them
    """

    group: Group
    format: RowFormat
    source: Hdf5Source
    part: PartRows
    count: int
    maps: FileMaps
    targets: np.ndarray
    stored: np.ndarray
    cuts: np.ndarray | None = None
    _threads: list[ThreadPoolExecutor] = field(default_factory=list)

    def weighed(self, weigh: Weigh) -> MappedShard:
        """Return the same rows with other weights; see `Weigh`."""
        form, stored = weighed_rows(self.format, self.targets, self.stored, weigh)
        return replace(self, format=form, stored=stored)

    @property
    def total(self) -> int:
        """Rows of the part over all ranks."""
        return self.count

    @property
    def window_bytes(self) -> int:
        """Bytes of a window over all ranks."""
        return WINDOW_BYTES * self.group.size

    @cached_property
    def _words(self) -> tuple[np.ndarray, np.ndarray]:
        """Targets and stored weights as uint32 (rows, words)."""
        rows = len(self.targets)
        return (
            self.targets.reshape(-1).view(np.uint32).reshape(rows, self.format.target_words),
            self.stored.view(np.uint32),
        )

    def gather(self, ids: np.ndarray, rows: np.ndarray, out: Arrays) -> None:
        """Fill `out` with the examples `ids`; `rows` (int64, as many) is scratch.  Bad values are a `UserError`."""
        self.maps.check()  # of a file that has become shorter, pages are gone
        rows[:] = ids
        self.part.to_rows(rows)
        inputs, targets, stored = self.format.words(*out)
        bad = -1
        for words, first in zip(self.maps.words, self.maps.firsts, strict=True):
            found = gather_rows(words, first, rows, inputs)
            bad = found if bad < 0 or 0 <= found < bad else bad
        copy_rows(self._words[0], rows, targets)
        copy_rows(self._words[1], rows, stored)
        if bad >= 0:
            self.maps.check()
            self.source.check_values(*(array[bad : bad + 1] for array in out), int(rows[bad]))

    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield an even share of the part, this rank's, in order; the arrays are used again for the next batch."""
        lo, hi = row_range(self.total, self.group.rank, self.group.size)
        arrays, scratch = self.format.empty(rows), np.empty(rows, np.int64)
        with self.group.agreed():
            self.maps.check()
            for at in range(lo, hi, rows):
                ids = np.arange(at, min(at + rows, hi))
                inputs, targets, stored = (array[: len(ids)] for array in arrays)
                self.gather(ids, scratch[: len(ids)], (inputs, targets, stored))
                weight = self.format.full_weight(len(ids))
                self.format.spread(stored, weight)
                yield Batch(inputs, targets, weight, ids, step=0, epoch=0)
            self.maps.check()

    def feed(self, steps: Steps, chunks: Chunks | None) -> Feed:
        """Return windows that are gathered by a thread."""
        thread = ThreadPoolExecutor(1, "hpctrain-gather")
        self._threads.append(thread)
        return MappedFeed((_GatheredWindow(steps, self, thread), _GatheredWindow(steps, self, thread)), self.maps)

    def close(self) -> None:
        """End the threads that gather."""
        while self._threads:
            self._threads.pop().shutdown()

    def warm_up(self) -> None:
        """Compile or load the kernels, on one row that is none."""
        bits, ranks, rows = np.ones(8, np.uint64), np.empty(2, np.int64), np.zeros(1, np.int64)
        rank_blocks(bits, ranks)
        select_rows(bits, ranks, rows)
        words = self.format.words(*self.format.empty(1))
        for mapped in self.maps.words[:1]:
            gather_rows(mapped[:0], 0, rows, words[0])
        rows[:] = 0
        for array in (words[1], words[2]):
            copy_rows(array, rows, array)


@dataclass(frozen=True)
class MappedFeed(Feed):
    """Rows gathered from maps."""

    maps: FileMaps

    @property
    def may_fail(self) -> bool:
        """Whether a file may have changed, or hold a bad number."""
        return True

    def begin(self, order: EpochOrder, position: int) -> None:
        """Get ready for an epoch: the files must be what they were."""
        super().begin(order, position)
        self.maps.check()


class _GatheredWindow(Window):
    """A window that a thread fills with this rank's rows."""

    def __init__(self, steps: Steps, shard: MappedShard, thread: ThreadPoolExecutor) -> None:
        self._steps, self._shard, self._thread = steps, shard, thread
        self._arrays = steps.format.empty(steps.window * steps.most)
        self._ids, self._rows = np.empty((2, steps.window * steps.most), np.int64)
        self._shares: list[tuple[int, int]] = []
        self._filled: Future[None] | None = None

    def start(self, order: EpochOrder, step: int) -> None:
        """Let the thread gather the window; see `Window.start`."""
        lo, hi = self._steps.range(step)
        if lo < hi:
            self._filled = self._thread.submit(self._fill, order, lo, hi, self._steps.shares(hi - lo))

    def _fill(self, order: EpochOrder, first: int, stop: int, shares: list[tuple[int, int]]) -> None:
        done = 0
        self._shares = []
        for lo, hi in shares:
            order.fill(first + lo, self._ids[done : done + hi - lo])
            self._shares.append((done, done + hi - lo))
            done += hi - lo
        arrays = tuple(array[:done] for array in self._arrays)
        self._shard.gather(self._ids[:done], self._rows[:done], arrays)
        if stop == self._steps.total:  # the epoch's last window
            self._shard.maps.check()

    def wait(self) -> None:
        """Return when the window is filled; raises what went wrong."""
        filled, self._filled = self._filled, None
        if filled is not None:
            filled.result()

    def test(self) -> None:
        """Do nothing: the thread goes on by itself."""

    def rows(self, step: int) -> tuple[np.ndarray, Arrays]:
        """Return views of a step's rows; see `Window.rows`."""
        lo, hi = self._shares[step]
        inputs, targets, stored = self._arrays
        return self._ids[lo:hi], (inputs[lo:hi], targets[lo:hi], stored[lo:hi])


def mapped_bytes(form: RowFormat, rows: int, parts: int) -> int:
    """Return the memory that mapped data of so many rows take on a rank: what is not left in the files, and windows."""
    kept = rows * 4 * (form.target_words + form.weight_words)
    return kept + parts * part_bytes(rows) + 2 * (WINDOW_BYTES + form.row_bytes)
