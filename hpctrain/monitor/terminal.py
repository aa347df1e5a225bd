"""Finding out whether a person looks at this process's output on a terminal, through an MPI launcher too (Linux).

Under mpirun, rank 0's standard output is a pipe to the launcher (or, with Open MPI, a pseudo-terminal of the launcher's
own, wherever the output really goes).  So the launcher's standard output decides: its process is found among this one's
parents, by name in /proc.  A launcher on another node is out of sight; the output then counts as a file.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from hpctrain.errors import unknown_name

MODES = ("auto", "bar", "lines", "none")

_LAUNCHERS = (
    "mpirun mpiexec mpiexec.hydra mpiexec.gforker hydra_pmi_proxy hydra_bstrap_proxy pmi_proxy "
    "orterun orted prterun prte prted srun"
)
_KERNEL_NAME_LENGTH = 15  # the kernel cuts a process's name
LAUNCHERS = frozenset(name[:_KERNEL_NAME_LENGTH] for name in _LAUNCHERS.split())


@dataclass(frozen=True)
class Screen:
    """A terminal that somebody looks at; `path` opens it."""

    path: str

    def size(self) -> tuple[int, int]:
        """Return (columns, lines) as they are now; (80, 24) where the terminal does not say."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_NOCTTY)
            try:
                columns, lines = os.get_terminal_size(handle)
            finally:
                os.close(handle)
        except OSError:
            return 80, 24
        return columns or 80, lines or 24


def choose_mode(mode: str = "auto", stream: TextIO | None = None) -> tuple[str, Screen | None]:
    """Return "bar", "lines" or "none" for a wanted mode, and the terminal if there is one.

    "auto" is a bar on a terminal, and lines where the output goes elsewhere, the terminal is a dumb one ($TERM) or the
    run is a continuous integration's ($CI).

    Raises:
        UserError: a mode that is not one of `MODES`.
    """
    if mode not in MODES:
        raise unknown_name("progress mode", mode, MODES)
    if mode in ("lines", "none"):
        return mode, None
    screen = find_screen(sys.stdout if stream is None else stream)
    if mode == "auto":
        mode = "bar" if screen is not None and can_draw(os.environ) else "lines"
    return mode, screen


def can_draw(environ: Mapping[str, str]) -> bool:
    """Return whether the environment allows lines that are drawn over; NO_COLOR takes only the colours away."""
    if environ.get("TERM", "") in ("", "dumb", "unknown"):
        return False
    return environ.get("CI", "").lower() in ("", "0", "false")


def find_screen(stream: TextIO, process: int | None = None, proc: Path = Path("/proc")) -> Screen | None:
    """Return the terminal on which the text of a stream of this process appears, None without one.

    `process` and `proc` are for tests.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return None  # a notebook's stream, which may even have the file number of a terminal behind it
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return None
    own = proc / str(process or os.getpid()) / "fd" / str(number)
    launcher = find_launcher(process or os.getpid(), own, proc)
    path = own if launcher is None else proc / str(launcher) / "fd" / "1"
    return Screen(str(path)) if _is_terminal(path) else None


def find_launcher(process: int, output: Path, proc: Path = Path("/proc")) -> int | None:
    """Return the process id of the outermost launcher that reads what a process writes to `output`, None without one.

    Processes between this one and the launcher (a shell, `timeout`) must have the same standard output: else it is
    somebody else who reads it, such as `tee`.
    """
    try:
        if stat.S_ISREG(output.stat().st_mode):
            return None  # the person has sent it to a file
        target = os.readlink(output)
    except OSError:
        return None
    found = None
    for parent in _parents(process, proc):
        try:
            name = (proc / str(parent) / "comm").read_text().strip()
            if name in LAUNCHERS:
                found = parent
            elif found is not None or os.readlink(proc / str(parent) / "fd" / "1") != target:
                break
        except OSError:
            break
    return found


def _parents(process: int, proc: Path) -> Iterator[int]:
    """Yield the ids of a process's parent, its parent, and so on."""
    while True:
        try:
            # "PID (NAME) STATE PARENT ...", and the name may hold spaces and brackets.
            process = int((proc / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        if process <= 1:
            return
        yield process


def _is_terminal(path: Path) -> bool:
    try:
        if not stat.S_ISCHR(path.stat().st_mode):
            return False  # opening a pipe could wait, or disturb who reads it
        handle = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.isatty(handle)
    finally:
        os.close(handle)
