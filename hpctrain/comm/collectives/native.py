"""`NativeCollective`: MPI's own collective operations."""

from __future__ import annotations

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.group import Group
from hpctrain.comm.schedule import part_bounds


class NativeCollective(Collective):
    """MPI_Allreduce, MPI_Reduce_scatter and MPI_Allgatherv: the library chooses the algorithm."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._length = -1
        self._counts: list[int] = []
        self._part = group.allocate(0)  # MPI gives a reduce-scatter's result beside the buffer, not in its place

    @staticmethod
    def scratch_bytes(length: int, size: int, nodes: int = 1) -> int:
        """Return the bytes of a second buffer: MPI libraries receive into one what they add."""
        return 4 * length if size > 1 else 0

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Replace the buffer by the sum over all ranks."""
        self.check(buffer)
        self.group.all_reduce(buffer)

    def reduce_scatter(self, buffer: np.ndarray) -> tuple[int, int]:
        """Make this rank's part the sum over all ranks and return it as (lo, hi)."""
        self._prepare(buffer)
        lo, hi = self.owned(len(buffer))
        if len(self._part) != hi - lo:
            self._part = self.group.allocate(hi - lo)
        self.group.reduce_scatter(buffer, self._counts, self._part)
        buffer[lo:hi] = self._part
        return lo, hi

    def all_gather(self, buffer: np.ndarray) -> None:
        """Fill in the other ranks' parts."""
        self._prepare(buffer)
        self.group.all_gather(buffer, self._counts)

    def _prepare(self, buffer: np.ndarray) -> None:
        self.check(buffer)
        if len(buffer) != self._length:
            self._length = len(buffer)
            bounds = part_bounds(self._length, self.group.size)
            self._counts = [stop - start for start, stop in zip(bounds, bounds[1:], strict=False)]
