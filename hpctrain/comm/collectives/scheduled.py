"""`ScheduledCollective`: an all-reduce made of the hops of two schedules, a reduce-scatter and an all-gather."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.executor import Executor
from hpctrain.comm.group import Group
from hpctrain.comm.schedule import Algorithm
from hpctrain.kernels.reduce import add_into


class ScheduledCollective(Collective):
    """Runs `hops_together`, after which part r of rank r is the sum, then `hops_apart`, which bring it to all."""

    hops_together: ClassVar[Algorithm]
    hops_apart: ClassVar[Algorithm]

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        kind = type(self)
        self._together = Executor(group, kind.hops_together(group.rank, group.size))
        self._apart = Executor(group, kind.hops_apart(group.rank, group.size))

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Replace the buffer by the sum over all ranks: a reduce-scatter, then an all-gather."""
        self.check(buffer)
        self._together.run(buffer)
        self._apart.run(buffer)

    def reduce_scatter(self, buffer: np.ndarray) -> tuple[int, int]:
        """Make this rank's part the sum over all ranks and return it as (lo, hi)."""
        self.check(buffer)
        self._together.run(buffer)
        return self.owned(len(buffer))

    def all_gather(self, buffer: np.ndarray) -> None:
        """Fill in the other ranks' parts."""
        self.check(buffer)
        self._apart.run(buffer)

    def warm_up(self) -> None:
        """Compile the addition, or load it from the cache."""
        add_into(np.zeros(1, np.float32), np.zeros(1, np.float32))
