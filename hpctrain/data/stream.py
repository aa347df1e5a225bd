"""`StreamedShard`: rows that do not fit in memory, read again in every epoch, one pool of chunks at a time.

A pool is what is mixed under "chunks" (see `order`).  Each chunk is read by one rank, by a thread, while the pool
before is worked on; there is room for two pools.  From there on rows travel as those of a shard in memory do.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from hpctrain.batch import Batch
from hpctrain.comm.group import Group
from hpctrain.data.buffers import large_arrays
from hpctrain.data.exchange import ExchangeFeed, Feed, Held, Steps
from hpctrain.data.format import Arrays, RowFormat
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.loader import BatchLoader
from hpctrain.data.order import Chunks, EpochOrder
from hpctrain.data.shard import Shard, Weigh, weighed_format, weighed_rows
from hpctrain.data.sharding import Split
from hpctrain.data.twin import Twin
from hpctrain.kernels.chunks import place_chunks
from hpctrain.kernels.rows import first_nonfinite_row
from hpctrain.kernels.unshuffle import unshuffle
from hpctrain.memory import private_peak

_LOOK_S = 0.1  # how often the thread looks at how much memory there is
JUDGING_BYTES = 8 << 20  # a pool of rows that are only judged, in order


@dataclass(frozen=True)
class StreamedShard(Shard):
    """One part of the data, read in chunks.

    source   where this rank reads; None where it does not
    bounds   (chunks + 1,) int64: chunk c has the rows bounds[c] .. bounds[c + 1] of the source, of which the part's
             examples cuts[c] .. cuts[c + 1] are
    split, part  which rows are the part's
    readers  (chunks, 2) int64: chunk c may be read by the ranks readers[c, 0] .. readers[c, 1] - 1
    weigh    what makes other weights of the stored ones
    """

    group: Group
    format: RowFormat
    source: Hdf5Source | None
    bounds: np.ndarray
    cuts: np.ndarray
    split: Split
    part: int
    readers: np.ndarray
    weigh: Weigh | None = None
    _open: list[Pooled] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Rows of the part over all ranks."""
        return int(self.cuts[-1])

    def weighed(self, weigh: Weigh) -> StreamedShard:
        """Return the same rows with other weights, made as they are read; see `Weigh`."""
        return replace(self, format=weighed_format(self.format), weigh=weigh)

    def feed(self, steps: Steps, chunks: Chunks | None) -> Feed:
        """Return rows that are read pool by pool and exchanged between the ranks."""
        pooled = Pooled(self, chunks)
        self._open.append(pooled)
        return ExchangeFeed.of(steps, pooled)

    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield this rank's share of every `rows` x size rows, in order; all ranks make all steps together."""
        loader = BatchLoader(self.group, self, rows * self.group.size, 0, "none", buffer_bytes=JUDGING_BYTES)
        self._open[-1].once = True
        try:
            for batch in loader.epoch(0):
                if batch.rows:
                    yield batch
        finally:
            self._open.pop().close()

    def warm_up(self) -> None:
        """Compile or load the kernels, on one chunk."""
        zero, cuts = np.zeros(1, np.int64), np.array([0, 1])
        place_chunks(zero, cuts, cuts, 1, 0, 1, np.array([[0, 1]]), zero.copy(), zero.copy(), zero.copy())
        first_nonfinite_row(np.zeros((1, 1), np.uint32))
        unshuffle(np.frombuffer(bytes(4), np.uint8), 4, np.empty(4, np.uint8))

    def close(self) -> None:
        """End the threads that read, and close the files."""
        while self._open:
            self._open.pop().close()


@dataclass
class _Epoch:
    """An epoch's pools: who reads what, and which are here."""

    order: EpochOrder
    owners: np.ndarray
    bases: np.ndarray
    next: int  # the pool that is read next
    loads: dict[int, Future[None]] = field(default_factory=dict)

    @property
    def all_asked_for(self) -> bool:
        """Whether no pool is left to read."""
        return self.next >= len(self.order.pools)


