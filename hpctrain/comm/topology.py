"""Which memory is near to which ranks of a node: NUMA nodes, read from /sys, and the order of sums that follows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.comm.schedule import part_bounds

_NODES = Path("/sys/devices/system/node")
Place = int | None  # a NUMA node; None where a rank may run on several, or it is not known


def cpus_of(text: str) -> set[int]:
    """Return the processors of a list as Linux writes it: "0-3,8" is {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def place_of(cpus: Iterable[int], folder: Path = _NODES) -> Place:
    """Return the NUMA node that holds all these processors, None where none does or the system does not say."""
    wanted = set(cpus)
    try:
        for path in folder.glob("node[0-9]*"):
            if wanted <= cpus_of((path / "cpulist").read_text()):
                return int(path.name.removeprefix("node"))
    except (OSError, ValueError):
        return None
    return None


def own_place() -> Place:
    """Return the NUMA node that this process is bound to, None where it is bound to none."""
    return place_of(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def neighbourhoods(places: Sequence[Place]) -> tuple[tuple[int, ...], ...] | None:
    """Return the ranks of each NUMA node, given each rank's; None where a sum in two levels would be of no use.

    That is: where there is one NUMA node, or one rank of each, where they hold different numbers of ranks, or where the
    place of a rank is not known.
    """
    found: dict[Place, list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(place, []).append(rank)
    sizes = {len(ranks) for ranks in found.values()}
    if None in found or len(found) == 1 or len(sizes) > 1 or sizes == {1}:
        return None
    return tuple(tuple(ranks) for ranks in found.values())


@dataclass(frozen=True)
class Share:
    """What one rank does in a sum in two levels.

    near   the ranks of its neighbourhood: of their rows it adds `part` into its own row, and gives it back at the end
    peers  the ranks with its place in their neighbourhoods, which have added the same part: of their rows it adds
           `piece`, a range of that part, into all of them
    """

    near: tuple[int, ...]
    part: tuple[int, int]
    peers: tuple[int, ...]
    piece: tuple[int, int]


def share_of(rank: int, hoods: Sequence[Sequence[int]], length: int) -> Share:
    """Return a rank's share of the sum of `length` elements over ranks that live in these neighbourhoods."""
    near = next(tuple(ranks) for ranks in hoods if rank in ranks)
    peers = tuple(ranks[near.index(rank)] for ranks in hoods)
    parts = part_bounds(length, len(near))
    lo, hi = parts[near.index(rank)], parts[near.index(rank) + 1]
    pieces = part_bounds(hi - lo, len(peers))
    place = peers.index(rank)
    return Share(near, (lo, hi), peers, (lo + pieces[place], lo + pieces[place + 1]))
