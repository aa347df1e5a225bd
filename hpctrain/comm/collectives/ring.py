"""`RingCollective`: reduce-scatter and all-gather round a ring of ranks."""

from __future__ import annotations

from hpctrain.comm.collectives.scheduled import ScheduledCollective
from hpctrain.comm.executor import scratch_bytes
from hpctrain.comm.schedules import SUMMING, ring


class RingCollective(ScheduledCollective):
    """Each rank sends 2 (P - 1) / P of the buffer in 2 (P - 1) messages: the least bytes, for any P and any length."""

    hops_summing = SUMMING["ring"]
    hops_scattering = staticmethod(ring.reduce_scatter)
    hops_gathering = staticmethod(ring.all_gather)

    @staticmethod
    def scratch_bytes(length: int, size: int, nodes: int = 1) -> int:
        """Return the bytes of the chunks that come in to be added, each of one part."""
        return scratch_bytes(-(-length // size), size - 1)