class Pooled(Held):
    """This rank's chunks of two pools, read ahead by a thread; see `Held`.

    Reading them may fail.  Room for a pool is what the rank with most of it needs: of n rows on r readers, n / r and
    one chunk.
    """

    may_fail = True

    def __init__(self, shard: StreamedShard, chunks: Chunks) -> None:
        self._shard, self._chunks = shard, chunks
        self._rank, size = shard.group.rank, shard.group.size
        self._room = room(chunks.most, chunks.largest, int(np.diff(shard.readers).min())) if self._reads else 0
        self._arrays = large_arrays(shard.format, 2 * self._room)
        self._raw = self._raw_arrays()
        count = len(chunks)
        super().__init__(
            shard.format.words(*self._arrays), chunks.firsts, np.zeros(count, np.int64), np.zeros(count, np.int64)
        )
        self._load = np.zeros(size, np.int64)
        self._source = Twin(shard.source) if shard.source is not None else None
        self._thread = ThreadPoolExecutor(1, "hpctrain-read")
        self._current: _Epoch | None = None
        self._following: _Epoch | None = None
        self._released = 0  # pools of the current epoch
        self._half = 0  # where the next pool goes
        self._cancelled = False
        self.once = False  # there will be no other epoch: nothing is read ahead for it

    @property
    def _reads(self) -> bool:
        readers = self._shard.readers
        return self._shard.source is not None and bool(
            ((readers[:, 0] <= self._rank) & (self._rank < readers[:, 1])).any()
        )

    def _raw_arrays(self) -> Arrays | None:
        """Return room for a chunk as the files have it, where not all of its rows are kept, or not as they are."""
        shard = self._shard
        if not self._reads or (shard.split.counts[shard.part] == shard.split.rows and shard.weigh is None):
            return None
        return shard.source.format.empty(int(np.diff(shard.bounds).max()))

    def begin(self, order: EpochOrder, position: int) -> None:
        """Get ready for an epoch, from a position on; what was read ahead for it is used."""
        ahead = self._following
        if ahead is not None and position == 0 and ahead.order.epoch == order.epoch and self._is_done(self._current):
            self._current, self._following = ahead, None
            self._released = 0
        else:
            self._drop()
            starts = order.pools.starts[order.pools.cuts]
            pool = max(0, int(np.searchsorted(starts, position, side="right")) - 1)
            self._current = self._plan(order, min(pool, len(order.pools) - 1))
            self._released = self._current.next
        self.owners, self.bases = self._current.owners, self._current.bases
        self._ask()

    def _is_done(self, epoch: _Epoch | None) -> bool:
        return epoch is not None and epoch.all_asked_for

    def _drop(self) -> None:
        """Forget what was asked for; wait for the thread."""
        self._cancelled = True
        for epoch in (self._current, self._following):
            for load in epoch.loads.values() if epoch else ():
                if not load.cancel():
                    load.exception()
        self._cancelled = False
        self._current = self._following = None

    def _plan(self, order: EpochOrder, first: int) -> _Epoch:
        """Work out who reads which chunk of an epoch that begins with a pool."""
        pools = order.pools
        owners, bases = np.zeros((2, len(self._chunks)), np.int64)
        half = (self._half + first) % 2
        table = (pools.order, self._chunks.firsts, pools.cuts, len(pools), half)
        place_chunks(*table, self._room, self._shard.readers, self._load, owners, bases)
        return _Epoch(order, owners, bases, first)

    def _ask(self) -> None:
        """Let the thread read the next pools, as many as there is room for."""
        current = self._current
        while self._resident < 2:
            epoch = current
            if current.all_asked_for:
                if self.once:
                    return
                if self._following is None:
                    order = current.order
                    self._following = self._plan(replace(order, epoch=order.epoch + 1), 0)
                epoch = self._following
            epoch.loads[epoch.next] = self._thread.submit(self._read_pool, epoch, epoch.next)
            epoch.next += 1
            self._half = 1 - self._half

    @property
    def _resident(self) -> int:
        """Pools that are here or were asked for, and were not released."""
        ahead = self._following.next if self._following else 0
        return self._current.next - self._released + ahead

    def hold(self, position: int) -> None:
        """Return when this rank's chunks are here up to a position; raises what went wrong in reading."""
        pools = self._current.order.pools
        for pool in sorted(self._current.loads):
            self._current.loads[pool].result()
            if pools.end(pool) >= position:
                return

    def release(self, position: int) -> None:
        """Give up the pools that end before a position, and read on."""
        current = self._current
        while self._released < current.next and current.order.pools.end(self._released) <= position:
            current.loads.pop(self._released)
            self._released += 1
        self._ask()

    def _read_pool(self, epoch: _Epoch, pool: int) -> None:
        """Read this rank's chunks of a pool: the thread's work."""
        for chunk in epoch.order.pools.chunks(pool):
            if self._cancelled:
                return
            rows = int(self._chunks.firsts[chunk + 1] - self._chunks.firsts[chunk])
            if rows and epoch.owners[chunk] == self._rank:
                base = int(epoch.bases[chunk])
                self._read(int(chunk), tuple(array[base : base + rows] for array in self._arrays))
        if pool == len(epoch.order.pools) - 1 and self._source is not None:
            self._source.check_files()

    def _read(self, chunk: int, out: Arrays) -> None:
        shard, source = self._shard, self._source
        private_peak.look(_LOOK_S)
        lo, hi = int(shard.bounds[chunk]), int(shard.bounds[chunk + 1])
        if self._raw is None:
            source.read_into(lo, *out)
            source.check_values(*out, lo)
            return
        raw = tuple(array[: hi - lo] for array in self._raw)
        source.read_into(lo, *raw)
        source.check_values(*raw, lo)
        chosen = shard.split.part_of(lo, hi) == shard.part
        if shard.weigh is None:
            for array, own in zip(raw, out, strict=True):
                np.compress(chosen, array, axis=0, out=own)
            return
        np.compress(chosen, raw[0], axis=0, out=out[0])
        np.compress(chosen, raw[1], axis=0, out=out[1])
        out[2][:] = weighed_rows(source.format, out[1], raw[2][chosen], shard.weigh)[1]

    def close(self) -> None:
        """End the thread and close the files."""
        self._drop()
        self._thread.shutdown()
        if self._source is not None:
            self._source.close()


def room(pool: int, chunk: int, readers: int) -> int:
    """Return the rows of a pool on one of its readers, at most: an even share, and one chunk."""
    return min(pool, -(-pool // readers) + chunk)


def stream_bytes(form: RowFormat, chunk: int, pool: int, readers: int, is_cut: bool) -> int:
    """Return the memory that a stream takes on a rank that reads: two pools, and a chunk where rows are left out."""
    return form.row_bytes * (2 * room(pool, chunk, readers) + (chunk if is_cut else 0))
