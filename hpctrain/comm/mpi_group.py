"""`MpiGroup`: a group of MPI ranks.  The only file that calls MPI; `comm.join` loads it.

Data moves as bytes, so that every dtype goes over the wire; only sums need to know the element type.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hpctrain.comm.group import CountError, Group
from hpctrain.comm.pieces import is_long, pieces

if TYPE_CHECKING:
    from mpi4py import MPI

_MAX_ROWS = 2**31 - 1  # what an MPI before version 4 can count
_PATIENCE_S = 0.02
_NAP_S = 0.0005  # longer naps leave the wire idle between messages, shorter ones take more of the core
_LAST_WORDS_S = 0.2  # launchers lose what was printed just before an abort: they need a moment to pass it on


def library_name(text: str | None = None) -> str:
    """Return name and version of the loaded MPI library ("MPICH 5.0.2") from its version text (default: ask MPI)."""
    if text is None:
        from mpi4py import MPI

        text = MPI.Get_library_version()
    line = text.strip("\0 \n").splitlines()[0] if text.strip("\0 \n") else "unknown MPI library"
    line = line.split(",")[0].replace("Version:", " ").replace("(R)", "")
    line = re.sub(r"\bv(?=\d)", "", line).split(" for ")[0]
    return " ".join(line.split())


class MpiGroup(Group):
    """The ranks of an MPI communicator; a duplicate of it, so that nobody else's messages get mixed up with ours."""

    def __init__(self, comm: MPI.Comm, ranks_a_node: int | None = None, pace: _Pace | None = None) -> None:
        """Make the group of a communicator.

        ranks_a_node   cuts it into nodes of so many, as if it ran on several
        pace           how it waits: None as MPI does; see `Group.apart`
        """
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm.Dup()
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.hostname = socket.gethostname()
        self.library = library_name()
        # A library may give less than `join` asks for, and whoever has started MPI before may have asked for less.
        self.has_threads = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        self._ranks_a_node = ranks_a_node
        self._pace = pace
        self._local: MpiGroup | None = None
        self._others: dict[str, MpiGroup | None] = {}
        self._row_types: dict[int, MPI.Datatype] = {}  # by bytes of a row
        self._find_nodes(ranks_a_node)

    def _find_nodes(self, ranks_a_node: int | None) -> None:
        """Set local_rank, local_size, node and nodes from MPI's word on who shares memory."""
        if ranks_a_node is None:
            local = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED, key=self.rank)
        else:
            local = self._comm.Split(self.rank // ranks_a_node, key=self.rank)
        self.local_rank = local.Get_rank()
        self.local_size = local.Get_size()
        first = local.bcast(self.rank)
        local.Free()
        firsts = sorted(set(self._comm.allgather(first)))
        self.node = firsts.index(first)
        self.nodes = len(firsts)
        self._is_even = len(set(self._comm.allgather(self.local_size))) == 1

    def local(self) -> MpiGroup:
        """Return the group of this node's ranks; see `Group.local`."""
        if self._local is None:
            self._local = MpiGroup(self._comm.Split(self.node, key=self.rank), pace=self._pace)
        return self._local

    def across(self) -> MpiGroup | None:
        """Return the group of the ranks with this place in their nodes; see `Group.across`."""
        if "across" not in self._others:
            self._others["across"] = self._split(self.local_rank) if self._is_even else None
        return self._others["across"]

    def leaders(self) -> MpiGroup | None:
        """Return the group of the first ranks of all nodes; see `Group.leaders`."""
        if "leaders" not in self._others:
            self._others["leaders"] = self._split(None if self.local_rank else 0)
        return self._others["leaders"]

    def _split(self, color: int | None) -> MpiGroup | None:
        part = self._comm.Split(self._mpi.UNDEFINED if color is None else color, key=self.rank)
        return None if color is None else MpiGroup(part, pace=self._pace)

    def apart(self) -> MpiGroup:
        """Return a group of the same ranks for a second thread; see `Group.apart`."""
        return MpiGroup(self._comm, self._ranks_a_node, _Pace())

    def hurry(self, hurried: bool) -> None:
        """Say whether nobody needs the core while this group waits; see `Group.hurry`."""
        if self._pace is not None:
            self._pace.hurried = hurried

    @property
    def sleeps(self) -> bool:
        """Whether this group waits by sleeping."""
        return self._pace is not None

    def barrier(self, patient: bool = False) -> None:
        """Wait for all ranks; see `Group.barrier`."""
        if patient:
            _wait_patiently(self._comm.Ibarrier())
        else:
            self._comm.Barrier()

    def broadcast_object(self, value: Any, root: int = 0, patient: bool = False) -> Any:
        """Return the root's Python object on every rank; see `Group.broadcast_object`."""
        message = bytearray(self._mpi.pickle.dumps(value) if self.rank == root else b"")
        length = np.array([len(message)], np.int64)
        self._hand_round(length, root, patient)
        if self.rank != root:
            message = bytearray(int(length[0]))
        self._hand_round(np.frombuffer(message, np.uint8), root, patient)
        return value if self.rank == root else self._mpi.pickle.loads(message)

    def _hand_round(self, buffer: np.ndarray, root: int, patient: bool) -> None:
        if not patient:
            self.broadcast(buffer, root)
            return
        for piece in pieces(buffer):
            _wait_patiently(self._comm.Ibcast((piece, self._mpi.BYTE), root))

    def all_gather_objects(self, value: Any) -> list[Any]:
        """Return every rank's Python object, in rank order, on every rank."""
        return self._comm.allgather(value)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Copy the root's array into every rank's."""
        for piece in pieces(buffer):
            self._comm.Bcast((piece, self._mpi.BYTE), root)

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Sum the array over all ranks in place (MPI_Allreduce)."""
        for piece in pieces(buffer):
            if self._pace is None:
                self._comm.Allreduce(self._mpi.IN_PLACE, piece)
            else:
                self._pace.wait(self._comm.Iallreduce(self._mpi.IN_PLACE, piece))

    def reduce_scatter(self, buffer: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Sum over all ranks, keep this rank's part (MPI_Reduce_scatter); see `Group.reduce_scatter`."""
        if not is_long(buffer):
            self._comm.Reduce_scatter(buffer, out, counts)
            return
        for owner, part in enumerate(_parts(buffer, counts)):
            places = pieces(out) if owner == self.rank else itertools.repeat(None)
            for piece, place in zip(pieces(part), places, strict=False):
                self._comm.Reduce(piece, place, root=owner)

    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        """Fill in the other ranks' parts in place (MPI_Allgatherv); see `Group.all_gather`."""
        if not is_long(buffer):
            sizes = np.asarray(counts, np.int64) * buffer.itemsize
            self._comm.Allgatherv(self._mpi.IN_PLACE, [buffer, (sizes, _starts(sizes)), self._mpi.BYTE])
            return
        for owner, part in enumerate(_parts(buffer, counts)):
            self.broadcast(part, owner)

    def send(self, buffer: np.ndarray, to: int, tag: int = 0) -> _MpiRequest | _MpiRequests:
        """Start to send an array (MPI_Isend)."""
        return self._started(self._comm.Isend, buffer, to, tag)

    def receive(self, buffer: np.ndarray, source: int, tag: int = 0) -> _MpiRequest | _MpiRequests:
        """Start to receive an array of exactly this size (MPI_Irecv)."""
        return self._started(self._comm.Irecv, buffer, source, tag)

    def _started(self, start: Callable, buffer: np.ndarray, other: int, tag: int) -> _MpiRequest | _MpiRequests:
        """Start the transfer of an array; the pieces of a long one arrive in the order in which they were sent."""
        started = [_MpiRequest(start((piece, self._mpi.BYTE), other, tag), self._pace) for piece in pieces(buffer)]
        return started[0] if len(started) == 1 else _MpiRequests(started)

    def all_to_all(
        self, send: np.ndarray, send_rows: np.ndarray, receive: np.ndarray, receive_rows: np.ndarray
    ) -> _MpiRequest:
        """Start an exchange of rows (MPI_Ialltoallv); see `Group.all_to_all`."""
        layouts = [self._rows(send, send_rows, "send"), self._rows(receive, receive_rows, "receive")]
        return _MpiRequest(self._comm.Ialltoallv(*layouts), self._pace)

    def progress(self) -> None:
        """Let MPI move on what is under way; see `Group.progress`."""
        self._comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)

    def abort(self, code: int) -> NoReturn:
        """End every rank of the job at once with this exit code (MPI_Abort on the world)."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_LAST_WORDS_S)
        self._mpi.COMM_WORLD.Abort(code)
        os._exit(code)

    def _rows(self, array: np.ndarray, rows: np.ndarray, name: str) -> list:
        if len(rows) != self.size or int(np.sum(rows)) != len(array):
            raise ValueError(f"{name}_rows {list(rows)} do not fit {len(array)} rows and {self.size} ranks")
        if len(array) > _MAX_ROWS:
            raise CountError(f"an exchange of {len(array)} rows is more than MPI can count ({_MAX_ROWS} rows)")
        # Counted in rows, not in bytes: there may be more than 2^31 of those.
        counts = np.asarray(rows, np.int64)
        return [array, (counts, _starts(counts)), self._row_type(array)]

    def _row_type(self, array: np.ndarray) -> MPI.Datatype:
        size = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        if size not in self._row_types:
            self._row_types[size] = self._mpi.BYTE.Create_contiguous(size).Commit()
        return self._row_types[size]


class _Pace:
    """How a second thread waits: it looks, and sleeps; hurried, as MPI does, which keeps the core busy."""

    def __init__(self) -> None:
        self.hurried = False

    def wait(self, request: MPI.Request) -> None:
        """Return when the transfer is complete."""
        while not request.Test():
            if self.hurried:
                request.Wait()
                return
            time.sleep(_NAP_S)


class _MpiRequest:
    """MPI's request, which keeps its buffers alive."""

    __slots__ = ("_pace", "_request")

    def __init__(self, request: MPI.Request, pace: _Pace | None) -> None:
        self._request = request
        self._pace = pace

    def wait(self) -> None:
        """Return when the transfer is complete."""
        if self._pace is None:
            self._request.Wait()
        else:
            self._pace.wait(self._request)

    def test(self) -> bool:
        """Move the transfer on; return whether it is complete."""
        return self._request.Test()


class _MpiRequests:
    """The requests of a long array's pieces."""

    def __init__(self, requests: list[_MpiRequest]) -> None:
        self._requests = requests

    def wait(self) -> None:
        """Return when all pieces are there."""
        for request in self._requests:
            request.wait()

    def test(self) -> bool:
        """Move the transfer on; return whether it is complete."""
        self._requests = [request for request in self._requests if not request.test()]
        return not self._requests


def _wait_patiently(request: MPI.Request) -> None:
    """Wait without spinning: MPI's own waits keep a core busy that another rank may need for its work."""
    pause = 0.0005
    while not request.Test():
        time.sleep(pause)
        pause = min(2 * pause, _PATIENCE_S)


def _parts(buffer: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """Return the parts of a 1-D array that lie one behind the other."""
    return np.split(buffer, np.cumsum(counts)[:-1])


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Return where each part begins when parts of these sizes lie one behind the other."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]])
