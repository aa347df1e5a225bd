"""What `collective = "auto"` comes to: in a node a fixed rule, between nodes a short measurement.

The cost model says which schedules are worth trying, and in chunks of what size; those, MPI's own and the window then
sum the real buffer in turn, and the quickest is taken.  Rank 0 keeps the times, so that a cluster is measured once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from pydantic import Field, field_validator

from hpctrain.comm import probe
from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.group import Group
from hpctrain.comm.schedules import SUMMING, ring
from hpctrain.comm.shared_memory import shared_rows
from hpctrain.errors import unknown_name
from hpctrain.kernels.jit import compiling
from hpctrain.options import Part
from hpctrain.plan.cost import on_ranks, price, programs
from hpctrain.plan.machine import Link, Machine
from hpctrain.strategies.known_clusters import Candidate, KnownCluster

NATIVE, WINDOW = "native", "window"
_CHUNKS = (32 << 10, 128 << 10, 512 << 10)  # bytes
_TRIED = 2  # schedules that are tried, the cheapest by the cost model
_MOST_HOPS = 20_000  # of a schedule, over all ranks: more take too long to play through, and nobody would take it
_MOST_PRICED = 1 << 24  # elements: the order does not change beyond
_TRIAL_BYTES = 16 << 20  # are summed at most: what longer buffers take follows from that
_TRIAL_S = 0.08  # about what one round over all that are tried may take
_ROUNDS = 3, 15
_WORTH_CHECKING_S, _SAME = 1e-3, 2.0  # what was kept is measured anew where a trial takes twice as long, or half


class Choice(Part):
    """What "auto" came to; part of a run's resolved job, so that the run goes on with it.

    chunk_bytes  of a message at most; 0: as the collective takes it by itself
    leader       whether one rank of each node sends everything (of the window); else each its part
    bucket       bytes of the least that leaves at a time during the backward pass; 0: not measured
    ranks        where the ranks were: "4 x 2" for four nodes of two ranks each; on other nodes it is chosen anew
    """

    collective: str
    chunk_bytes: int = Field(0, ge=0)
    leader: bool = False
    bucket: int = Field(0, ge=0)
    ranks: str

    @field_validator("collective")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in COLLECTIVES:
            raise ValueError(unknown_name(COLLECTIVES.kind, name, list(COLLECTIVES)).message)
        return name

    def made(self, group: Group) -> Collective:
        """Return the collective for a group."""
        return _made(Candidate(self.collective, self.chunk_bytes, self.leader), group)


def choose(group: Group, buffer: np.ndarray, length: int, before: Choice | None) -> tuple[Choice, list[str]]:
    """Return the choice for a float32 buffer, of which `length` elements are summed at a time, and what to say of it.

    buffer  where it will be summed; zeros afterwards
    before  what the run began with, if it is resumed; kept where the ranks are as they were

    Of a group of two ranks or more.  Collective; the choice is the same on every rank.
    """
    nodes = group.all_gather_objects(group.node)
    ranks, said = ranks_text(nodes), []
    window = all(group.all_gather_objects(group.local_size == 1 or shared_rows(buffer) is not None))
    if before is not None:
        if before.ranks == ranks and (before.collective != WINDOW or window):
            return before, []
        moved = before.ranks != ranks
        reason = f"ranks were {before.ranks}, are {ranks}" if moved else "too little shared memory for the window"
        said.append(f"the collective is chosen anew ({reason}): sums agree to rounding, not bit for bit")
    if group.nodes == 1 and window:
        return Choice(collective=WINDOW, ranks=ranks), said
    started = time.perf_counter()
    cluster = KnownCluster(group, ranks)
    length = max(1, min(length, len(buffer)))
    times = cluster.times(length)
    when = "as measured before on this cluster"
    if not times or not _is_so_still(group, buffer, length, _usable(times, window)[0]):
        cluster.machine = cluster.machine if not times else None
        times = _measured(group, cluster, buffer, length, nodes, window)
        cluster.keep(length, times)
        when = f"measured in {time.perf_counter() - started:.1f} s"
    (seconds, taken), *others = _usable(times, window)
    rest = ", ".join(f"{_words(other)} {_ms(theirs)}" for theirs, other in others)
    size = f"{length * 4 / 1e6:,.3g} MB"
    said.append(f"collective {_words(taken)}: {_ms(seconds)} for {size} ({rest}; {when})")
    return Choice(**taken._asdict(), ranks=ranks), said


def _usable(times: dict[Candidate, float], window: bool) -> list[tuple[float, Candidate]]:
    """Return what can be taken, the quickest first."""
    return sorted((seconds, tried) for tried, seconds in times.items() if window or tried.collective != WINDOW)


def _is_so_still(group: Group, buffer: np.ndarray, length: int, kept: tuple[float, Candidate]) -> bool:
    """Whether a candidate takes about as long as was kept of it: links may be others, or have been busy then.

    What takes less than a millisecond is believed: it is too short to tell, and matters little.  Collective.
    """
    seconds, candidate = kept
    if seconds < _WORTH_CHECKING_S:
        return True
    part = buffer[: min(length, _TRIAL_BYTES // 4)]
    collective = _made(candidate, group)
    _warm_up(group, [collective])
    buffer[:] = 0
    now = probe.call_times(group, [_call(collective, part)], _ROUNDS[0])[0] * length / len(part)
    return 1 / _SAME < now / seconds < _SAME


def ranks_text(nodes: Sequence[int]) -> str:
    """Return where ranks are, given each one's node: "4 x 2", "1 x 3 + 2 x 2", or "0 1 0 1" where they take turns."""
    sizes = [len(list(ranks)) for _, ranks in groupby(nodes)]
    if len(sizes) > len(set(nodes)):
        return " ".join(map(str, nodes))
    return " + ".join(f"{len(list(same))} x {size}" for size, same in groupby(sizes))


