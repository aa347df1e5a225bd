"""`BetweenNodes`: the sum over nodes inside a hierarchical all-reduce, among ranks of which each node has one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np

from hpctrain.comm.executor import Executor, scratch_bytes
from hpctrain.comm.group import Group
from hpctrain.comm.schedules import ring

# Below this a ring's messages, two for each other node one after the other, cost more than their bytes.
_SHORT_BYTES = 16 * 1024


class BetweenNodes:
    """Sums a float32 buffer over a group in place, and says as early as possible what is done.

    Short buffers go by MPI's own all-reduce.  Others go round a ring in chunks: that sends the least bytes for any
    number of nodes and keeps every link busy in both directions.
    """

    def __init__(self, group: Group, chunk_bytes: int | None = None) -> None:
        self._group = group
        self._hops = tuple(chain(*(hops(group.rank, group.size) for hops in (ring.reduce_scatter, ring.all_gather))))
        self._chunk_bytes = chunk_bytes
        self._executors: dict[int, Executor] = {}  # by bytes of a chunk

    def all_reduce(self, buffer: np.ndarray, finished: Callable[[int, int], None] | None = None) -> None:
        """Replace the buffer by the sum.  `finished(lo, hi)` is called for ranges that have it, each element in one."""
        if self._group.size > 1 and buffer.nbytes > _SHORT_BYTES:
            self._executor(buffer.nbytes).run(buffer, finished)
            return
        if self._group.size > 1:
            self._group.all_reduce(buffer)
        if finished is not None:
            finished(0, len(buffer))

    @staticmethod
    def scratch_bytes(length: int, nodes: int) -> int:
        """Return the bytes of the chunks that come in to be added, for `length` floats over so many nodes."""
        if nodes == 1 or 4 * length <= _SHORT_BYTES:
            return 0
        return scratch_bytes(-(-length // nodes), nodes - 1)

    def _executor(self, size: int) -> Executor:
        chunk = self._chunk_bytes or chunk_bytes(self._group.library, size)
        if chunk not in self._executors:
            self._executors[chunk] = Executor(self._group, self._hops, chunk)
        return self._executors[chunk]


def chunk_bytes(library: str, size: int) -> int:
    """Return the bytes of a chunk for a buffer of `size` bytes that goes over links.

    Measured on links of 1 Gbit/s.  Open MPI sends up to 64 KB at once, and longer messages only after asking, which a
    short transfer does not make up for.
    """
    if library.startswith("Open MPI") and size < 16 << 20:
        return 32 * 1024
    return 256 * 1024
