"""`Collective`: the contract of the ways to combine a buffer over all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.comm.schedule import part_bounds


class Collective(ABC):
    """Combines 1-D C-contiguous float32 or int32 buffers in place; sums, never averages.

    Every rank calls the same operation with the same length.  The result of `all_reduce` has the same bits on every
    rank; sums of int32 wrap around, and are the same in any order.  What is made for a buffer (scratch) is kept: the
    second call with the same length allocates nothing.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    @staticmethod
    def allocate(group: Group, count: int) -> np.ndarray:
        """Return a zeroed 1-D float32 array of the kind that this collective combines best.  Collective."""
        return group.allocate(count)

    @staticmethod
    @abstractmethod
    def scratch_bytes(length: int, size: int, nodes: int = 1) -> int:
        """Return the memory that an `all_reduce` of `length` floats takes beside the buffer on a rank.

        Of `size` ranks on `nodes` nodes, as many on each.
        """

    def owned(self, length: int) -> tuple[int, int]:
        """Return the (lo, hi) that this rank owns of a buffer of this length; the ranks' parts follow one another."""
        bounds = part_bounds(length, self.group.size)
        return bounds[self.group.rank], bounds[self.group.rank + 1]

    @abstractmethod
    def all_reduce(self, buffer: np.ndarray) -> None:
        """Replace the buffer by the sum over all ranks."""

    @abstractmethod
    def reduce_scatter(self, buffer: np.ndarray) -> tuple[int, int]:
        """Make this rank's part the sum over all ranks and return it as (lo, hi); the rest is then undefined."""

    @abstractmethod
    def all_gather(self, buffer: np.ndarray) -> None:
        """Fill in the other ranks' parts; each rank's own part (`owned`) is what it gives."""

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Copy the root's buffer to all ranks."""
        self.group.broadcast(buffer, root)

    def warm_up(self, dtype: Any = np.float32) -> None:  # noqa: B027 - one without kernels has nothing to do
        """Compile the kernels for buffers of this type, or load them from the cache.

        No communication: ranks may call it at different times.
        """

    @staticmethod
    def check(buffer: np.ndarray) -> None:
        """Raise a TypeError for what is not a 1-D C-contiguous float32 or int32 array."""
        if buffer.dtype not in (np.float32, np.int32) or buffer.ndim != 1 or not buffer.flags.c_contiguous:
            raise TypeError(
                f"a collective takes 1-D contiguous float32 or int32 arrays, not {buffer.dtype} of shape {buffer.shape}"
            )
