"""`DoubleTreeCollective`: each half of the buffer up and down a binary tree of its own."""

from __future__ import annotations

from hpctrain.comm.collectives.scheduled import ScheduledCollective
from hpctrain.comm.executor import scratch_bytes
from hpctrain.comm.schedules import SUMMING, double_tree


class DoubleTreeCollective(ScheduledCollective):
    """About 4 log2 P messages of an eighth of the buffer, with every rank busy: for many ranks and medium lengths."""

    hops_summing = SUMMING["double_tree"]

    @staticmethod
    def scratch_bytes(length: int, size: int, nodes: int = 1) -> int:
        """Return the bytes of the chunks that come in to be added, from two children in each tree at most."""
        if size == 1:
            return 0
        transfers = [stop - start for tree in (0, 1) for start, stop in double_tree.chunks(tree, size)]
        return scratch_bytes(max(transfers) * -(-length // size), 2 * len(transfers))
