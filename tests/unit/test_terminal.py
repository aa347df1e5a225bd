"""Whether somebody looks: real pseudo-terminals behind an imitated /proc.  With a real launcher: tests/system."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.errors import UserError
from hpctrain.monitor.terminal import Screen, can_draw, choose_mode, find_screen


@pytest.fixture
def terminal() -> Iterator[str]:
    """A pseudo-terminal of 123 columns and 45 lines: its path."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 123, 0, 0))
    yield os.ttyname(slave)
    os.close(master)
    os.close(slave)


class Processes:
    """An imitated /proc: each process has a name, a parent and a standard output."""

    def __init__(self, root: Path) -> None:
        self.root = root / "proc"
        self.pipes = root
        self.last = 1

    def pipe(self, name: str) -> str:
        path = self.pipes / name
        os.mkfifo(path)
        return str(path)

    def add(self, name: str, output: str) -> int:
        """Add a child of the process added last."""
        parent, self.last = self.last, self.last + 100
        folder = self.root / str(self.last)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(name + "\n")
        (folder / "stat").write_text(f"{self.last} ({name} :) 1) S {parent} 1 1 0\n")
        (folder / "fd" / "1").symlink_to(output)
        return self.last


class Standard(io.TextIOWrapper):
    """Standard output, by its number."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())

    def fileno(self) -> int:
        return 1


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def screen(processes: Processes) -> Screen | None:
    """Look for the screen of the process added last."""
    return find_screen(Standard(), processes.last, processes.root)


def test_without_a_launcher_the_own_output_counts(processes: Processes, terminal: str, tmp_path: Path) -> None:
    processes.add("bash", terminal)
    processes.add("python", terminal)
    assert screen(processes).size() == (123, 45)
    processes.add("python", processes.pipe("pipe"))
    assert screen(processes) is None
    (tmp_path / "log").write_text("")
    processes.add("python", str(tmp_path / "log"))
    assert screen(processes) is None
    processes.add("python", "/dev/null")
    assert screen(processes) is None


@pytest.mark.parametrize(
    "launchers",
    [
        ["mpirun", "hydra_pmi_proxy"],
        ["mpiexec.hydra", "hydra_bstrap_pr", "hydra_pmi_proxy"],
        ["prterun"],
        ["orterun"],
        ["mpiexec"],
        ["srun"],
    ],
)
@pytest.mark.parametrize("wrappers", [[], ["bash", "timeout"]])
def test_through_launchers(processes: Processes, terminal: str, launchers: list[str], wrappers: list[str]) -> None:
    processes.add("bash", terminal)
    for depth, name in enumerate(launchers):
        processes.add(name, terminal if not depth else processes.pipe(f"inner-{depth}"))
    pipe = processes.pipe("rank")
    for name in [*wrappers, "python"]:
        processes.add(name, pipe)
    assert screen(processes).size() == (123, 45)


def test_the_launcher_decides_not_its_own_terminal(processes: Processes, terminal: str, tmp_path: Path) -> None:
    """Open MPI gives each rank a pseudo-terminal, wherever the output then goes."""
    (tmp_path / "slurm.out").write_text("")
    for output in (str(tmp_path / "slurm.out"), processes.pipe("less")):
        processes.add("mpirun", output)
        processes.add("python", terminal)
        assert screen(processes) is None
        processes.add("bash", processes.pipe(f"away-{processes.last}"))


def test_what_somebody_else_reads_is_no_screen(processes: Processes, terminal: str, tmp_path: Path) -> None:
    processes.add("mpirun", terminal)
    processes.add("sh", processes.pipe("launcher"))
    processes.add("python", processes.pipe("tee"))
    assert screen(processes) is None


def test_output_sent_to_a_file_under_a_launcher(processes: Processes, terminal: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    processes.add("mpirun", terminal)
    processes.add("python", str(tmp_path / "log"))
    assert screen(processes) is None


def test_a_terminal_inside_a_launched_program(processes: Processes, terminal: str) -> None:
    """mpirun -n 2 xterm -e python: the terminal is the program's, not the launcher's."""
    processes.add("mpirun", "/dev/null")
    processes.add("xterm", processes.pipe("launcher"))
    processes.add("python", terminal)
    assert screen(processes) is not None


def test_streams_of_notebooks_and_tests_are_no_screen() -> None:
    class Notebook(io.StringIO):
        def fileno(self) -> int:
            return 1

    assert find_screen(Notebook()) is None
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    assert find_screen(closed) is None


def test_a_terminal_that_is_gone_has_a_usual_size() -> None:
    assert Screen("/nowhere").size() == (80, 24)


@pytest.mark.parametrize(
    ("environ", "able"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True),
        ({"TERM": "xterm", "CI": "false"}, True),
        ({"TERM": "xterm", "CI": "true"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_the_environment_may_forbid_drawing(environ: dict[str, str], able: bool) -> None:
    assert can_draw(environ) is able


def test_modes(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    with open(terminal, "w") as stream:
        for mode in ("lines", "none"):
            assert choose_mode(mode, stream) == (mode, None)
    assert choose_mode("auto", io.StringIO()) == ("lines", None)
    assert choose_mode("bar", io.StringIO()) == ("bar", None)
    with pytest.raises(UserError, match="auto, bar, lines, none"):
        choose_mode("bars")
