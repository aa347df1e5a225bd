"""The binomial tree: the whole buffer to rank 0 and back, in the fewest hops.  For short messages."""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.comm.schedule import Hop


def reduce(rank: int, size: int) -> Iterator[Hop]:
    """Yield the hops after which rank 0 has the sum over all ranks: about log2(size) of them.

    In round d = 1, 2, 4, ... rank r with r mod 2d = d gives what it has added up to rank r - d.
    """
    whole, distance = (0, size), 1
    while distance < size:
        if rank & distance:
            yield Hop(rank - distance, None, whole, None, combine=True)
            return
        if rank + distance < size:
            yield Hop(None, rank + distance, None, whole, combine=True)
        distance *= 2


def broadcast(rank: int, size: int) -> Iterator[Hop]:
    """Yield the hops that bring rank 0's buffer to all: those of `reduce`, backwards."""
    for hop in reversed(list(reduce(rank, size))):
        yield Hop(hop.recv_from, hop.send_to, hop.recv, hop.send, combine=False)
