"""The double binary tree: few hops, like a tree's, in which every rank sends and receives all the time.

In a binary tree half of the ranks are leaves, which send once and are then idle.  Here each half of the buffer goes up
(and down) a tree of its own, and who is an inner node of one tree is a leaf of the other.  A half goes in chunks, one
behind the other, in rounds: an edge of the trees carries a chunk every second round, the even or the odd ones, so that
no rank sends to two at a time or receives from two.  (Sanders, Speck and Traeff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", 2009.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from hpctrain.comm.schedule import Hop, Parts, part_bounds

CHUNKS = 4  # of each half, at most: more would be fewer bytes at a time, but more messages


def reduce(rank: int, size: int) -> Iterator[Hop]:
    """Yield the hops after which the trees' roots have the sum over all ranks, each of the half that its tree carries.

    The roots are rank 0 and, of two or more ranks, the last one (size even) or rank 1 (size odd).
    """
    sends: dict[int, tuple[int, Parts]] = {}
    receives: dict[int, tuple[int, Parts]] = {}
    for edge, first in _first_rounds(size).items():
        for number, parts in enumerate(chunks(edge.tree, size)):
            if rank == edge.child:
                sends[first + 2 * number] = edge.parent, parts
            elif rank == edge.parent:
                receives[first + 2 * number] = edge.child, parts
    for turn in sorted({*sends, *receives}):
        send_to, send = sends.get(turn, (None, None))
        recv_from, recv = receives.get(turn, (None, None))
        yield Hop(send_to, recv_from, send, recv, combine=True)


def broadcast(rank: int, size: int) -> Iterator[Hop]:
    """Yield the hops that bring each root's half to all: those of `reduce`, backwards."""
    for hop in reversed(list(reduce(rank, size))):
        yield Hop(hop.recv_from, hop.send_to, hop.recv, hop.send, combine=False)


def chunks(tree: int, size: int) -> list[Parts]:
    """Return the chunks that a tree (0 or 1) carries, in the order in which they go up."""
    middle = -(-size // 2)
    lo, hi = ((0, middle), (middle, size))[tree]
    bounds = part_bounds(hi - lo, min(CHUNKS, hi - lo)) if hi > lo else [0]
    return [(lo + start, lo + stop) for start, stop in zip(bounds, bounds[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class _Edge:
    """A child and its parent (ranks) in one of the trees."""

    tree: int
    child: int
    parent: int


@functools.lru_cache(maxsize=4)
def _first_rounds(size: int) -> dict[_Edge, int]:
    """Return for each edge the round of its first chunk: of the edge's colour, after that of every edge below it."""
    edges = [_Edge(tree, child, parent) for tree in (0, 1) for child, parent in _parents(tree, size).items()]
    colours = _colours(edges)
    below: dict[tuple[int, int], list[_Edge]] = {}
    for edge in edges:
        below.setdefault((edge.tree, edge.parent), []).append(edge)
    rounds: dict[_Edge, int] = {}

    def round_of(edge: _Edge) -> int:
        if edge not in rounds:
            earliest = 1 + max((round_of(lower) for lower in below.get((edge.tree, edge.child), ())), default=-1)
            rounds[edge] = earliest + (earliest + colours[edge]) % 2
        return rounds[edge]

    return {edge: round_of(edge) for edge in edges}


def _parents(tree: int, size: int) -> dict[int, int]:
    """Return the parent of each rank of a tree, but of its root.

    Both trees have one shape, over positions in which inner nodes are even and leaves odd.  In the second the positions
    are those of the first backwards, or where that would leave their parity, one further on.
    """
    if tree == 0:
        ranks = list(range(size))
    else:
        ranks = [size - 1 - position if size % 2 == 0 else (position + 1) % size for position in range(size)]
    return {ranks[child]: ranks[parent] for child, parent in _hung(1, size, 0)}


def _hung(lo: int, hi: int, parent: int) -> Iterator[tuple[int, int]]:
    """Yield (child, parent) for positions lo..hi (lo odd) as a tree under `parent`; what is left of a node is full."""
    if lo < hi:
        top = lo - 1 + (1 << ((hi - lo).bit_length() - 1))
        yield top, parent
        yield from _hung(lo, top, top)
        yield from _hung(top + 1, hi, top)


def _colours(edges: list[_Edge]) -> dict[_Edge, int]:
    """Colour the edges with 0 and 1: those that a rank sends over differ, and so do those that it receives over.

    Each rank has two of either at most, so that edges which must differ form paths and rings of even length.
    """
    meeting: dict[tuple[str, int], list[_Edge]] = {}
    for edge in edges:
        meeting.setdefault(("send", edge.child), []).append(edge)
        meeting.setdefault(("receive", edge.parent), []).append(edge)
    colours: dict[_Edge, int] = {}
    for start in edges:
        waiting = [] if start in colours else [(start, 0)]
        while waiting:
            edge, colours[edge] = waiting.pop()
            for other in (*meeting["send", edge.child], *meeting["receive", edge.parent]):
                if other not in colours:
                    waiting.append((other, 1 - colours[edge]))
    return colours
