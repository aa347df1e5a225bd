"""`SingleGroup`: the group of one rank, for machines without MPI.  Nothing here imports mpi4py."""

from __future__ import annotations

import os
import socket
import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.errors import HpctrainError


class SingleGroup(Group):
    """One rank by itself: sums are what they are, and what it sends it can only send to itself."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    node = 0
    nodes = 1
    library = "none"

    def __init__(self) -> None:
        self.hostname = socket.gethostname()
        self._letters: defaultdict[int, deque[np.ndarray]] = defaultdict(deque)  # by tag, in order of sending

    def local(self) -> SingleGroup:
        """Return the group itself: it is its node's."""
        return self

    def across(self) -> SingleGroup:
        """Return the group itself: there is no other node."""
        return self

    def leaders(self) -> SingleGroup:
        """Return the group itself."""
        return self

    def apart(self) -> SingleGroup:
        """Return a group of one rank: it never waits."""
        return SingleGroup()

    def barrier(self, patient: bool = False) -> None:
        """Return at once."""

    def broadcast_object(self, value: Any, root: int = 0, patient: bool = False) -> Any:
        """Return the object itself."""
        return value

    def all_gather_objects(self, value: Any) -> list[Any]:
        """Return a list of the one object."""
        return [value]

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Leave the array as it is."""

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Leave the array as it is: the sum over one rank."""

    def reduce_scatter(self, buffer: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Copy the whole array, which is the one part."""
        out[:] = buffer

    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        """Leave the array as it is: the one part is there."""

    def send(self, buffer: np.ndarray, to: int, tag: int = 0) -> _Done:
        """Keep a copy for a later `receive` with the same tag."""
        self._letters[tag].append(buffer.copy())
        return _Done()

    def receive(self, buffer: np.ndarray, source: int, tag: int = 0) -> _Delivery:
        """Take the oldest array sent with this tag, when waited for."""
        return _Delivery(self._letters[tag], buffer)

    def all_to_all(
        self, send: np.ndarray, send_rows: np.ndarray, receive: np.ndarray, receive_rows: np.ndarray
    ) -> _Done:
        """Copy the rows."""
        receive[:] = send
        return _Done()

    def abort(self, code: int) -> NoReturn:
        """End the process at once with this exit code."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Done:
    """A transfer that was complete when it began."""

    def wait(self) -> None:
        """Return at once."""

    def test(self) -> bool:
        """Return True."""
        return True


class _Delivery:
    """A receive from oneself: complete as soon as there is something to take."""

    def __init__(self, letters: deque[np.ndarray], buffer: np.ndarray) -> None:
        self._letters = letters
        self._buffer: np.ndarray | None = buffer

    def wait(self) -> None:
        """Fill the buffer; nothing sent yet is an error, since nobody else can send it."""
        if not self.test():
            raise HpctrainError("a one-rank group waits for a message that it has not sent")

    def test(self) -> bool:
        """Fill the buffer if something was sent; return whether it is filled."""
        if self._buffer is not None and self._letters:
            self._buffer[:] = self._letters.popleft()
            self._buffer = None
        return self._buffer is None
