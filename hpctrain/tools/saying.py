"""What a verb says while it works: nothing for two seconds, then a line now and then, on stderr."""

from __future__ import annotations

import sys
import time

EVERY_S = 2.0


class Saying:
    """Says how far a long job has come; standard output stays free for results.

    what  a phrase ("cutting"); total  of the units that `add` counts; loud  False on the ranks that say nothing
    """

    def __init__(self, what: str, total: float, loud: bool = True, every_s: float = EVERY_S) -> None:
        self._what, self._total, self._loud, self._every_s = what, total, loud, every_s
        self._done = 0.0
        self._next = time.monotonic() + every_s

    def add(self, amount: float) -> None:
        """Count what is done, and say so when a line is due."""
        self._done += amount
        if self._loud and self._total > 0 and time.monotonic() >= self._next:
            share = min(self._done / self._total, 1.0)
            print(f"hpctrain: {self._what}: {share:.0%}", file=sys.stderr, flush=True)
            self._next = time.monotonic() + self._every_s
