"""`Overlapped`: gradients leave bucket by bucket while the backward pass goes on, by a thread of their own.

Nonblocking collectives alone make no progress while a rank computes, so that somebody has to move them: a thread, which
sleeps between looks.  What it costs of the core is part of what overlapping cannot hide.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.strategies.reducers.base import Reducer


def choose_cuts(ready: Sequence[int], size: int, bucket: int) -> tuple[int, ...]:
    """Return which of the offsets `ready` (descending from `size`) begin a bucket of at least `bucket` elements.

    What is left at the start of the buffer, however little, is the last bucket: its offset 0 is not among them.
    """
    cuts, stop = [], size
    for lo in ready:
        if lo and stop - lo >= bucket:
            cuts.append(lo)
            stop = lo
    return tuple(cuts)


class Overlapped(Reducer):
    """grad_buffer <- sum over ranks of grad_buffer, in buckets that begin at `cuts`, the last one at 0.

    collective   of a group that `Group.apart` made: nobody else may use it
    work         for each bucket what sums it, given the step's number; default: the collective's all-reduce
    """

    def __init__(
        self,
        name: str,
        collective: Collective,
        grad_buffer: np.ndarray,
        cuts: Sequence[int],
        work: Sequence[Callable[[int], None]] | None = None,
    ) -> None:
        self._name = name
        self._collective = collective
        self._buffer = grad_buffer
        self.cut(cuts)
        if work is not None:
            self._work = list(work)
        self._sent = 0
        self._orders: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def cut(self, cuts: Sequence[int]) -> None:
        """Begin buckets at other places from now on, each summed as a whole; between steps."""
        self._cuts = tuple(cuts)
        self._starts = (*self._cuts, 0)
        stops = (len(self._buffer), *self._cuts)
        buckets = [self._buffer[lo:hi] for lo, hi in zip(self._starts, stops, strict=True)]
        self._work: list[Callable[[int], None]] = [partial(_sum, self._collective, bucket) for bucket in buckets]

    @property
    def cuts(self) -> tuple[int, ...]:
        """Where buckets begin, but for the last one."""
        return self._cuts

    def ready(self, lo: int, step: int) -> None:
        """Let the buckets go that begin at `lo` or behind it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="gradients", daemon=True)
            self._thread.start()
        while self._sent < len(self._starts) and self._starts[self._sent] >= lo:
            self._orders.put((self._sent, step))
            self._sent += 1

    def reduce(self, step: int) -> None:
        """Let the rest go, and wait for all."""
        self.ready(0, step)
        group = self._collective.group
        group.hurry(True)  # this thread waits from here on: nobody needs the core
        error = self._done.get()
        group.hurry(False)
        self._sent = 0
        if error is not None:
            raise error

    def _serve(self) -> None:
        """Sum buckets as they come; after a step's last one say so."""
        while (order := self._orders.get()) is not None:
            number, step = order
            try:
                self._work[number](step)
            except BaseException as error:  # noqa: BLE001 - raised in the main thread, which waits
                self._done.put(error)
                return
            if number == len(self._work) - 1:
                self._done.put(None)

    def describe(self) -> str:
        """Return the collective's name, and in how many buckets."""
        count = len(self._work)
        return f"{self._name}, {count} bucket{'s' if count > 1 else ''} during the backward pass"

    def warm_up(self) -> None:
        """Compile the collective's kernels, or load them from the cache."""
        self._collective.warm_up()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None


def _sum(collective: Collective, bucket: np.ndarray, step: int) -> None:
    collective.all_reduce(bucket)
