"""Short measurements of a group's links and additions: seconds, the same numbers on every rank."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.kernels.reduce import add_into

# Bytes of a message, and how often it is timed; one more goes before, which opens connections and empties what lets
# short bursts pass faster than the wire.
_SIZES = ((64, 21), (4 << 10, 11), (64 << 10, 5), (256 << 10, 5), (1 << 20, 5))
_BUDGET_S = 0.2  # of one size: slower links are known well enough from shorter messages
_TAG = 2  # as in `executor`: a tag of our own
_STREAM = 32  # messages
_RESTED_BYTES = 256 << 10  # of the message that shows what a rested link lets through at once
_ROUNDS = 20  # of short messages from rank to rank
_ADDED = 1 << 18  # floats


def add_seconds() -> float:
    """Return the seconds a byte of adding one array to another on this rank."""
    total, values = np.zeros(_ADDED, np.float32), np.zeros(_ADDED, np.float32)
    add_into(total, values)
    return statistics.median(_seconds(lambda: add_into(total, values)) for _ in range(5)) / total.nbytes


def partners(group: Group, nodes: Sequence[int], same_node: bool) -> list[int | None]:
    """Return each rank's partner for `link_speeds`, None for a rank that has none.

    nodes  the node of each rank.  In a node they are two and two; of nodes, the first ranks of two and two nodes.
    """
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    lines = list(members.values()) if same_node else [[ranks[0] for ranks in members.values()]]
    found: list[int | None] = [None] * group.size
    for line in lines:
        for left, right in zip(line[::2], line[1::2], strict=False):
            found[left], found[right] = right, left
    return found


class LinkSpeeds(NamedTuple):
    """What was measured of a link.

    sizes      bytes of messages, ascending
    seconds    of an exchange of each, one after the other without a rest
    burst_s    how much of its time a message saves when the link has rested: rates are often held by letting through at
               once what has been saved up (a token bucket)
    message_s  seconds that a short message takes of its two ranks' cores, when many are under way
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    burst_s: float
    message_s: float


def link_speeds(group: Group, partner: int | None) -> LinkSpeeds:
    """Measure a link; all ranks with a partner at the same time, and the slowest pair counts.  Collective."""
    own = None if partner is None else _speeds_of_pair(group, partner)
    group.barrier(patient=True)  # those without a partner must not take a core from those that have one
    found = [speeds for speeds in group.all_gather_objects(own) if speeds is not None]
    count = min(len(speeds.sizes) for speeds in found)
    return LinkSpeeds(
        found[0].sizes[:count],
        tuple(max(speeds.seconds[number] for speeds in found) for number in range(count)),
        min(speeds.burst_s for speeds in found),
        max(speeds.message_s for speeds in found),
    )


def _speeds_of_pair(group: Group, partner: int) -> LinkSpeeds:
    """Measure with a partner, which does the same; both have the same sizes."""
    sizes: list[int] = []
    seconds: list[float] = []
    for size, times in _SIZES:
        if len(sizes) > 1 and seconds[-1] * size / sizes[-1] * (times + 1) > _BUDGET_S:
            break
        sent, received = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        taken = [_seconds(lambda: _exchange(group, partner, sent, received)) for _ in range(times + 1)]  # noqa: B023
        mine, theirs = np.array([statistics.median(taken[1:])]), np.zeros(1)
        _exchange(group, partner, mine, theirs)
        sizes.append(size)
        seconds.append(float(max(mine[0], theirs[0])))
    size, without_rest = max(pair for pair in zip(sizes, seconds, strict=True) if pair[0] <= _RESTED_BYTES)
    sent, received = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    taken = [_rested(group, partner, sent, received, without_rest) for _ in range(8)]
    # What a message does not use is left for the next one, so that they can be quick and slow in turn.
    rested = statistics.median((one + other) / 2 for one, other in zip(taken[::2], taken[1::2], strict=True))
    sent, received = sent[:_STREAM], received[:_STREAM]
    streams = [_seconds(lambda: _stream(group, partner, sent, received)) for _ in range(5)]
    return LinkSpeeds(
        tuple(sizes), tuple(seconds), max(0.0, without_rest - rested), statistics.median(streams) / _STREAM
    )


def turn_seconds(group: Group) -> float:
    """Return the seconds of a short message from every rank to the next one, all at the same time; collective.

    A mean over some rounds: where ranks share cores, now and then one waits until it gets its core again, and the
    others for it.
    """
    sent, received = np.zeros(1, np.uint8), np.zeros(1, np.uint8)
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    taken = []
    for _ in range(4):
        group.barrier()
        start = time.perf_counter()
        for _ in range(_ROUNDS):
            receiving, sending = group.receive(received, left, _TAG), group.send(sent, right, _TAG)
            receiving.wait()
            sending.wait()
        taken.append((time.perf_counter() - start) / _ROUNDS)
    return max(group.all_gather_objects(statistics.median(taken[1:])))


def call_times(group: Group, calls: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Return the median seconds of each collective call, made in turn `rounds` times after once untimed; collective.

    The slowest rank's time counts.
    """
    times = np.zeros((rounds + 1, len(calls)))
    for line in times:
        for number, call in enumerate(calls):
            group.barrier()
            line[number] = _seconds(call)
    slowest = np.max(group.all_gather_objects(times), axis=0)
    return [float(value) for value in np.median(slowest[1:], axis=0)]


def _exchange(group: Group, partner: int, sent: np.ndarray, received: np.ndarray) -> None:
    receiving = group.receive(received, partner, _TAG)
    sending = group.send(sent, partner, _TAG)
    receiving.wait()
    sending.wait()


def _rested(group: Group, partner: int, sent: np.ndarray, received: np.ndarray, rest_s: float) -> float:
    time.sleep(rest_s)
    return _seconds(lambda: _exchange(group, partner, sent, received))


def _stream(group: Group, partner: int, sent: np.ndarray, received: np.ndarray) -> None:
    """Send and receive so many messages of one byte, all under way together."""
    receiving = [group.receive(received[number : number + 1], partner, _TAG) for number in range(_STREAM)]
    sending = [group.send(sent[number : number + 1], partner, _TAG) for number in range(_STREAM)]
    for request in (*receiving, *sending):
        request.wait()


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
