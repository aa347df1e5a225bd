"""What schedules are made of: the hops by which ranks combine a buffer, as pure data.  `schedules/` has them.

An algorithm is a function `(rank, size) -> iterable of Hop`.  `comm.executor` runs the hops, the unit tests simulate
them, and a cost model can price them.  Nothing here knows MPI, arrays or bytes.

A buffer of any length is cut into `size` parts, part r belonging to rank r; a buffer shorter than that has empty parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
