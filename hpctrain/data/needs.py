"""What the rows of a source take of memory on a rank, each way that they can go: counted before anything is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.loader import BUFFER_BYTES, exchange_bytes, pool_rows
from hpctrain.data.mapped import mapped_bytes
from hpctrain.data.scatter import loading_bytes
from hpctrain.data.splits import RowSplit
from hpctrain.data.stream import JUDGING_BYTES, stream_bytes
from hpctrain.data.ways import Needs

_JUDGED_ROWS = 256  # of a rank at a time, at most


@dataclass(frozen=True)
class Demand:
    """What training asks of the rows.

    shuffle       the order, see `order.EpochOrder`
    may_change    whether "global" may become "chunks" where that is the only way
    batch         examples of a step over all ranks
    buffer_bytes  what is mixed under "chunks"
    """

    shuffle: str = "global"
    may_change: bool = False
    batch: int = 1
    buffer_bytes: int = BUFFER_BYTES


Described = tuple[Hdf5Source, RowSplit, dict[str, int]]
"""A source, which rows of it are which part's, and the parts (name -> code) that come from it."""


def all_needs(described: list[Described], distribute: str, demand: Demand, size: int, limit: int) -> list[Needs]:
    """Return what each source's parts take; what takes a look into the files only where memory is not enough."""
    needs = [needs_of(*each, distribute, demand, size, is_close=False) for each in described]
    if sum(need.loading + sum(need.memory.values()) for need in needs) <= limit:
        return needs
    return [needs_of(*each, distribute, demand, size, is_close=True) for each in described]


def needs_of(
    source: Hdf5Source,
    split: RowSplit,
    parts: dict[str, int],
    distribute: str,
    demand: Demand,
    size: int,
    is_close: bool,
) -> Needs:
    """Return what a source's parts (name -> code in the split) take on rank 0, which needs most.

    Without `is_close` the files are not opened: nothing is said of mapping and streaming.
    """
    form = source.format
    memory = {part: -(-split.counts[code] // size) * form.row_bytes for part, code in parts.items()}
    fractions = tuple(count / split.rows for count in split.counts[1:3])
    loading = loading_bytes(source, size, 0, distribute, fractions)
    if not is_close:
        return Needs(memory, loading, None, 0)
    mapped = None
    if (distribute == "shared" or size == 1) and source.mapped_rows() is not None:
        mapped = mapped_bytes(form, split.rows, len(parts) if len(parts) > 1 else 0)
    chunk = int(np.diff(source.pieces()).max())
    readers = 1 if distribute == "scatter" else size

    def streaming(batch: int, buffer_bytes: int) -> tuple[int, int]:
        """Return what reading takes, and what the exchange between the ranks does."""
        pool = pool_rows(form, batch, buffer_bytes) + chunk
        reading = stream_bytes(form, chunk, min(pool, split.rows), readers, is_cut=True) + source.reading_bytes(chunk)
        window = pool * form.row_bytes // 8
        return reading, exchange_bytes(form, split.rows, batch, size, "none", window_bytes=window)

    reading, passed_on = streaming(demand.batch, demand.buffer_bytes)
    judged = sum(streaming(_JUDGED_ROWS * size, JUDGING_BYTES))
    return Needs(memory, loading, mapped, reading + passed_on, judged, passed_on)
