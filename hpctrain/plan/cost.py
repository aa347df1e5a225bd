"""What a schedule costs: its messages, the same that run, played through with a clock for each rank and for each wire.

A message leaves when what its chunk waits for is done on its sender (`comm.pipeline` says what that is), and passes
when both nodes' wires are free: a node has one for each direction, which its ranks share.  In a node it is the sender
and the receiver who carry one message at a time.
A rank takes what comes in one after the other, and adds it up; each message takes some of its sender's and receiver's
time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from hpctrain.comm.pipeline import Receive, Send, pipeline
from hpctrain.comm.schedule import Algorithm, part_bounds
from hpctrain.plan.machine import Machine

Program = tuple[list[Send], list[Receive]]  # of one rank, in order


def programs(
    algorithms: Sequence[Algorithm], size: int, length: int, chunk_bytes: int, itemsize: int = 4
) -> list[Program]:
    """Return each rank's messages when these schedules run one after the other on `length` elements."""
    bounds = part_bounds(length, size)
    return [
        pipeline(
            chain.from_iterable(algorithm(rank, size) for algorithm in algorithms), bounds, chunk_bytes // itemsize
        )
        for rank in range(size)
    ]


def on_ranks(parts: Sequence[Program], ranks: Sequence[int]) -> dict[int, Program]:
    """Return programs of ranks 0, 1, 2, ... as those of `ranks`: a schedule among some ranks of a larger world."""
    return {
        ranks[number]: (
            [replace(send, rank=ranks[send.rank]) for send in sends],
            [replace(receive, rank=ranks[receive.rank]) for receive in receives],
        )
        for number, (sends, receives) in enumerate(parts)
    }


def price(parts: Sequence[Program], nodes: Sequence[int], machine: Machine, itemsize: int = 4) -> float:
    """Return the seconds until the last rank has all its messages; `nodes[r]` is the node of rank r."""
    play = _Play(parts, nodes, machine, itemsize)
    for rank in range(len(parts)):
        play.send_what_can_leave(rank)
    while play.leaving:
        when, _, source, to, size = heapq.heappop(play.leaving)
        play.pass_on(when, source, to, size)
    if any(play.sends) or any(play.receives):
        raise ValueError("the ranks wait for each other for ever: these messages do not fit together")
    return max(play.clock, default=0.0)


class _Play:
    """The state of the clocks while messages are played through."""

    def __init__(self, parts: Sequence[Program], nodes: Sequence[int], machine: Machine, itemsize: int) -> None:
        self.nodes, self.machine, self.itemsize = nodes, machine, itemsize
        self.clock = [0.0] * len(parts)
        self.sends = [deque(sends) for sends, _ in parts]
        self.receives = [deque(receives) for _, receives in parts]
        self.over = [0] * len(parts)  # receives
        self.leaving: list[tuple[float, int, int, int, int]] = []  # (when, number, from, to, bytes)
        self.begun = 0  # sends of all ranks: those that begin at the same time leave in the order of their programs
        self.arrived: dict[tuple[int, int], deque[tuple[float, int]]] = defaultdict(deque)  # (from, to) -> when, bytes
        self.out_free: dict[tuple[str, int], float] = defaultdict(float)  # of a node's wire, or in it of a rank
        self.in_free: dict[tuple[str, int], float] = defaultdict(float)

    def send_what_can_leave(self, rank: int) -> None:
        """Let a rank begin the sends that wait for no more than has come in."""
        sends = self.sends[rank]
        while sends and sends[0].after <= self.over[rank]:
            send = sends.popleft()
            size = (send.hi - send.lo) * self.itemsize
            self.clock[rank] += self.machine.message_s / 2
            heapq.heappush(self.leaving, (self.clock[rank], self.begun, rank, send.rank, size))
            self.begun += 1

    def pass_on(self, when: float, source: int, to: int, size: int) -> None:
        """Let a message pass, and its receiver go on."""
        inside = self.nodes[source] == self.nodes[to]
        link = self.machine.link(inside)
        out, into = ("rank", source), ("rank", to)
        if not inside:
            out, into = ("node", self.nodes[source]), ("node", self.nodes[to])
        when = max(when, self.out_free[out], self.in_free[into])
        self.out_free[out] = self.in_free[into] = when + link.busy(size)
        end = when + link.time(size)
        self.arrived[source, to].append((end, size))
        self.take_what_came(to)

    def take_what_came(self, rank: int) -> None:
        """Let a rank take, in its order, what has arrived, and send on what may leave then."""
        receives = self.receives[rank]
        while receives and (come := self.arrived[receives[0].rank, rank]):
            receive, (end, size) = receives.popleft(), come.popleft()
            if size != (receive.hi - receive.lo) * self.itemsize:
                raise ValueError("both ends must mean a message of the same length")
            self.clock[rank] = max(self.clock[rank], end) + self.machine.message_s / 2
            if receive.combine:
                self.clock[rank] += size * self.machine.add_byte_s
            self.over[rank] += 1
            self.send_what_can_leave(rank)
