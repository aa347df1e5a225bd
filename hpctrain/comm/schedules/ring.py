"""The ring: the least bytes for any number of ranks, in as many hops as there are ranks."""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.comm.schedule import Hop


def reduce_scatter(rank: int, size: int) -> Iterator[Hop]:
    """Yield the size - 1 hops after which part r of rank r is the sum over all ranks.

    Part p starts at rank p + 1 and goes once round the ring; each rank adds its own share and passes it on, so each
    rank sends (size - 1) / size of the buffer, the least possible (Patarasuk and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", 2009).  The order of the additions is that of the ring, whoever is late.
    """
    for hop in range(size - 1):
        yield _ring_hop(rank, size, rank - 1 - hop, combine=True)


def all_gather(rank: int, size: int) -> Iterator[Hop]:
    """Yield the size - 1 hops that bring part r of every rank r to all: each part goes once round the ring."""
    for hop in range(size - 1):
        yield _ring_hop(rank, size, rank - hop, combine=False)


def _ring_hop(rank: int, size: int, part: int, combine: bool) -> Hop:
    """Make the hop that passes a part on to the next rank; the part before it comes in from the previous rank."""
    send, recv = part % size, (part - 1) % size
    return Hop((rank + 1) % size, (rank - 1) % size, (send, send + 1), (recv, recv + 1), combine)
