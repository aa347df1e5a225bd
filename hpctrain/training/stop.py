"""`StopSignal`: a signal asks the run to end in good order, with a checkpoint, instead of killing it.

What is done about a request (agreeing on it with the other ranks, the checkpoint) is the trainer's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType, TracebackType

# Ctrl-C; `scancel` and `kill`; what batch systems can be told to send ahead of the time limit (Slurm:
# --signal=USR1@60); a terminal or a connection that closes.
SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP")

# A launcher may pass on a Ctrl-C that the terminal has sent to this process already: two within this time are one.
_SAME_PRESS_S = 0.5


class StopSignal:
    """Context manager in which the signals of `SIGNALS` set `requested` and nothing else; it restores the handlers.

    A second Ctrl-C kills the process at once.  SIGHUP stays ignored where it is (`nohup`).  Python lets only the main
    thread set handlers: in any other one (a notebook's worker, a thread pool) the context does nothing.
    """

    def __init__(self, announce: str | None = None) -> None:
        self._announce = announce  # said on standard error when the first signal comes; None: nothing
        self.requested: str | None = None  # name of the first signal that came
        self._before: dict[str, object] = {}
        self._first_s = 0.0

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for name in SIGNALS:
                if name == "SIGHUP" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                    continue
                self._before[name] = signal.signal(getattr(signal, name), self._handle)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, handler in self._before.items():
            # None: a handler that was not set from Python and cannot be set again.
            signal.signal(getattr(signal, name), handler if handler is not None else signal.SIG_DFL)
        self._before.clear()

    def request(self, name: str) -> None:
        """Ask for the stop from inside the program, as if the signal `name` had come; the first request counts."""
        if self.requested is None:
            self.requested, self._first_s = name, time.monotonic()

    @property
    def exit_code(self) -> int:
        """Exit code of a run that this stopped, see `exit_code_of`."""
        return exit_code_of(self.requested)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self.requested is not None and time.monotonic() - self._first_s > _SAME_PRESS_S
        if number == signal.SIGINT and again:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        if self.requested is None and self._announce:
            # Not `print`: the signal may have come in the middle of one.
            more = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
            with contextlib.suppress(OSError):
                os.write(2, f"{signal.Signals(number).name}: {self._announce}{more}\n".encode())
        self.request(signal.Signals(number).name)


def exit_code_of(name: str | None) -> int:
    """Return the exit code for a run stopped by the named signal: 128 + its number, as shells count; 0 without one.

    130 for SIGINT, 143 for SIGTERM, 138 for SIGUSR1, 140 for SIGUSR2, 129 for SIGHUP (on Linux): a batch script can
    tell a run that must be resumed from one that is finished.
    """
    return 128 + getattr(signal, name).value if name else 0
