"""The binomial tree: the whole buffer to rank 0 and back, in the fewest hops.  For short messages."""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.comm.schedule import Hop


def reduce(rank: int, size: int) -> Iterator[Hop]:
    """Yield the hops after which rank 0 has the sum over all ranks: about log2(size) of them.

    In round d = 1, 2, 4, ... rank r with r mod 2d = d gives what it has added up to rank r - d.
    """
    for parent, child, _ in _rounds(rank, size):
        whole = (0, size)
        if parent is None:
            yield Hop(None, child, None, whole, combine=True)
        else:
            yield Hop(parent, None, whole, None, combine=True)


def gather(rank: int, size: int) -> Iterator[Hop]:
    """Yield the hops that bring part r of every rank r to rank 0: those of `reduce`, each with a branch's parts."""
    for parent, child, distance in _rounds(rank, size):
        if parent is None:
            yield Hop(None, child, None, (child, min(child + distance, size)), combine=False)
        else:
            yield Hop(parent, None, (rank, min(rank + distance, size)), None, combine=False)


def broadcast(rank: int, size: int) -> Iterator[Hop]:
    """Yield the hops that bring rank 0's buffer to all: those of `reduce`, backwards."""
    for hop in reversed(list(reduce(rank, size))):
        yield Hop(hop.recv_from, hop.send_to, hop.recv, hop.send, combine=False)


def _rounds(rank: int, size: int) -> Iterator[tuple[int | None, int | None, int]]:
    """Yield (parent, child, distance) for the rounds that a rank has part in: one of the two is there."""
    distance = 1
    while distance < size:
        if rank & distance:
            yield rank - distance, None, distance
            return
        if rank + distance < size:
            yield None, rank + distance, distance
        distance *= 2
