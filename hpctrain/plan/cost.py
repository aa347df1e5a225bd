"""What a schedule costs: its messages, the same that run, played through with a clock for each rank and for each wire.

A message leaves when what its chunk waits for is done on its sender (`comm.pipeline` says what that is), passes its
sender's wire when that is free, and then, as it comes, its receiver's: a node has one wire for each direction, which
its ranks share.  In a node it is the sender and the receiver who carry one message at a time.
A rank takes what comes in one after the other, and adds it up; each message takes some of its sender's and receiver's
time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from hpctrain.comm.pipeline import Receive, Send, pipeline
from hpctrain.comm.schedule import Algorithm, part_bounds
from hpctrain.plan.machine import Link, Machine

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
    play.to_the_end()
    if any(play.sends) or any(play.receives):
        raise ValueError("the ranks wait for each other for ever: these messages do not fit together")
    return max(play.clock, default=0.0)


class _Moment(NamedTuple):
    """A message that wants to leave its sender, or (`is_out`) has begun to and wants to come in."""

    when: float
    number: int
    source: int
    to: int
    size: int
    is_out: bool


class _Play:
    """The state of the clocks while messages are played through."""

    def __init__(self, parts: Sequence[Program], nodes: Sequence[int], machine: Machine, itemsize: int) -> None:
        self.nodes, self.machine, self.itemsize = nodes, machine, itemsize
        self.clock = [0.0] * len(parts)
        self.sends = [deque(sends) for sends, _ in parts]
        self.receives = [deque(receives) for _, receives in parts]
        self.over = [0] * len(parts)  # receives
        self.under_way: list[_Moment] = []  # a heap
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
            heapq.heappush(self.under_way, _Moment(self.clock[rank], self.begun, rank, send.rank, size, is_out=False))
            self.begun += 1

    def to_the_end(self) -> None:
        """Let everything that is under way pass, in order of time."""
        while self.under_way:
            moment = heapq.heappop(self.under_way)
            (self.come_in if moment.is_out else self.go_out)(moment)

    def go_out(self, moment: _Moment) -> None:
        """Let a message have its sender's wire as soon as that is free."""
        inside = self.nodes[moment.source] == self.nodes[moment.to]
        wire = ("rank", moment.source) if inside else ("node", self.nodes[moment.source])
        begin, _ = _passes(self.out_free, wire, moment, self.machine.link(inside))
        heapq.heappush(self.under_way, moment._replace(when=begin, is_out=True))

    def come_in(self, moment: _Moment) -> None:
        """Let a message have its receiver's wire as soon as that is free, and its receiver go on."""
        inside = self.nodes[moment.source] == self.nodes[moment.to]
        wire = ("rank", moment.to) if inside else ("node", self.nodes[moment.to])
        _, end = _passes(self.in_free, wire, moment, self.machine.link(inside))
        self.arrived[moment.source, moment.to].append((end, moment.size))
        self.take_what_came(moment.to)

    def take_what_came(self, rank: int) -> None:
        """Let a rank take, in its order, what has arrived, and send on what may leave then."""
        receives = self.receives[rank]
        while receives and (come := self.arrived[receives[0].rank, rank]):
            receive, (end, size) = receives.popleft(), come.popleft()
            if size != (receive.hi - receive.lo) * self.itemsize:
                raise ValueError("both ends must mean a message of the same length")
            if end > self.clock[rank]:
                self.clock[rank] = end + self.machine.wake_s
            self.clock[rank] += self.machine.message_s / 2
            if receive.combine:
                self.clock[rank] += size * self.machine.add_byte_s
            self.over[rank] += 1
            self.send_what_can_leave(rank)


def _passes(
    free: dict[tuple[str, int], float], wire: tuple[str, int], moment: _Moment, link: Link
) -> tuple[float, float]:
    """Return when a message begins to pass a wire and when it has; `free` notes since or from when it is free.

    A wire that has rested has saved up some time, by which this message and those behind it are the quicker.
    """
    busy = link.busy(moment.size)
    since = max(free[wire], moment.when - link.burst_s)
    free[wire] = since + busy
    begin = max(since, moment.when)
    return begin, max(since + link.time(moment.size), begin + link.seconds[0])
