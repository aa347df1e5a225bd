"""`TreeCollective`: everything to rank 0 along a binomial tree, and back."""

from __future__ import annotations

from hpctrain.comm.collectives.scheduled import ScheduledCollective
from hpctrain.comm.schedules import tree
from hpctrain.memory import taken_bytes


class TreeCollective(ScheduledCollective):
    """2 log2 P messages one after another, each of the whole buffer: the quickest for short ones."""

    hops_summing = (tree.reduce, tree.broadcast)

    @staticmethod
    def scratch_bytes(length: int, size: int) -> int:
        """Return the bytes of a second buffer, which comes in to be added."""
        return taken_bytes(4 * length) if size > 1 else 0
