"""Starting hpctrain as a user does, `mpirun -n N python ...`, with a time limit that shows stacks and kills the ranks.

Nothing here knows what is launched; job files and data are in `datasets.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent

# A launcher that we are ourselves a child of must not speak to the worlds that we start.
_LAUNCHER_VARIABLES = ("PMI_", "PMIX_", "PMI2_", "HYDI_", "OMPI_", "PRTE_", "MPI_LOCAL")

# Open MPI refuses to run as root and with more ranks than cores unless told otherwise; other libraries ignore these.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class TimeLimitError(AssertionError):
    """What was launched did not end in time; the message holds its output with the stacks of every rank."""


@dataclass(frozen=True)
class Finished:
    """A launched world that has ended."""

    stdout: str
    stderr: str
    returncode: int
    seconds: float

    @property
    def output(self) -> str:
        """Everything that a user would have seen, stdout before stderr."""
        return self.stdout + self.stderr


class Launched:
    """A launched world that may still be running; use as a context manager, so that nothing outlives the test."""

    def __init__(self, command: list[str], env: Mapping[str, str], cwd: Path | str | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hpctrain-test-")
        self._out, self._err = (Path(self._folder.name) / name for name in ("stdout", "stderr"))
        self._start = time.monotonic()
        # Files, not pipes: a full pipe would stop the ranks, and what was written before a kill stays readable.
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        kill_all(self.process)
        self._folder.cleanup()

    @property
    def stdout(self) -> str:
        """What has been written to stdout so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What has been written to stderr so far."""
        return self._err.read_text(errors="replace")

    def ranks(self) -> list[psutil.Process]:
        """The processes of the world: the launcher's Python descendants (the launcher itself where it is Python)."""
        return [process for process in _family(self.process) if _is_python(process)]

    def kill_ranks(self) -> None:
        """SIGKILL every rank, as a node's power cut or the batch system's wall clock would."""
        for process in self.ranks():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def interrupt(self) -> None:
        """Send Ctrl-C to the launcher, which hands it on to the ranks."""
        self.process.send_signal(signal.SIGINT)

    def wait(self, timeout: float) -> Finished:
        """Return when the world has ended; after `timeout` seconds show every rank's stack, end it and raise."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._show_stacks()
            kill_all(self.process)
            raise TimeLimitError(f"not finished after {timeout:g} s\n{self.stdout}\n{self.stderr}") from None
        return Finished(self.stdout, self.stderr, self.process.returncode, time.monotonic() - self._start)

    def _show_stacks(self) -> None:
        # PYTHONFAULTHANDLER makes a Python that gets SIGABRT write the stacks of all its threads.
        for process in self.ranks():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(3)


def find_mpirun() -> str:
    """Return the mpirun beside this Python (so that the environment need not be activated), else the one on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if not found:
        raise FileNotFoundError("there is no mpirun: pip install '.[mpi]', or load the system's MPI")
    return found


def environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return the environment to launch in; `extra` adds variables, or removes those that it gives as None."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER_VARIABLES)}
    env |= _OPEN_MPI
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONFAULTHANDLER": "1", "NO_COLOR": "1"}
    for name, value in (extra or {}).items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


def start(
    ranks: int, *args: str | Path, env: Mapping[str, str | None] | None = None, cwd: Path | str | None = None
) -> Launched:
    """Start `mpirun -n RANKS python ARGS...`; `ranks` = 0 starts Python without a launcher."""
    launcher = [find_mpirun(), "-n", str(ranks)] if ranks else []
    return Launched([*launcher, sys.executable, *map(str, args)], environment(env), cwd)


def mpirun(
    ranks: int,
    *args: str | Path,
    timeout: float = 120,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | str | None = None,
) -> Finished:
    """Run `mpirun -n RANKS python ARGS...` to its end; `ranks` = 0 runs Python without a launcher.

    Raises `TimeLimitError` (an AssertionError) after `timeout` seconds, with the output and the stacks of every rank.
    """
    with start(ranks, *args, env=env, cwd=cwd) as launched:
        return launched.wait(timeout)


def hpctrain(ranks: int, *args: str | Path, **options: Any) -> Finished:
    """Run `mpirun -n RANKS python -m hpctrain ARGS...` to its end; the options are those of `mpirun`."""
    return mpirun(ranks, "-m", "hpctrain", *args, **options)


def kill_all(process: subprocess.Popen) -> None:
    """SIGKILL a launcher and all that it has started (ranks are sessions of their own: no process group holds them)."""
    for member in reversed(_family(process)):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def _family(process: subprocess.Popen) -> list[psutil.Process]:
    try:
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _is_python(process: psutil.Process) -> bool:
    try:
        return "python" in process.name()
    except psutil.NoSuchProcess:
        return False
