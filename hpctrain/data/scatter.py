"""Rows on their way from the files into memory, in blocks: read by rank 0 and sent, or read by each rank itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from hpctrain.comm.group import Group, Request
from hpctrain.data.format import Arrays, RowFormat
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.sharding import row_range
from hpctrain.errors import UserError

BLOCK_BYTES = 32 << 20
_STOP = -1  # in a block's header, in place of its number of rows: reading failed
_HEADER, _FIRST_ARRAY = 101, 102  # message tags; inputs, targets and weights have one each
_PAUSE_S = 0.001


class Filler(Protocol):
    """Takes this rank's rows of a source, block by block in file order."""

    format: RowFormat
    rows: int  # of the source
    ranges: list[tuple[int, int]]  # of this rank; one unless each rank reads its own

    def put(self, first: int, arrays: Arrays) -> None:
        """Store a block of rows that begins with row `first` of the source."""


def read_own(source: Hdf5Source, filler: Filler, report: Callable[[int], None]) -> None:
    """Read this rank's own rows; `report` is told the rows of each block."""
    block: _Block | None = None
    for lo, hi in (block for share in filler.ranges for block in source.blocks(*share, BLOCK_BYTES)):
        block = block if block and block.holds(hi - lo) else _Block(filler.format, hi - lo)
        arrays = block.rows(hi - lo)
        source.read_into(lo, *arrays)
        source.check_values(*arrays, lo)
        filler.put(lo, arrays)
        report(hi - lo)
    source.finish()


def scatter(group: Group, source: Hdf5Source, filler: Filler, report: Callable[[int], None]) -> None:
    """Rank 0: read all rows in file order, keep the own ones, send each other block while the next one is read."""
    # Shares begin where they will, within chunks too, and their first blocks may be the longest.
    shares = [row_range(filler.rows, rank, group.size) for rank in range(group.size)]
    most = max((hi - lo for share in shares for lo, hi in source.blocks(*share, BLOCK_BYTES)), default=0)
    blocks = [_Block(filler.format, most), _Block(filler.format, most)]
    for rank, share in enumerate(shares):
        for lo, hi in source.blocks(*share, BLOCK_BYTES):
            block = blocks[0]
            block.wait()
            arrays = block.rows(hi - lo)
            try:
                source.read_into(lo, *arrays)
                source.check_values(*arrays, lo)
            except UserError:
                _stop(group, filler.rows, max(rank, 1))
                blocks[1].wait()
                raise
            if rank == 0:
                filler.put(lo, arrays)
            else:
                block.send(group, rank, hi - lo)
            blocks.reverse()
            report(hi - lo)
    for block in blocks:
        block.wait()
    source.finish()


def loading_bytes(source: Hdf5Source, size: int, rank: int, distribute: str, split: tuple[float, float]) -> int:
    """Return the memory that loading one source takes on a rank for a while, beside the rows that the rank keeps.

    Its blocks, what HDF5 needs, and a copy of the inputs that go into the largest part.
    """
    reads, sends = rank == 0 or distribute != "scatter", distribute == "scatter" and rank == 0
    form = source.format
    pieces = [hi - lo for lo, hi in source.blocks(*row_range(len(source), rank, size), BLOCK_BYTES)]
    if not pieces:
        return 0
    # Two blocks where one is read while the other is on its way.  The last rows come when all others are there.
    blocks = sum(sorted(pieces)[-2:]) if sends else max(pieces)
    last = pieces[-1] if len(pieces) < 3 else pieces[0]
    copy = int(last * 4 * form.input_size * max(1.0 - sum(split), *split))
    keeping = blocks * form.row_bytes + (max(copy, source.reading_bytes(last)) if reads else copy)
    sending = 2 * max(pieces) * form.row_bytes + source.reading_bytes(max(pieces)) if sends and size > 1 else 0
    return max(keeping, sending)


def _stop(group: Group, rows: int, first: int) -> None:
    """Tell the ranks from `first` on, which still wait for rows, that none will come."""
    header = np.array([_STOP], np.int64)
    waiting = [rank for rank in range(first, group.size) if row_range(rows, rank, group.size)[0] < rows]
    for request in [group.send(header, rank, _HEADER) for rank in waiting]:
        request.wait()


def take(group: Group, filler: Filler) -> None:
    """Receive this rank's rows from rank 0; returns early when it says stop (the error follows through `agreed`)."""
    block: _Block | None = None
    header = np.empty(1, np.int64)
    ((at, end),) = filler.ranges
    while at < end:
        _wait_patiently(group.receive(header, 0, _HEADER))
        rows = int(header[0])
        if rows == _STOP:
            return
        block = block if block and block.holds(rows) else _Block(filler.format, rows)
        arrays = block.rows(rows)
        for request in [group.receive(array, 0, tag) for tag, array in _messages(arrays)]:
            request.wait()
        filler.put(at, arrays)
        at += rows


class _Block:
    """Room for a block of rows, and the transfers that use it."""

    def __init__(self, form: RowFormat, rows: int) -> None:
        self._arrays = form.empty(rows)
        self._header = np.empty(1, np.int64)
        self._requests: list[Request] = []

    def holds(self, rows: int) -> bool:
        """Whether there is room for so many rows."""
        return rows <= len(self._arrays[0])

    def rows(self, rows: int) -> Arrays:
        """Return inputs, targets and weights for the block's first rows."""
        if not self.holds(rows):
            raise ValueError(f"a block of {len(self._arrays[0])} rows holds no {rows}")
        inputs, targets, weight = self._arrays
        return inputs[:rows], targets[:rows], weight[:rows]

    def send(self, group: Group, rank: int, rows: int) -> None:
        """Start to send the first rows to a rank."""
        self._header[0] = rows
        self._requests = [group.send(self._header, rank, _HEADER)]
        self._requests += [group.send(array, rank, tag) for tag, array in _messages(self.rows(rows))]

    def wait(self) -> None:
        """Return when the block may be filled again."""
        for request in self._requests:
            request.wait()
        self._requests = []


def _messages(arrays: Arrays) -> list[tuple[int, np.ndarray]]:
    """Return the arrays that travel, with their tags: all that have something in them."""
    return [(_FIRST_ARRAY + i, array) for i, array in enumerate(arrays) if array.size]


def _wait_patiently(request: Request) -> None:
    """Wait without spinning: while rank 0 reads, the other ranks must not take its core away."""
    while not request.test():
        time.sleep(_PAUSE_S)
