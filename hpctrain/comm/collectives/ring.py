"""`RingCollective`: reduce-scatter and all-gather round a ring of ranks."""

from __future__ import annotations

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.executor import Executor
from hpctrain.comm.group import Group
from hpctrain.comm.schedule import ring_all_gather, ring_reduce_scatter
from hpctrain.kernels.reduce import add_into
from hpctrain.memory import taken_bytes


class RingCollective(Collective):
    """Each rank sends 2 (P - 1) / P of the buffer in 2 (P - 1) messages: the least bytes, for any P and any length."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._reduce_scatter = Executor(group, ring_reduce_scatter(group.rank, group.size))
        self._all_gather = Executor(group, ring_all_gather(group.rank, group.size))

    @staticmethod
    def scratch_bytes(length: int, size: int) -> int:
        """Return the bytes of the longest part, which comes in to be added."""
        return taken_bytes(4 * -(-length // size)) if size > 1 else 0

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Replace the buffer by the sum over all ranks: a reduce-scatter, then an all-gather."""
        self.check(buffer)
        self._reduce_scatter.run(buffer)
        self._all_gather.run(buffer)

    def reduce_scatter(self, buffer: np.ndarray) -> tuple[int, int]:
        """Make this rank's part the sum over all ranks and return it as (lo, hi)."""
        self.check(buffer)
        self._reduce_scatter.run(buffer)
        return self.owned(len(buffer))

    def all_gather(self, buffer: np.ndarray) -> None:
        """Fill in the other ranks' parts."""
        self.check(buffer)
        self._all_gather.run(buffer)

    def warm_up(self) -> None:
        """Compile the addition, or load it from the cache."""
        add_into(np.zeros(1, np.float32), np.zeros(1, np.float32))
