"""`TwoShots`: the sum of gradients over the ranks by payloads that cannot be added; see `compress.base`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpctrain.comm.group import Group, Request
from hpctrain.compress.base import Coder, Source, TwoShot
from hpctrain.compress.pieces import cut
from hpctrain.kernels.compression.blocks import add_pieces
from hpctrain.memory import LINE_BYTES

FIRST, SECOND = 1, 2  # the shots, in keys of random numbers


class TwoShots:
    """Sums the pieces of a gradient buffer over the ranks of `group`, each rank the owner of one part of them.

    `nbytes`: of one payload of all parts, which each rank sends less than twice, as an all-reduce does its buffer.
    """

    def __init__(self, group: Group, compression: TwoShot, pieces: np.ndarray) -> None:
        self._group = group
        self._parts = cut(pieces, group.size, compression.unit)
        self._coders = [compression.coder(part) for part in self._parts]
        self._own = self._coders[group.rank]
        # What is sent to the owner of a part, and what it sends back, in one place: it comes when the other is gone.
        self._sent = _payloads(group, self._coders)
        self._received = _payloads(group, [self._own] * (group.size - 1))
        self.nbytes = sum(coder.nbytes for coder in self._coders)

    def reduce(self, source: Source, draw: Any) -> None:
        """Make the pieces of `source.values` the sum of what all ranks' sources are worth; the same bits on every rank.

        draw  (shot, part) -> key of this rank's random numbers
        """
        values, residual, factor = source.values, source.residual, source.factor
        group, own = self._group, self._own
        arrivals = [
            (views, group.receive(payload, rank, FIRST))
            for rank, (payload, views) in zip(self._others(), self._received, strict=True)
            if own.nbytes
        ]
        leaving = []
        for rank in self._others():
            payload, views = self._sent[rank]
            if self._coders[rank].nbytes:
                self._coders[rank].encode(Source(values, residual, factor, True, draw(FIRST, rank)), views)
                leaving.append(group.send(payload, rank, FIRST))
        # The own part is exact: the owner adds what the others say to it, and sends the sum.
        total = values if residual is None else residual
        if residual is not None:
            add_pieces(values, residual, self._parts[group.rank], np.float32(factor))
        for views, request in arrivals:
            request.wait()
            own.decode(views, total, True)
        _wait(leaving)
        self._send_back(Source(values, residual, 1.0, False, draw(SECOND, group.rank)), values)

    def _send_back(self, source: Source, out: np.ndarray) -> None:
        """Encode the sum of the own part, exchange it for the others' and store them all."""
        group, rank = self._group, self._group.rank
        arrivals = [
            (other, group.receive(self._sent[other][0], other, SECOND))
            for other in self._others()
            if self._coders[other].nbytes
        ]
        leaving = []
        payload, views = self._sent[rank]
        if self._own.nbytes:
            self._own.encode(source, views)
            leaving += [group.send(payload, other, SECOND) for other in self._others()]
            self._own.decode(views, out, False)
        for other, request in arrivals:
            request.wait()
            self._coders[other].decode(self._sent[other][1], out, False)
        _wait(leaving)

    def _others(self) -> Iterator[int]:
        """Yield the other ranks, the next one first: so no two ranks begin with the same one."""
        rank, size = self._group.rank, self._group.size
        return ((rank + step) % size for step in range(1, size))


def _payloads(group: Group, coders: list[Coder]) -> list[tuple[np.ndarray, Any]]:
    """Return a payload and the coder's views of it for each coder, in one array."""
    sizes = [-(-coder.nbytes // LINE_BYTES) * LINE_BYTES for coder in coders]
    memory = group.allocate(sum(sizes), np.uint8)
    made, start = [], 0
    for coder, size in zip(coders, sizes, strict=True):
        payload = memory[start : start + coder.nbytes]
        made.append((payload, coder.views(payload)))
        start += size
    return made


def _wait(requests: list[Request]) -> None:
    for request in requests:
        request.wait()
