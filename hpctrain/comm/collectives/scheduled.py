"""`ScheduledCollective`: operations made of the hops of schedules, which an `Executor` runs."""

from __future__ import annotations

from itertools import chain
from typing import Any, ClassVar

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.executor import CHUNK_BYTES, Executor
from hpctrain.comm.group import Group
from hpctrain.comm.schedule import Algorithm
from hpctrain.comm.schedules import halving_doubling
from hpctrain.kernels.reduce import add_into


class ScheduledCollective(Collective):
    """Runs the hops of schedules, in chunks of `chunk_bytes` at most.

    hops_summing     after all of these, one after the other, every rank has the sum
    hops_scattering  after these part r of rank r is the sum
    hops_gathering   after these everybody has part r of every rank r

    Scattering and gathering go by halving and doubling where a subclass has nothing better.
    """

    hops_summing: ClassVar[tuple[Algorithm, ...]]
    hops_scattering: ClassVar[Algorithm] = staticmethod(halving_doubling.reduce_scatter)
    hops_gathering: ClassVar[Algorithm] = staticmethod(halving_doubling.all_gather)

    def __init__(self, group: Group, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(group)
        kind = type(self)
        # The schedules of a sum are one to the executor: a chunk is handed round as soon as it is summed.
        self._summing, self._scattering, self._gathering = (
            Executor(group, chain(*(hops(group.rank, group.size) for hops in schedules)), chunk_bytes)
            for schedules in (kind.hops_summing, (kind.hops_scattering,), (kind.hops_gathering,))
        )

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Replace the buffer by the sum over all ranks."""
        self.check(buffer)
        self._summing.run(buffer)

    def reduce_scatter(self, buffer: np.ndarray) -> tuple[int, int]:
        """Make this rank's part the sum over all ranks and return it as (lo, hi)."""
        self.check(buffer)
        self._scattering.run(buffer)
        return self.owned(len(buffer))

    def all_gather(self, buffer: np.ndarray) -> None:
        """Fill in the other ranks' parts."""
        self.check(buffer)
        self._gathering.run(buffer)

    def warm_up(self, dtype: Any = np.float32) -> None:
        """Compile the addition, or load it from the cache."""
        add_into(np.zeros(1, dtype), np.zeros(1, dtype))
