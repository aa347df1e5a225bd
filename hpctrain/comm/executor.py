"""`Executor`: runs the hops of a schedule on a group, on a float32 or int32 buffer in place, chunk by chunk."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from hpctrain.comm.group import Group, Request
from hpctrain.comm.pipeline import LINE, Receive, Send, pipeline
from hpctrain.comm.schedule import Hop, part_bounds
from hpctrain.kernels.reduce import add_into
from hpctrain.memory import taken_bytes

CHUNK_BYTES = 256 * 1024
# A tag of our own: rows and messages that others exchange at the same time must not be taken for parts of a buffer.
_TAG = 1
_PLANS = 64  # lengths that are kept
_AHEAD = 8  # receives that are posted at a time: MPI puts a message aside that does not find its place ready


@dataclass(frozen=True)
class _Plan:
    """What is done for buffers of one length."""

    sends: list[Send]
    receives: list[Receive]
    places: list[np.ndarray | None]  # for each receive where it comes in, if it is to be added


class Executor:
    """Runs one schedule, for buffers of any length.

    Each transfer is cut into chunks (see `comm.pipeline`): while one is added, the next are on their way, and what has
    been added leaves at once.  What arrives to be added needs a place beside the buffer: the scratch, a few chunks.  It
    and the lists of messages are made when a length comes for the first time, so in a training run once.
    """

    def __init__(self, group: Group, hops: Iterable[Hop], chunk_bytes: int = CHUNK_BYTES) -> None:
        self._group = group
        self._hops = tuple(hops)
        self._chunk = max(chunk_bytes // 4, 1)
        self._plans: dict[int, _Plan] = {}
        self._scratch = group.allocate(0)
        self._posted = self._begun = 0  # receives and sends
        self._coming: deque[Request] = deque()
        self._leaving: deque[Request] = deque()

    def run(self, buffer: np.ndarray, finished: Callable[[int, int], None] | None = None) -> None:
        """Run all hops on a 1-D float32 or int32 buffer, in place; every rank calls it with the same length.

        `finished(lo, hi)` is called for elements that have come in and will not change any more, as early as possible;
        together these are all elements that the hops receive.
        """
        plan = self._plans.get(len(buffer)) or self._prepare(len(buffer))
        self._posted = self._begun = 0
        for number, receive in enumerate(plan.receives):
            self._post(plan, buffer, number)
            self._begin_sends(plan, buffer, number)
            if self._posted == number:  # what it takes the place of is still being sent
                self._finish_sends(receive.after_sent)
                self._post(plan, buffer, number)
            self._coming.popleft().wait()
            if receive.combine:
                self._finish_sends(receive.after_sent)
                add_into(buffer[receive.lo : receive.hi], plan.places[number].view(buffer.dtype))
            if finished is not None:
                for lo, hi in receive.finished:
                    finished(lo, hi)
        self._begin_sends(plan, buffer, len(plan.receives))
        self._finish_sends(self._begun)

    def _prepare(self, length: int) -> _Plan:
        sends, receives = pipeline(self._hops, part_bounds(length, self._group.size), self._chunk)
        added = [receive.hi - receive.lo for receive in receives if receive.combine]
        count, longest = min(len(added), _AHEAD), _whole_lines(max(added, default=0))
        if len(self._plans) >= _PLANS or count * longest > len(self._scratch):
            self._plans.clear()
        if count * longest > len(self._scratch):
            self._scratch = self._group.allocate(count * longest)
        turns = itertools.cycle([self._scratch[turn * longest :] for turn in range(count)])
        places = [next(turns)[: receive.hi - receive.lo] if receive.combine else None for receive in receives]
        self._plans[length] = _Plan(sends, receives, places)
        return self._plans[length]

    def _post(self, plan: _Plan, buffer: np.ndarray, over: int) -> None:
        """Post receives as far ahead as possible without waiting, when `over` of them are over."""
        while self._posted < min(over + _AHEAD, len(plan.receives)):
            receive, target = plan.receives[self._posted], plan.places[self._posted]
            if target is None:
                if receive.after > over or not self._are_sent(receive.after_sent):
                    return
                target = buffer[receive.lo : receive.hi]
            self._coming.append(self._group.receive(target, receive.rank, _TAG))
            self._posted += 1

    def _begin_sends(self, plan: _Plan, buffer: np.ndarray, over: int) -> None:
        """Begin all sends that can leave when `over` receives are over."""
        while self._begun < len(plan.sends) and plan.sends[self._begun].after <= over:
            send = plan.sends[self._begun]
            self._leaving.append(self._group.send(buffer[send.lo : send.hi], send.rank, _TAG))
            self._begun += 1

    def _are_sent(self, count: int) -> bool:
        """Whether the first `count` sends are complete."""
        while self._begun - len(self._leaving) < count:
            if not self._leaving or not self._leaving[0].test():
                return False
            self._leaving.popleft()
        return True

    def _finish_sends(self, count: int) -> None:
        """Wait until the first `count` sends are complete."""
        while self._begun - len(self._leaving) < count:
            self._leaving.popleft().wait()


def scratch_bytes(longest: int, transfers: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the bytes of an executor's scratch: for so many transfers that are added, of `longest` floats at most."""
    if not longest * transfers:
        return 0
    chunks = -(-4 * longest // chunk_bytes)
    return taken_bytes(4 * min(chunks * transfers, _AHEAD) * _whole_lines(-(-longest // chunks)))


def _whole_lines(count: int) -> int:
    return -(-count // LINE) * LINE
