"""Schedules: the hops by which ranks combine a buffer, as pure data.

An algorithm is a function `(rank, size) -> iterable of Hop`.  `comm.executor` runs the hops, the unit tests simulate
them, and a cost model can price them.  Nothing here knows MPI, arrays or bytes.

A buffer of any length is cut into `size` parts, part r belonging to rank r; a buffer shorter than that has empty parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

Parts = tuple[int, int]  # first part and the one after the last


@dataclass(frozen=True, slots=True)
class Hop:
    """What one rank does in one step: send some parts to a rank and, at the same time, receive some from another.

    `combine` says whether what arrives is added to the parts here or replaces them.  The two transfers go on together;
    the next hop begins when both are complete.  So no part may be in both: it would change while it is being sent.
    A transfer that does not take place has None for its rank and parts.
    """

    send_to: int | None
    recv_from: int | None
    send: Parts | None
    recv: Parts | None
    combine: bool


Algorithm = Callable[[int, int], Iterable[Hop]]


def part_bounds(length: int, parts: int) -> list[int]:
    """Cut `length` elements into near-even parts (sizes differ by one at most, the longer ones first).

    Returns parts + 1 offsets: part p is [bounds[p], bounds[p + 1]).
    """
    size, longer = divmod(length, parts)
    return [part * size + min(part, longer) for part in range(parts + 1)]


def ring_reduce_scatter(rank: int, size: int) -> Iterator[Hop]:
    """Yield the size - 1 hops after which part r of rank r is the sum over all ranks.

    Part p starts at rank p + 1 and goes once round the ring; each rank adds its own share and passes it on, so each
    rank sends (size - 1) / size of the buffer, the least possible (Patarasuk and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", 2009).  The order of the additions is that of the ring, whoever is late.
    """
    for hop in range(size - 1):
        yield _ring_hop(rank, size, rank - 1 - hop, combine=True)


def ring_all_gather(rank: int, size: int) -> Iterator[Hop]:
    """Yield the size - 1 hops that bring part r of every rank r to all: each part goes once round the ring."""
    for hop in range(size - 1):
        yield _ring_hop(rank, size, rank - hop, combine=False)


def _ring_hop(rank: int, size: int, part: int, combine: bool) -> Hop:
    """Make the hop that passes a part on to the next rank; the part before it comes in from the previous rank."""
    send, recv = part % size, (part - 1) % size
    return Hop((rank + 1) % size, (rank - 1) % size, (send, send + 1), (recv, recv + 1), combine)
