"""`Ending`: how the ranks of a job end: all together, or with one message where one of them fails or leaves alone.

It has a communicator of its own, and only calls that do not wait for others: a rank that ends must not need them.
What is said to people is not decided here, but in `run.guard`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from typing import TYPE_CHECKING, NoReturn

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

_FAILS, _SPEAKS = 1, 2  # message tags
_CLAIM_S = 0.3  # ranks that fail within this time of each other fail together
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.0005, 0.02
_AFTERLIFE_S = 10.0  # after which a rank that should have been ended by another ends by itself
WORKS, LEAVES = 1, 2  # what ranks say when they meet


class Ending:
    """The word that the ranks of a communicator have at the end."""

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm.Dup()
        self._own, self._words = np.zeros(1, np.int32), np.zeros(comm.Get_size(), np.int32)
        self._request: MPI.Request | None = None
        self._is_over = False
        atexit.register(self._leave_with_python)

    def speaks(self) -> bool:
        """Return whether this rank, which has failed, is to say why: of several that fail at a time one is, the lowest.

        Takes 0.3 s.  True where MPI itself does not work any more.
        """
        with contextlib.suppress(Exception):
            return self._claims()
        return True

    def _claims(self) -> bool:
        comm, anybody = self._comm, self._mpi.ANY_SOURCE
        nothing, status = bytearray(0), self._mpi.Status()
        others = [rank for rank in range(comm.Get_size()) if rank != comm.Get_rank()]
        sent = [comm.Isend([nothing, self._mpi.BYTE], other, _FAILS) for other in others]
        end = time.monotonic() + _CLAIM_S
        while time.monotonic() < end:
            while comm.Iprobe(anybody, _FAILS, status):
                comm.Recv([nothing, self._mpi.BYTE], status.Get_source(), _FAILS)
                if status.Get_source() < comm.Get_rank():
                    return False
            if comm.Iprobe(anybody, _SPEAKS):
                return False  # one that failed a moment earlier has begun to speak
            self._mpi.Request.Testall(sent)  # MPI moves messages on only when it is called
            time.sleep(_LEAST_PAUSE_S)
        sent += [comm.Isend([nothing, self._mpi.BYTE], other, _SPEAKS) for other in others]
        self._mpi.Request.Testall(sent)
        return True

    def meet(self) -> list[int]:
        """Wait until every rank has come here as often as this one, or has left; return the ranks that have left."""
        return [rank for rank, word in enumerate(self._gather(WORKS) or ()) if word == LEAVES]

    def leave(self, limit_s: float | None = None) -> bool:
        """Wait until all ranks leave; return whether they do.

        False where some have come to `meet` instead, who learn it in this way, or where some do neither within the
        limit.  Once all have left there is nobody to wait for.  Called at the end of Python, without a limit: there MPI
        itself would wait, and let those wait who need this rank.
        """
        if self._mpi.Is_finalized():
            return True
        words = self._gather(LEAVES, limit_s)
        self._is_over = words is not None and WORKS not in words
        return self._is_over

    def await_end(self) -> NoReturn:
        """Wait for another rank to end the job."""
        time.sleep(_AFTERLIFE_S)
        os._exit(1)

    def _leave_with_python(self) -> None:
        if not self.leave():
            self.await_end()

    def _gather(self, word: int, limit_s: float | None = None) -> list[int] | None:
        """Return every rank's word at this meeting, in rank order; None where some are not there within the limit.

        The next call then goes on waiting, with the first one's word.
        """
        if self._is_over:
            return self._words.tolist()
        if self._request is None:
            self._own[:] = word
            self._request = self._comm.Iallgather(self._own, self._words)
        started, pause = time.monotonic(), _LEAST_PAUSE_S
        while not self._request.Test():
            if limit_s is not None and time.monotonic() - started > limit_s:
                return None
            time.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE_S)
        self._request = None
        return self._words.tolist()
