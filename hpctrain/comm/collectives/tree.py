"""`TreeCollective`: everything to rank 0 along a binomial tree, and back."""

from __future__ import annotations

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.executor import Executor
from hpctrain.comm.group import Group
from hpctrain.comm.schedules import tree
from hpctrain.kernels.reduce import add_into
from hpctrain.memory import taken_bytes


class TreeCollective(Collective):
    """2 log2 P messages one after another, each of the whole buffer: the quickest for short ones."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._reduce, self._broadcast, self._gather = (
            Executor(group, hops(group.rank, group.size)) for hops in (tree.reduce, tree.broadcast, tree.gather)
        )

    @staticmethod
    def scratch_bytes(length: int, size: int) -> int:
        """Return the bytes of a second buffer, which comes in to be added."""
        return taken_bytes(4 * length) if size > 1 else 0

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Replace the buffer by the sum over all ranks."""
        self.check(buffer)
        self._reduce.run(buffer)
        self._broadcast.run(buffer)

    def reduce_scatter(self, buffer: np.ndarray) -> tuple[int, int]:
        """Make this rank's part (and the rest) the sum over all ranks and return it as (lo, hi)."""
        self.all_reduce(buffer)
        return self.owned(len(buffer))

    def all_gather(self, buffer: np.ndarray) -> None:
        """Fill in the other ranks' parts."""
        self.check(buffer)
        self._gather.run(buffer)
        self._broadcast.run(buffer)

    def warm_up(self) -> None:
        """Compile the addition, or load it from the cache."""
        add_into(np.zeros(1, np.float32), np.zeros(1, np.float32))
