"""Recursive halving and doubling: the least bytes in the fewest hops for a power of two ranks, nearly so for others.

Rabenseifner, "Optimization of collective reduction operations", 2004.  With P = 2^k + r ranks, rank 2i gives its buffer
to rank 2i + 1 for each i < r, and gets its part back at the end.  The 2^k ranks that are left, the *cores*, halve: each
exchanges half of what it is responsible for with a partner, then a half of that half, until it holds its own part (and
that of the rank it stands for).  Doubling is the same backwards.  The order of the additions is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.comm.schedule import Hop, Parts


def reduce_scatter(rank: int, size: int) -> Iterator[Hop]:
    """Yield the hops after which part r of rank r is the sum over all ranks."""
    cores = _Cores(size)
    everything = (0, size)
    if cores.is_folded(rank):
        yield Hop(rank + 1, None, everything, None, combine=True)
        yield Hop(None, rank + 1, None, (rank, rank + 1), combine=False)
        return
    if cores.stands_for_another(rank):
        yield Hop(None, rank - 1, None, everything, combine=True)
    core = cores.number(rank)
    for distance, block in cores.halvings(core):
        kept, given = _halves(core, distance, block)
        partner = cores.rank(core ^ distance)
        yield Hop(partner, partner, cores.parts(given), cores.parts(kept), combine=True)
    if cores.stands_for_another(rank):
        yield Hop(rank - 1, None, (rank - 1, rank), None, combine=False)


def all_gather(rank: int, size: int) -> Iterator[Hop]:
    """Yield the hops that bring part r of every rank r to all."""
    cores = _Cores(size)
    if cores.is_folded(rank):
        yield Hop(rank + 1, None, (rank, rank + 1), None, combine=False)
        yield Hop(None, rank + 1, None, (0, size), combine=False)
        return
    if cores.stands_for_another(rank):
        yield Hop(None, rank - 1, None, (rank - 1, rank), combine=False)
    core = cores.number(rank)
    for distance, block in reversed(list(cores.halvings(core))):
        own, other = _halves(core, distance, block)
        partner = cores.rank(core ^ distance)
        yield Hop(partner, partner, cores.parts(own), cores.parts(other), combine=False)
    if cores.stands_for_another(rank):
        yield Hop(rank - 1, None, (0, size), None, combine=False)


class _Cores:
    """The 2^k ranks that halve and double; core c is rank 2c + 1 for c < r, with r = size - 2^k, else rank c + r."""

    def __init__(self, size: int) -> None:
        self.count = 1 << (size.bit_length() - 1)
        self.folded = size - self.count

    def is_folded(self, rank: int) -> bool:
        """Whether a rank gives its buffer to the next one."""
        return rank < 2 * self.folded and rank % 2 == 0

    def stands_for_another(self, rank: int) -> bool:
        """Whether the rank before gives its buffer to this one."""
        return rank < 2 * self.folded and rank % 2 == 1

    def number(self, rank: int) -> int:
        """Return the core that a rank is, or is folded into."""
        return rank // 2 if rank < 2 * self.folded else rank - self.folded

    def rank(self, core: int) -> int:
        """Return the rank that a core is."""
        return 2 * core + 1 if core < self.folded else core + self.folded

    def parts(self, cores: Parts) -> Parts:
        """Return the parts of a range of cores, those of the ranks that they stand for included."""
        lo, hi = (core + min(core, self.folded) for core in cores)
        return lo, hi

    def halvings(self, core: int) -> Iterator[tuple[int, Parts]]:
        """Yield the partner's distance and the cores among which a core is, from all of them to two."""
        distance = self.count // 2
        while distance:
            lo = core // (2 * distance) * (2 * distance)
            yield distance, (lo, lo + 2 * distance)
            distance //= 2


def _halves(core: int, distance: int, block: Parts) -> tuple[Parts, Parts]:
    """Return the half of a block of cores that a core is in, and the other."""
    lo, hi = block
    lower, upper = (lo, lo + distance), (lo + distance, hi)
    return (upper, lower) if core & distance else (lower, upper)
