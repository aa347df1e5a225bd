"""`Executor`: runs the hops of a schedule on a group, on a float32 buffer in place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.comm.schedule import Hop, Parts, part_bounds
from hpctrain.kernels.reduce import add_into

# A tag of our own: rows and messages that others exchange at the same time must not be taken for parts of a buffer.
_TAG = 1


@dataclass(frozen=True, slots=True)
class _Move:
    """A hop with its parts as slices of a buffer; None where nothing is to be moved."""

    send_to: int | None
    recv_from: int | None
    send: slice | None
    recv: slice | None
    scratch: np.ndarray | None  # where what comes in is put that is to be added


class Executor:
    """Runs one schedule, for buffers of any length.

    What arrives to be added needs a place beside the buffer: the scratch, as long as the longest transfer.  It and the
    hops' slices are made when the length differs from the call before, so in a training run once.
    """

    def __init__(self, group: Group, hops: Iterable[Hop]) -> None:
        self._group = group
        self._hops = tuple(hops)
        self._length = -1
        self._moves: list[_Move] = []
        self._scratch = group.allocate(0)

    def run(self, buffer: np.ndarray) -> None:
        """Run all hops on a 1-D float32 buffer, in place; every rank calls it with the same length."""
        if len(buffer) != self._length:
            self._prepare(len(buffer))
        for move in self._moves:
            self._run_move(move, buffer)

    def _prepare(self, length: int) -> None:
        bounds = part_bounds(length, self._group.size)
        spans = [(_span(hop.send, bounds), _span(hop.recv, bounds)) for hop in self._hops]
        incoming = [_length(recv) for hop, (_, recv) in zip(self._hops, spans, strict=True) if hop.combine]
        if max(incoming, default=0) > len(self._scratch):
            self._scratch = self._group.allocate(max(incoming))
        self._moves = [
            _Move(hop.send_to, hop.recv_from, send, recv, self._scratch[: _length(recv)] if hop.combine else None)
            for hop, (send, recv) in zip(self._hops, spans, strict=True)
        ]
        self._length = length

    def _run_move(self, move: _Move, buffer: np.ndarray) -> None:
        receiving = sending = None
        if move.recv is not None:
            here = buffer[move.recv]
            # The receive is posted first: a message that finds its buffer waiting is not copied aside by MPI.
            target = here if move.scratch is None else move.scratch
            receiving = self._group.receive(target, move.recv_from, _TAG)
        if move.send is not None:
            sending = self._group.send(buffer[move.send], move.send_to, _TAG)
        if receiving is not None:
            receiving.wait()
            if move.scratch is not None:
                add_into(here, move.scratch)
        if sending is not None:
            sending.wait()


def _span(parts: Parts | None, bounds: list[int]) -> slice | None:
    """Return a range of parts as a slice; None when empty: both ends know all lengths, so both leave it out."""
    if parts is None or bounds[parts[0]] == bounds[parts[1]]:
        return None
    return slice(bounds[parts[0]], bounds[parts[1]])


def _length(span: slice | None) -> int:
    return 0 if span is None else span.stop - span.start
