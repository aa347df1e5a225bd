"""`HalvingDoublingCollective`: reduce-scatter by recursive halving, all-gather by recursive doubling."""

from __future__ import annotations

from hpctrain.comm.collectives.scheduled import ScheduledCollective
from hpctrain.comm.executor import scratch_bytes
from hpctrain.comm.schedules import SUMMING


class HalvingDoublingCollective(ScheduledCollective):
    """The ring's bytes in 2 log2 P messages where P is a power of two; else some ranks send all, two more times."""

    hops_summing = SUMMING["halving_doubling"]

    @staticmethod
    def scratch_bytes(length: int, size: int, nodes: int = 1) -> int:
        """Return the bytes of the chunks that come in to be added: of half the buffer, or of all of it."""
        is_power = size & (size - 1) == 0
        return scratch_bytes(-(-length // 2) if is_power else length, (size - 1).bit_length())