def worth_trying(machine: Machine, nodes: Sequence[int], length: int) -> list[tuple[float, Candidate]]:
    """Return the schedules that cost least by the cost model, each in its best chunks, cheapest first, with seconds."""
    length, found = min(length, _MOST_PRICED), []
    for name, algorithms in SUMMING.items():
        hops = sum(1 for algorithm in algorithms for _ in algorithm(0, len(nodes)))
        if hops * len(nodes) <= _MOST_HOPS:
            prices = {
                chunk: price(programs(algorithms, len(nodes), length, chunk), nodes, machine) for chunk in _CHUNKS
            }
            chunk = _largest_of_the_best(prices)
            found.append((prices[chunk], Candidate(name, chunk)))
    return sorted(found)[:_TRIED]


def _largest_of_the_best(prices: dict[int, float]) -> int:
    """Return the largest chunk that costs hardly more than the best: fewer messages take less of the cores."""
    return max(chunk for chunk, seconds in prices.items() if seconds <= 1.02 * min(prices.values()))


def window_chunk(machine: Machine, nodes: Sequence[int], length: int) -> int:
    """Return the bytes of chunks with which the window's ring between nodes costs least; 0: by itself.

    Where nodes hold as many ranks each, those with one place form a ring for their part of the buffer.
    """
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    places = list(zip(*members.values(), strict=False))  # of uneven nodes the first ranks' rings, which is near enough
    length = min(length, _MOST_PRICED) // len(places)
    if 2 * (len(members) - 1) * len(nodes) > _MOST_HOPS or not length:
        return 0

    def cost(chunk: int) -> float:
        parts = programs((ring.reduce_scatter, ring.all_gather), len(members), length, chunk)
        placed = {rank: program for ranks in places for rank, program in on_ranks(parts, ranks).items()}
        return price([placed.get(rank, ([], [])) for rank in range(len(nodes))], nodes, machine)

    return _largest_of_the_best({chunk: cost(chunk) for chunk in _CHUNKS})


