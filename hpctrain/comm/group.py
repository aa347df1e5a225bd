"""`Group`: the ranks that work together, and the raw operations on them.

`join()` gives the group of all launched ranks: MPI's world (`comm/mpi_group.py`), or one rank where there is no MPI
(`comm/single_group.py`).  What is built from these operations (ring, tree, ...) lives in `comm/collectives/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import numpy as np

from hpctrain.comm.ending import Ending
from hpctrain.errors import HpctrainError, UserError
from hpctrain.memory import aligned_zeros


class CountError(HpctrainError):
    """An exchange has more rows than MPI can count."""


class Request(Protocol):
    """A transfer under way."""

    def wait(self) -> None:
        """Return when the transfer is complete and its buffers may be used."""

    def test(self) -> bool:
        """Move the transfer on; return whether it is complete."""


class Group(ABC):
    """A fixed set of ranks.  Arrays are C-contiguous numpy arrays; all calls but point-to-point ones are collective.

    Arrays may be of any length, 2^31 elements and more: `comm.pieces` cuts them where one MPI call would not do.  Only
    an exchange of 2^31 rows or more on a rank is a `CountError`.
    """

    rank: int
    size: int
    local_rank: int  # this rank among those of its node
    local_size: int
    node: int  # this rank's node, numbered in order of the nodes' first ranks
    nodes: int
    hostname: str
    library: str  # name and version of the MPI library, "none" without one
    has_threads: bool = True  # whether a second thread may call MPI while the first one does: see `apart`
    ending: Ending | None = None  # of the group of all launched ranks, where they are several

    def allocate(self, count: int, dtype: Any = np.float32) -> np.ndarray:
        """Return a zeroed 1-D array of `count` elements that starts on a 64-byte boundary."""
        return aligned_zeros(count, dtype)

    @abstractmethod
    def local(self) -> Group:
        """Return the group of this node's ranks, the same object each time; the first call is collective."""

    @abstractmethod
    def across(self) -> Group | None:
        """Return the group of the ranks with this one's place in their nodes, or None where nodes differ in size.

        The same object each time; the first call is collective.
        """

    @abstractmethod
    def leaders(self) -> Group | None:
        """Return the group of the first ranks of all nodes, None on the others; collective when first called."""

    @abstractmethod
    def apart(self) -> Group:
        """Return a group of the same ranks for a second thread: collective, a new one each time.

        Only where `has_threads`.  Its messages are never taken for this group's.  It waits by sleeping between looks so
        that the first thread has the core; `hurry` makes it wait as others do.  So do the groups that are made from it.
        """

    def hurry(self, hurried: bool) -> None:  # noqa: B027 - one that never sleeps has nothing to change
        """Say whether nobody needs the core meanwhile (for groups that `apart` made); any thread may call it."""

    @property
    def sleeps(self) -> bool:
        """Whether this group waits by sleeping, as those do that `apart` made."""
        return False

    @contextmanager
    def agreed(self, patient: bool = False) -> Iterator[None]:
        """Make a `UserError` raised in the block on any rank be raised on all of them (the lowest rank's text).

        Every rank must enter the block.  The block must not contain a collective operation that a rank which fails
        would leave the others waiting in.  `patient`: ranks that are done first leave the cores to those that still
        work, see `barrier`.
        """
        found: str | None = None
        try:
            yield
        except UserError as error:
            found = error.message
        if patient:
            self.barrier(patient=True)
        for message in self.all_gather_objects(found):
            if message is not None:
                raise UserError.from_message(message, agreed=True) from None

    @abstractmethod
    def barrier(self, patient: bool = False) -> None:
        """Wait for all ranks.  `patient` sleeps between looks: for long waits, when others need the cores."""

    @abstractmethod
    def broadcast_object(self, value: Any, root: int = 0, patient: bool = False) -> Any:
        """Return the root's Python object on every rank."""

    @abstractmethod
    def all_gather_objects(self, value: Any) -> list[Any]:
        """Return every rank's Python object, in rank order, on every rank."""

    @abstractmethod
    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Copy the root's array into every rank's."""

    @abstractmethod
    def all_reduce(self, buffer: np.ndarray) -> None:
        """Sum the array over all ranks in place, by MPI's own algorithm."""

    @abstractmethod
    def reduce_scatter(self, buffer: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Sum a 1-D array over all ranks, by MPI's own algorithm; `out` gets this rank's part of the sum.

        The parts lie one behind the other, `counts[r]` elements for rank r.  `out` must not overlap `buffer`.
        """

    @abstractmethod
    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        """Fill in every other rank's part of a 1-D array in place, by MPI's own algorithm.

        The parts lie as in `reduce_scatter`; each rank's own part is what it gives.
        """

    @abstractmethod
    def send(self, buffer: np.ndarray, to: int, tag: int = 0) -> Request:
        """Start to send an array; the buffer must stay untouched until `wait`."""

    @abstractmethod
    def receive(self, buffer: np.ndarray, source: int, tag: int = 0) -> Request:
        """Start to receive an array of exactly this size."""

    @abstractmethod
    def all_to_all(
        self, send: np.ndarray, send_rows: np.ndarray, receive: np.ndarray, receive_rows: np.ndarray
    ) -> Request:
        """Start an exchange of rows: `send` and `receive` are (rows, ...) arrays sorted by the other rank.

        `send_rows[r]` rows go to rank r, `receive_rows[r]` come from it; the same number of bytes a row everywhere.
        """

    def progress(self) -> None:  # noqa: B027 - one without messages has nothing to move on
        """Let the messages that are under way move on: for who waits for others in another way than by a message."""

    @abstractmethod
    def abort(self, code: int) -> NoReturn:
        """End every rank of the job at once with this exit code."""
