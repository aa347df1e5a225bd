"""The progress display through a real launcher: a bar where a person looks at a terminal, lines elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import launching
import pytest

COLUMNS = 97

# Each rank says what it sees; rank 0 shows a short run, as the launcher's rank 0 does.
PROGRAM = """
import os, pathlib, sys, time
from hpctrain.comm.environment import launched
from hpctrain.monitor.base import EpochReport, RunInfo, StepReport
from hpctrain.monitor.console import ConsoleMonitor

if launched().rank == 0:
    monitor = ConsoleMonitor(log_every=0.1)
    print(f"mode {monitor.mode}, {monitor.console.width} columns", flush=True)
    monitor.on_start(RunInfo("job", pathlib.Path("runs/job-001"), 2, 1, 10, 300, 0, 0, 30, 30, 10, "all_reduce (ring)"))
    for step in range(1, 31):
        time.sleep(0.02)
        monitor.on_step(StepReport(step, 0, 1 / step, 0.1, 10.0, 0.02))
    monitor.on_epoch(EpochReport(0, 30, 300, 0.1, 0.6, 500.0))
    monitor.on_end({"test": {"accuracy": 0.975}, "steps": 30})
    monitor.close()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "show.py"
    path.write_text(PROGRAM)
    return path


def command(program: Path) -> list[str]:
    return [launching.find_mpirun(), "-n", "2", sys.executable, str(program)]


def on_a_terminal(command: list[str], limit_s: float = 60, **env: str) -> str:
    """Run a command on a pseudo-terminal and return what appeared on it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, COLUMNS, 0, 0))
    environment = {**launching.environment({"CI": None, "NO_COLOR": None, "TERM": "xterm-256color"}), **env}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    shown, end = b"", time.monotonic() + limit_s
    try:
        while time.monotonic() < end:
            if not select.select([master], [], [], 0.2)[0]:
                continue
            try:
                piece = os.read(master, 65536)
            except OSError:  # the other side is closed: the command has ended
                break
            if not piece:
                break
            shown += piece
        assert process.wait(max(1, end - time.monotonic())) == 0, shown.decode()
    finally:
        launching.kill_all(process)
        os.close(master)
    return shown.decode()


def test_a_bar_on_the_terminal_behind_the_launcher(program: Path) -> None:
    shown = on_a_terminal(command(program))
    assert f"mode bar, {COLUMNS} columns" in shown
    assert "\x1b[2K" in shown  # drawn over
    assert "\x1b[36m" in shown  # and in colour
    assert "30/30" in shown
    assert "500 examples/s" in shown
    assert "results in" in shown


def test_lines_where_the_launchers_output_is_a_pipe_or_a_file(program: Path, tmp_path: Path) -> None:
    finished = launching.mpirun(2, program, timeout=60)
    shell = " ".join(command(program))
    piped = on_a_terminal(["sh", "-c", f"{shell} | cat"])
    logged = on_a_terminal(["sh", "-c", f"{shell} > {tmp_path / 'log'}"])
    assert logged == ""
    for shown in (finished.stdout, piped.replace("\r\n", "\n"), (tmp_path / "log").read_text()):
        assert "mode lines" in shown
        assert "\x1b" not in shown
        assert "epoch 1/1  step" in shown
        assert "results in runs/job-001" in shown


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"CI": "true"}])
def test_lines_on_a_terminal_that_must_not_be_drawn_on(program: Path, env: dict[str, str]) -> None:
    shown = on_a_terminal(command(program), **env)
    assert "mode lines" in shown
    assert "\x1b" not in shown


def test_no_color_takes_the_colours_alone(program: Path) -> None:
    shown = on_a_terminal(command(program), NO_COLOR="1")
    assert "mode bar" in shown
    assert "\x1b[2K" in shown
    assert "\x1b[36m" not in shown
