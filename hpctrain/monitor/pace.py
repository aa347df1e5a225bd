"""When a line is due, and how fast it goes: `Throttle` and `Rate`."""

from __future__ import annotations

from collections import deque

from hpctrain.duration import Duration

_GROWTH = 0.05  # a line at most every 5 % of the time so far ...
_SLOWEST_S = 600.0  # ... but at least every ten minutes


class Throttle:
    """Says at which steps a line is due.

    `log_every` is a length of training ("1 s", "50 steps", "0.5 epochs"; a number means seconds).  Steps and epochs are
    kept exactly.  With `growing`, a time is kept at first and then grows with the run: a line is due when `log_every`
    or 5 % of the time so far has passed since the last one, whichever is longer, but after ten minutes in any case (or
    `log_every`, if that is longer).  A day's log at "1 s" then has about 270 lines.
    """

    def __init__(self, log_every: Duration | str | float = 1.0, growing: bool = False) -> None:
        if not isinstance(log_every, Duration):
            log_every = Duration.parse(str(log_every), "log_every", default_unit="seconds")
        self._every = log_every
        self._growing = growing
        self._start_s = self._next_s = 0.0
        self._every_steps = self._next_step = 0

    def start(self, step: int, steps_per_epoch: int, now_s: float) -> None:
        """Begin to count, `step` updates into the run, at the clock's `now_s`."""
        self._start_s = now_s
        if self._every.unit != "seconds":
            self._every_steps = max(1, self._every.in_steps(steps_per_epoch))
        self._schedule(step, now_s)

    def due(self, step: int, now_s: float) -> bool:
        """Return whether a line is due after update `step`; the next one is then scheduled."""
        if (step < self._next_step) if self._every_steps else (now_s < self._next_s):
            return False
        self._schedule(step, now_s)
        return True

    def _schedule(self, step: int, now_s: float) -> None:
        if self._every_steps:
            self._next_step = (step // self._every_steps + 1) * self._every_steps
            return
        interval = self._every.value
        if self._growing:
            interval = max(interval, min(_GROWTH * (now_s - self._start_s), _SLOWEST_S))
        self._next_s = now_s + interval


class Rate:
    """Steps per second as a moving average over the last `window_s` seconds of work."""

    def __init__(self, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._marks: deque[tuple[int, float]] = deque([(0, 0.0)])

    def update(self, steps: int, busy_s: float) -> float | None:
        """Take the steps and the seconds of work so far; return the rate, None before there is one."""
        self._marks.append((steps, busy_s))
        while len(self._marks) > 2 and busy_s - self._marks[1][1] >= self._window_s:
            self._marks.popleft()
        first_steps, first_s = self._marks[0]
        return (steps - first_steps) / (busy_s - first_s) if busy_s > first_s else None
