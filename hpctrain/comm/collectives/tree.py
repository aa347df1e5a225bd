"""`TreeCollective`: everything to rank 0 along a binomial tree, and back."""

from __future__ import annotations

from hpctrain.comm.collectives.scheduled import ScheduledCollective
from hpctrain.comm.executor import scratch_bytes
from hpctrain.comm.schedules import SUMMING


class TreeCollective(ScheduledCollective):
    """2 log2 P messages one after another, each of the whole buffer: the quickest for short ones."""

    hops_summing = SUMMING["tree"]

    @staticmethod
    def scratch_bytes(length: int, size: int, nodes: int = 1) -> int:
        """Return the bytes of the chunks that come in to be added."""
        return scratch_bytes(length, (size - 1).bit_length())
