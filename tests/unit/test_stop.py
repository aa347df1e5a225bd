"""Signals set a flag, the second Ctrl-C kills, and everything is as before afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hpctrain.training.stop import SIGNALS, StopSignal, exit_code_of


@pytest.mark.parametrize(
    ("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 138), ("SIGUSR2", 140), ("SIGHUP", 129)]
)
def test_each_signal_sets_the_flag(name: str, code: int) -> None:
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with StopSignal() as stop:
            assert stop.requested is None
            assert stop.exit_code == 0
            signal.raise_signal(number)
            assert stop.requested == name
            assert stop.exit_code == exit_code_of(name) == code
        assert signal.getsignal(number) is signal.SIG_DFL
        assert stop.requested == name
    finally:
        signal.signal(number, before)


def test_the_first_request_counts() -> None:
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        stop.request("SIGINT")
        assert stop.requested == "SIGUSR1"


def test_a_hangup_that_is_ignored_stays_so() -> None:
    """As `nohup` wants it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.requested is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_ctrl_c_is_spoken_of_to_those_who_pressed_it(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with StopSignal("stopping") as stop:
        signal.raise_signal(getattr(signal, name))
    assert stop.requested == name
    more = "; Ctrl-C again ends at once" if name == "SIGINT" else ""
    assert capfd.readouterr().err == f"{name}: stopping{more}\n"


def test_handlers_come_back_after_an_error() -> None:
    before = [signal.getsignal(getattr(signal, name)) for name in SIGNALS]
    with pytest.raises(ZeroDivisionError), StopSignal():
        raise ZeroDivisionError
    assert [signal.getsignal(getattr(signal, name)) for name in SIGNALS] == before


def test_one_press_that_comes_twice_does_not_kill() -> None:
    """A launcher may pass on the Ctrl-C that the terminal has sent already."""
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.requested == "SIGINT"


def test_harmless_in_another_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work() -> None:
        with StopSignal() as stop:
            seen.append((signal.getsignal(signal.SIGTERM), stop.requested))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [(before, None)]


def test_the_second_ctrl_c_kills_at_once() -> None:
    program = (
        "import time; from hpctrain.training.stop import StopSignal\n"
        "with StopSignal() as stop:\n"
        "    print('ready', flush=True)\n"
        "    while stop.requested is None: time.sleep(0.01)\n"
        "    print(stop.requested, flush=True)\n"
        "    while True: pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "SIGINT\n"
        time.sleep(0.7)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()
