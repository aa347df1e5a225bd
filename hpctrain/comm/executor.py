"""`Executor`: runs the hops of a schedule on a group, on a float32 buffer in place."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.comm.schedule import Hop, Parts, part_bounds
from hpctrain.kernels.reduce import add_into

# A tag of our own: rows and messages that others exchange at the same time must not be taken for parts of a buffer.
_TAG = 1


class Executor:
    """Runs one schedule, for buffers of any length.

    What arrives to be added needs a place beside the buffer: the scratch, as long as the longest transfer.  It is made
    when a buffer longer than all before comes by, so in a training run once.
    """

    def __init__(self, group: Group, hops: Iterable[Hop]) -> None:
        self._group = group
        self._hops = tuple(hops)
        self._length = -1
        self._bounds: list[int] = []
        self._scratch = group.allocate(0)

    def run(self, buffer: np.ndarray) -> None:
        """Run all hops on a 1-D float32 buffer, in place; every rank calls it with the same length."""
        if len(buffer) != self._length:
            self._prepare(len(buffer))
        for hop in self._hops:
            self._run_hop(hop, buffer)

    def _prepare(self, length: int) -> None:
        self._length = length
        self._bounds = part_bounds(length, self._group.size)
        longest = max((self._span(hop.recv) for hop in self._hops if hop.recv and hop.combine), default=0)
        if longest > len(self._scratch):
            self._scratch = self._group.allocate(longest)

    def _span(self, parts: Parts) -> int:
        return self._bounds[parts[1]] - self._bounds[parts[0]]

    def _run_hop(self, hop: Hop, buffer: np.ndarray) -> None:
        # Both ends know all lengths, so an empty transfer is left out by both.
        receiving = sending = None
        if hop.recv is not None and self._span(hop.recv):
            here = self._view(buffer, hop.recv)
            target = self._scratch[: len(here)] if hop.combine else here
            # The receive is posted first: a message that finds its buffer waiting is not copied aside by MPI.
            receiving = self._group.receive(target, hop.recv_from, _TAG)
        if hop.send is not None and self._span(hop.send):
            sending = self._group.send(self._view(buffer, hop.send), hop.send_to, _TAG)
        if receiving is not None:
            receiving.wait()
            if hop.combine:
                add_into(here, target)
        if sending is not None:
            sending.wait()

    def _view(self, buffer: np.ndarray, parts: Parts) -> np.ndarray:
        return buffer[self._bounds[parts[0]] : self._bounds[parts[1]]]
