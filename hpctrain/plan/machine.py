"""`Machine`: how quick its links and its additions are, as measured; plain numbers, to be kept in a file."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Link:
    """How long two ranks take to exchange messages of some lengths: both send and both receive at the same time.

    sizes     bytes of a message, ascending, two of them or more
    seconds   of an exchange, for each size, one after the other without a rest
    burst_s   so much of its time a message saves on a link that has rested: links that are limited to a rate let some
              bytes through at once, until what they have saved up is spent

    Between the sizes the time is taken to lie on a line; libraries change their ways of sending with the size, so that
    one latency and one rate for all would be far off.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    burst_s: float = 0.0

    def time(self, size: float) -> float:
        """Return the seconds of a message of `size` bytes; beyond the largest that was measured by the last rate."""
        place = min(max(bisect_left(self.sizes, size), 1), len(self.sizes) - 1)
        (left, right), (before, after) = self.sizes[place - 1 : place + 1], self.seconds[place - 1 : place + 1]
        # Where a link saves up time, short messages may have been measured with what was left over.
        least = size * self.byte_s if self.burst_s else 0.0
        return max(before + (after - before) * (size - left) / (right - left), self.seconds[0], least)

    @property
    def byte_s(self) -> float:
        """Seconds a byte of long messages."""
        return max(self.seconds[-1] - self.seconds[-2], 0.0) / (self.sizes[-1] - self.sizes[-2])

    def busy(self, size: float) -> float:
        """Return the part of `time` in which nobody else's message can pass: the rest is waiting for the first byte."""
        return min(size * self.byte_s, self.time(size))


@dataclass(frozen=True)
class Machine:
    """The measured speeds of a cluster.

    inside      messages between ranks of a node; None where no two share one
    between     messages between nodes, one rank of each sending; None where there is one node
    add_byte_s  seconds a byte of adding what has come in to what is there
    message_s   seconds that a message takes of the cores of its two ranks together, however short it is
    wake_s      seconds after which a rank that has waited goes on, beyond what two ranks alone take: more where ranks
                share cores
    """

    inside: Link | None
    between: Link | None
    add_byte_s: float
    message_s: float = 0.0
    wake_s: float = 0.0

    def link(self, same_node: bool) -> Link:
        """Return the link of two ranks, those of one node if asked for; the other kind where one was not measured."""
        first, second = (self.inside, self.between) if same_node else (self.between, self.inside)
        found = first or second
        if found is None:
            raise ValueError("a machine of one rank has no links")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Machine:
        """Return the machine that `to_dict` was called on."""

        def link(name: str) -> Link | None:
            kept = values[name]
            return kept and Link(tuple(kept["sizes"]), tuple(kept["seconds"]), kept["burst_s"])

        numbers = {name: values[name] for name in ("add_byte_s", "message_s", "wake_s")}
        return cls(inside=link("inside"), between=link("between"), **numbers)
