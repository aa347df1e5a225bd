"""`WindowCollective`: sums in memory that the ranks of a node share; between nodes each rank sends its own part."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.collectives.between import BetweenNodes
from hpctrain.comm.group import Group
from hpctrain.comm.schedule import part_bounds
from hpctrain.comm.shared_memory import SharedRows, share, shared_rows
from hpctrain.comm.topology import Share, neighbourhoods, own_place, share_of
from hpctrain.errors import UserError
from hpctrain.kernels.reduce import add_into
from hpctrain.kernels.window import BLOCK, LINE, YIELDS, add_chosen, add_rows, copy_row, meet, spread_row, sum_rows

_SPINS = 2000  # looks at a flag before a rank gives its core away, where each has one
_ASLEEP = -YIELDS
_LONG = 1 << 14  # floats


class WindowCollective(Collective):
    """Each rank of a node adds up its part of everybody's buffers, in place.

    Of several nodes, the ranks with the same place in theirs then sum their part over the nodes, all at once, and store
    what is done in everybody's buffer: a node sends each byte once, however many ranks it holds.  Where nodes hold
    different numbers of ranks, or a `leader` is asked for, the first rank of each sends everything.  Buffers that
    `allocate` made are used where they are; others are copied in and out.

    On one node whose ranks are bound to several NUMA nodes, as many to each, long buffers are summed in two levels: the
    ranks of a NUMA node add up their rows, and those sums cross to the others once, in place of every rank's row.
    """

    def __init__(self, group: Group, chunk_bytes: int | None = None, leader: bool = False) -> None:
        """Make it for a group; `chunk_bytes` of a message between nodes, by default what suits the MPI library."""
        super().__init__(group)
        self._local = group.local()
        across, leaders = group.across(), group.leaders()
        self._is_even = across is not None and not leader
        others = across if self._is_even else leaders  # None on a rank that is not its node's first
        self._between = None if others is None else BetweenNodes(others, chunk_bytes)
        crowded = self._local.size > (os.cpu_count() or 1)
        self._spins = _ASLEEP if group.sleeps else 0 if crowded else _SPINS
        self._hoods = neighbourhoods(self._local.all_gather_objects(own_place())) if group.nodes == 1 else None
        self._scratch = group.allocate(BLOCK)
        self._place = (self._local.rank, self._local.size)
        self._own_row = np.array([self._local.rank])
        self._share: tuple[int, Share, np.ndarray, np.ndarray] | None = None  # of the last long buffer
        self._copied_into: np.ndarray | None = None
        self._known: np.ndarray | None = None  # the last buffer, whether it is shared, and this rank's part of it
        self._shared: SharedRows | None = None
        self._part = (0, 0)
        self._typed = (self._scratch, self._scratch)  # its rows and the scratch, as numbers of its type

    @staticmethod
    def allocate(group: Group, count: int) -> np.ndarray:
        """Return a zeroed float32 array that this collective sums without copying; collective."""
        local = group.local()
        with group.agreed():  # nodes have memory of their own: one may have enough of it, and another not
            return share(local, count) if local.size > 1 else group.allocate(count)

    @staticmethod
    def scratch_bytes(length: int, size: int, nodes: int = 1) -> int:
        """Return the bytes of a rank's part of its node's other buffers, which it touches, and of the transfer."""
        local = -(-size // nodes)
        part = -(-length // local)
        return 4 * (local - 1) * part + BetweenNodes.scratch_bytes(part, nodes)

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Replace the buffer by the sum over all ranks."""
        if buffer is not self._known:
            self._look_at(buffer)
        if self._shared is None or self._is_near(len(buffer)):
            self._run(buffer, self._sum)
            return
        shared = self._shared
        number = shared.meetings(2)
        rows, scratch = self._typed
        met = sum_rows(rows, shared.flags, *self._place, number, self._spins, *self._part, scratch, 0)
        while met < 2:
            self.group.progress()
            met = sum_rows(rows, shared.flags, *self._place, number, _ASLEEP, *self._part, scratch, met)

    def _look_at(self, buffer: np.ndarray) -> None:
        """Note what is known of a buffer that may come again, as gradients do."""
        self._known = buffer
        self._shared = shared_rows(buffer) if self.group.nodes == 1 else None
        self._part = self.owned(len(buffer))
        self._take_type(buffer)
        if self._shared is not None:
            self._typed = self._shared.rows.view(buffer.dtype), self._scratch

    def _take_type(self, buffer: np.ndarray) -> None:
        """Check a buffer, and add numbers of its type from now on."""
        self.check(buffer)
        if self._scratch.dtype != buffer.dtype:
            self._scratch = self._scratch.view(buffer.dtype)

    def reduce_scatter(self, buffer: np.ndarray) -> tuple[int, int]:
        """Make this rank's part the sum over all ranks and return it as (lo, hi)."""
        lo, hi = self.owned(len(buffer))
        if self.group.nodes > 1:
            self.all_reduce(buffer)
        else:
            rank = self._local.rank
            self._run(buffer, lambda shared, length: self._add(shared, lo, hi, rank, rank + 1))
        return lo, hi

    def all_gather(self, buffer: np.ndarray) -> None:
        """Fill in the other ranks' parts."""
        if self.group.nodes > 1:
            lo, hi = self.owned(len(buffer))
            buffer[:lo] = buffer[hi:] = 0  # then the sum is what everybody gives
            self.all_reduce(buffer)
        else:
            self._run(buffer, self._copy_parts)

    def _run(self, buffer: np.ndarray, work: Callable[[SharedRows, int], None]) -> None:
        """Do some work on everybody's buffers between two meetings."""
        self._take_type(buffer)
        if self._local.size == 1:
            self._between.all_reduce(buffer)
            return
        shared, own = shared_rows(buffer), buffer
        if shared is None:
            own = self._room(len(buffer))
            shared = shared_rows(own)
            own = own.view(buffer.dtype)
            own[: len(buffer)] = buffer
        self._meet(shared)
        work(shared, len(buffer))
        self._meet(shared)
        if own is not buffer:
            buffer[:] = own[: len(buffer)]

    def _room(self, length: int) -> np.ndarray:
        if self._copied_into is None or len(self._copied_into) < length:
            try:
                self._copied_into = share(self._local, length)
            except UserError as error:  # other nodes have enough, or need none: they do not know of it
                raise UserError.from_message(error.message, agreed=self.group.nodes == 1) from None
        return self._copied_into

    def _meet(self, shared: SharedRows) -> None:
        number, spins = shared.meetings(1), self._spins
        while not meet(shared.flags, *self._place, number, spins):
            self.group.progress()
            spins = _ASLEEP

    def _add(self, shared: SharedRows, lo: int, hi: int, first: int, last: int) -> None:
        rows = shared.rows.view(self._scratch.dtype)
        add_rows(rows, self._local.size, lo, hi, first, last, self._scratch)

    def _sum(self, shared: SharedRows, length: int) -> None:
        rank, size = self._local.rank, self._local.size
        bounds = part_bounds(length, size)
        lo, hi = bounds[rank], bounds[rank + 1]
        if self._is_near(length):
            self._sum_near(shared, length)
            return
        if self.group.nodes == 1:
            self._add(shared, lo, hi, 0, size)
            return
        if self._is_even:
            self._add(shared, lo, hi, rank, rank + 1)
            own = shared.rows[rank, lo:hi].view(self._scratch.dtype)
            self._between.all_reduce(
                own, lambda first, last: spread_row(shared.rows, size, rank, lo + first, lo + last)
            )
            return
        self._add(shared, lo, hi, 0, 1)
        self._meet(shared)
        if self._between is not None:
            self._between.all_reduce(shared.rows[0, :length].view(self._scratch.dtype))
        self._meet(shared)
        if rank:
            copy_row(shared.rows, 0, rank, 0, length)

    def _is_near(self, length: int) -> bool:
        """Whether a buffer is summed in two levels: long enough for two more meetings."""
        return self._hoods is not None and length >= _LONG

    def _sum_near(self, shared: SharedRows, length: int) -> None:
        if self._share is None or self._share[0] != length:
            share = share_of(self._local.rank, self._hoods, length)
            self._share = (length, share, *(np.array(ranks, np.int64) for ranks in (share.near, share.peers)))
        _, share, near, peers = self._share
        rows, own = shared.rows.view(self._scratch.dtype), self._own_row
        add_chosen(rows, near, own, *share.part, self._scratch)
        self._meet(shared)
        add_chosen(rows, peers, peers, *share.piece, self._scratch)
        self._meet(shared)
        add_chosen(rows, own, near, *share.part, self._scratch)

    def _copy_parts(self, shared: SharedRows, length: int) -> None:
        rank, size = self._local.rank, self._local.size
        bounds = part_bounds(length, size)
        for other in range(size):
            if other != rank:
                copy_row(shared.rows, other, rank, bounds[other], bounds[other + 1])

    def warm_up(self, dtype: Any = np.float32) -> None:
        """Compile the kernels, or load them from the cache."""
        rows, flags = np.zeros((2, 16), np.float32), np.zeros(LINE, np.int64)
        meet(flags, 0, 1, 1, self._spins)
        copy_row(rows, 0, 1, 0, 16)
        spread_row(rows, 2, 0, 0, 16)
        rows, scratch = rows.view(dtype), np.zeros(BLOCK, dtype)
        sum_rows(rows, flags, 0, 1, 2, self._spins, 0, 16, scratch, 0)
        add_rows(rows, 2, 0, 16, 0, 2, scratch)
        if self._hoods is not None:
            add_chosen(rows, np.arange(2), np.arange(2), 0, 16, scratch)
        add_into(rows[0], rows[1])
