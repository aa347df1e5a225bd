"""`ScheduledCollective`: operations made of the hops of schedules, which an `Executor` runs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.executor import Executor
from hpctrain.comm.group import Group
from hpctrain.comm.schedule import Algorithm
from hpctrain.comm.schedules import halving_doubling
from hpctrain.kernels.reduce import add_into


class ScheduledCollective(Collective):
    """Runs one schedule after the other.

    hops_summing     after all of these every rank has the sum
    hops_scattering  after these part r of rank r is the sum
    hops_gathering   after these everybody has part r of every rank r

    Scattering and gathering go by halving and doubling where a subclass has nothing better.
    """

    hops_summing: ClassVar[tuple[Algorithm, ...]]
    hops_scattering: ClassVar[Algorithm] = staticmethod(halving_doubling.reduce_scatter)
    hops_gathering: ClassVar[Algorithm] = staticmethod(halving_doubling.all_gather)

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        kind = type(self)
        made: dict[Algorithm, Executor] = {}  # what stands in several of them has one scratch
        for hops in (*kind.hops_summing, kind.hops_scattering, kind.hops_gathering):
            if hops not in made:
                made[hops] = Executor(group, hops(group.rank, group.size))
        self._summing = [made[hops] for hops in kind.hops_summing]
        self._scattering, self._gathering = made[kind.hops_scattering], made[kind.hops_gathering]

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Replace the buffer by the sum over all ranks."""
        self.check(buffer)
        for executor in self._summing:
            executor.run(buffer)

    def reduce_scatter(self, buffer: np.ndarray) -> tuple[int, int]:
        """Make this rank's part the sum over all ranks and return it as (lo, hi)."""
        self.check(buffer)
        self._scattering.run(buffer)
        return self.owned(len(buffer))

    def all_gather(self, buffer: np.ndarray) -> None:
        """Fill in the other ranks' parts."""
        self.check(buffer)
        self._gathering.run(buffer)

    def warm_up(self) -> None:
        """Compile the addition, or load it from the cache."""
        add_into(np.zeros(1, np.float32), np.zeros(1, np.float32))
