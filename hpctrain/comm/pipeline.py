"""From a rank's hops to messages: each transfer cut into chunks, and what each chunk has to wait for.  Pure arithmetic.

A hop as a whole begins when the hop before it is complete.  A chunk need not wait so long: it may leave as soon as what
came in before has been added to *it*, so that the next transfer is on its way while the rest of this one still comes.
What is kept of the order of the hops is what the result depends on: the additions to a number stay in their order, so
the bits do not depend on the chunks.

Every rank receives its chunks, and sends its chunks, in the order of its hops.  So "what came in before" is a count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpctrain.comm.schedule import Hop, Parts

Range = tuple[int, int]  # first element and the one after the last
LINE = 16  # floats; chunks begin on multiples of them, from their transfer's start


@dataclass(frozen=True, slots=True)
class Send:
    """One message out: elements lo..hi, not before `after` receives are complete."""

    rank: int
    lo: int
    hi: int
    after: int


@dataclass(frozen=True, slots=True)
class Receive:
    """One message in, for elements lo..hi.

    combine     it is added to what is there; else it takes its place
    after       so many receives must be complete before anything is written to lo..hi
    after_sent  likewise sends
    finished    ranges of lo..hi for which nothing comes in later: these elements are then what they will be
    """

    rank: int
    lo: int
    hi: int
    combine: bool
    after: int
    after_sent: int
    finished: tuple[Range, ...]


def pipeline(hops: Iterable[Hop], bounds: Sequence[int], chunk: int) -> tuple[list[Send], list[Receive]]:
    """Return a rank's sends and receives, each in order, for a buffer whose part p is bounds[p]..bounds[p + 1].

    chunk  elements of a message, at most; rounded up to a multiple of 16.

    Both ends of a transfer cut it alike, and leave it out where it is empty: they know all parts' lengths.
    """
    chunk = -(-chunk // LINE) * LINE
    hops = tuple(hops)
    coming = [_span(hop.recv, bounds) for hop in hops]
    sends: list[Send] = []
    receives: list[Receive] = []
    out, into = _Messages(), _Messages()
    for number, hop in enumerate(hops):
        # Both begin at once: no part of a hop is in both, so neither waits for the other.
        sent, received = _chunks(_span(hop.send, bounds), chunk), _chunks(coming[number], chunk)
        later = [span for span in coming[number + 1 :] if _meet(span, coming[number])]
        sends += (Send(hop.send_to, lo, hi, into.before(lo, hi)) for lo, hi in sent)
        for lo, hi in received:
            after, after_sent = into.before(lo, hi), out.before(lo, hi)
            finished = _without((lo, hi), later)
            receives.append(Receive(hop.recv_from, lo, hi, hop.combine, after, after_sent, finished))
        out.add(sent)
        into.add(received)
    return sends, receives


class _Messages:
    """The messages of the hops so far, in one direction."""

    def __init__(self) -> None:
        self.count = 0
        self._transfers: list[tuple[int, list[int]]] = []  # the first chunk's number; where chunks begin, and the end

    def add(self, chunks: list[Range]) -> None:
        """Note the chunks of one transfer, which lie one behind the other."""
        if chunks:
            self._transfers.append((self.count, [chunks[0][0], *(hi for _, hi in chunks)]))
            self.count += len(chunks)

    def before(self, lo: int, hi: int) -> int:
        """Return how many messages must be over so that none for an element of lo..hi is still to come."""
        for first, cuts in reversed(self._transfers):
            if _meet((cuts[0], cuts[-1]), (lo, hi)):
                return first + min(bisect_left(cuts, hi), len(cuts) - 1)
        return 0


def _meet(one: Range, other: Range) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _span(parts: Parts | None, bounds: Sequence[int]) -> Range:
    """Return the elements of a range of parts; none at all where nothing is to be moved."""
    return (0, 0) if parts is None else (bounds[parts[0]], bounds[parts[1]])


def _chunks(span: Range, chunk: int) -> list[Range]:
    """Cut a range of elements into near-even pieces of whole cache lines."""
    lo, hi = span
    if hi == lo:
        return []
    pieces = -(-(hi - lo) // chunk)
    step = -(-(hi - lo) // (pieces * LINE)) * LINE
    return [(start, min(start + step, hi)) for start in range(lo, hi, step)]


def _without(span: Range, others: Iterable[Range]) -> tuple[Range, ...]:
    """Return what is left of a range when others are taken out of it."""
    left = [span]
    for start, stop in others:
        cut = (piece for lo, hi in left for piece in ((lo, min(hi, start)), (max(lo, stop), hi)))
        left = [(lo, hi) for lo, hi in cut if lo < hi]
    return tuple(left)