def measure_machine(group: Group, nodes: Sequence[int]) -> Machine:
    """Return how quick links and additions are, the same on every rank.  Collective; kernels must be warm."""
    links: dict[str, Link | None] = {}
    message_s = 0.0
    for kind, same_node in (("inside", True), ("between", False)):
        partners = probe.partners(group, nodes, same_node)
        links[kind] = None
        if any(partner is not None for partner in partners):
            *speeds, message_s = probe.link_speeds(group, partners[group.rank])
            links[kind] = Link(*speeds)
    add_byte_s = max(group.all_gather_objects(probe.add_seconds()))
    alone_s = max((link.seconds[0] for link in links.values() if link), default=0.0)
    wake_s = max(0.0, probe.turn_seconds(group) - alone_s) if group.size > 1 else 0.0
    return Machine(**links, add_byte_s=add_byte_s, message_s=message_s, wake_s=wake_s)


def _measured(
    group: Group, cluster: KnownCluster, buffer: np.ndarray, length: int, nodes: Sequence[int], window: bool
) -> dict[Candidate, float]:
    """Return the seconds of each candidate that was tried, for `length` elements."""
    # All schedules share their kernels.
    _warm_up(group, [COLLECTIVES.get(name)(group) for name in ("ring", *([WINDOW] if window else []))])
    if cluster.machine is None:
        cluster.machine = measure_machine(group, nodes)
    tried, round_s = group.broadcast_object(
        _tried(cluster.machine, nodes, length, window) if group.rank == 0 else None, patient=True
    )
    cut = int(min(length, _TRIAL_BYTES // 4, max(1024, length * _TRIAL_S / round_s)))
    rounds = int(np.clip(_TRIAL_S * length / cut / round_s, *_ROUNDS))
    buffer[:] = 0  # sums of sums would grow without end
    part = buffer[:cut]
    calls = [_call(_made(candidate, group), part) for candidate in tried]
    times = probe.call_times(group, calls, rounds)
    return {candidate: seconds * length / cut for candidate, seconds in zip(tried, times, strict=True)}


def _tried(machine: Machine, nodes: Sequence[int], length: int, window: bool) -> tuple[list[Candidate], float]:
    """Return what is to be tried, and about how many seconds one round over all of them takes."""
    best = worth_trying(machine, nodes, length)
    tried = [Candidate(NATIVE)]
    if window:
        tried += dict.fromkeys([Candidate(WINDOW), Candidate(WINDOW, window_chunk(machine, nodes, length))])
        if {nodes.count(node) for node in nodes} == {len(nodes) // len(set(nodes))} and len(nodes) > len(set(nodes)):
            tried.append(Candidate(WINDOW, leader=True))  # uneven nodes have no other way
    tried += [candidate for _, candidate in best]
    once = best[0][0] * length / min(length, _MOST_PRICED) if best else machine.link(same_node=False).time(8 * length)
    return tried, max(len(tried) * once, 1e-6)


def _made(candidate: Candidate, group: Group) -> Collective:
    options = {name: value for name, value in candidate._asdict().items() if name != "collective" and value}
    return COLLECTIVES.get(candidate.collective)(group, **options)


def _call(collective: Collective, buffer: np.ndarray):  # noqa: ANN202
    return lambda: collective.all_reduce(buffer)


def _warm_up(group: Group, collectives: Sequence[Collective]) -> None:
    """Compile what is measured, one rank a node first."""
    for turn in (True, False):
        if (group.local_rank == 0) == turn:
            with compiling():
                for collective in collectives:
                    collective.warm_up()
        group.barrier(patient=True)


def _words(candidate: Candidate) -> str:
    chunk = candidate.chunk_bytes
    in_chunks = f" in {chunk >> 10} KB chunks" if chunk else ""
    return candidate.collective + in_chunks + (" by one rank a node" if candidate.leader else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
