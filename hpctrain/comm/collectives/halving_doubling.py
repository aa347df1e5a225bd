"""`HalvingDoublingCollective`: reduce-scatter by recursive halving, all-gather by recursive doubling."""

from __future__ import annotations

from hpctrain.comm.collectives.scheduled import ScheduledCollective
from hpctrain.comm.schedules import halving_doubling
from hpctrain.memory import taken_bytes


class HalvingDoublingCollective(ScheduledCollective):
    """The ring's bytes in 2 log2 P messages where P is a power of two; else some ranks send all, two more times."""

    hops_summing = (halving_doubling.reduce_scatter, halving_doubling.all_gather)

    @staticmethod
    def scratch_bytes(length: int, size: int) -> int:
        """Return the bytes of the longest piece that comes in to be added: half the buffer, or all of it."""
        is_power = size & (size - 1) == 0
        return taken_bytes(4 * (-(-length // 2) if is_power else length)) if size > 1 else 0
