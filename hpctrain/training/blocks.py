"""A part's rows for an evaluation: those that this rank has, or in blocks that are the same at every world size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpctrain.batch import Batch
from hpctrain.comm.group import Group
from hpctrain.data.loader import BatchLoader
from hpctrain.data.shard import Shard

MOST_BLOCKS = 64  # of a part: each has states of its own, which all ranks are sent

Block = tuple[int, Iterable[Batch]]


def block_rows(total: int, rows: int) -> int:
    """Return the rows of one of `EqualBlocks` of a part with so many rows, in passes of `rows`."""
    return rows * -(-total // (MOST_BLOCKS * rows))


class OwnBlocks:
    """One block a rank, numbered as the ranks: the rows that it holds, `rows` at a time.  No row travels."""

    def __init__(self, group: Group, rows: int) -> None:
        self._group = group
        self._rows = rows

    def of(self, shard: Shard) -> Iterator[Block]:
        """Yield this rank's number and its rows."""
        yield self._group.rank, shard.batches(self._rows)


class EqualBlocks:
    """At most `MOST_BLOCKS` blocks of consecutive examples, whole passes of `rows` each, dealt out to the ranks.

    Rows that another rank holds are sent to the one that judges the block.
    """

    def __init__(self, group: Group, rows: int) -> None:
        self._group = group
        self._rows = rows
        self._loaders: dict[int, BatchLoader] = {}  # by the shard's identity: shards stay as long as the run

    def of(self, shard: Shard) -> Iterator[Block]:
        """Yield the number of each of this rank's blocks, and its rows.  Collective: to be gone through to the end."""
        unit = block_rows(shard.total, self._rows)
        loader = self._loaders.get(id(shard))
        if loader is None:
            loader = BatchLoader(self._group, shard, unit * self._group.size, 0, "none", unit=unit)
            self._loaders[id(shard)] = loader
        for step, batch in enumerate(loader.epoch(0)):
            if batch.rows:
                number = (step * loader.steps.batch + batch.first) // unit
                yield number, (batch.slice(lo, lo + self._rows) for lo in range(0, batch.rows, self._rows))
