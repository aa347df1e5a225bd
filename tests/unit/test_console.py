"""What the console shows, as a bar and as lines; that it costs little and never breaks a run."""

from __future__ import annotations

import io
import math
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from hpctrain.monitor.base import EpochReport, EvaluationReport, RunInfo, StepReport
from hpctrain.monitor.console import ConsoleMonitor, PatientConsole

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A run of steps of equal length on an imitated clock, with what the monitor printed."""

    def __init__(self, mode: str, epochs: int = 3, steps: int = 40, first_step: int = 0, **options: object) -> None:
        self.clock = Clock()
        self.out = io.StringIO()
        bar = mode == "bar"
        console = Console(
            file=self.out, force_terminal=bar, color_system=None, width=110, highlight=False, markup=False, emoji=False
        )
        self.monitor = ConsoleMonitor(mode, console=console, clock_s=self.clock, **options)
        self.steps = steps
        self.info = RunInfo(
            job_name="digits [1]",
            run_dir=Path("runs/digits-001"),
            world_size=8,
            nodes=1,
            parameters=17226,
            train_examples=1300,
            validation_examples=144,
            test_examples=359,
            steps_per_epoch=steps,
            total_steps=epochs * steps,
            global_batch=33,
            strategy="all_reduce (ring)",
            first_step=first_step,
        )
        self.monitor.on_start(self.info)

    @property
    def text(self) -> str:
        return self.out.getvalue()

    def step(self, number: int, seconds: float = 0.1, loss: float = 0.5) -> None:
        self.clock.now += seconds
        self.monitor.on_step(StepReport(number, (number - 1) // self.steps, loss, 0.1, 33.0, seconds))

    def epoch(self, epoch: int, validate: bool = True) -> None:
        number = (epoch + 1) * self.steps
        self.monitor.on_epoch(EpochReport(epoch, number, 1300, 0.25, 4.0, 325.0))
        if validate:
            metrics = {"loss": 0.3, "accuracy": 0.975}
            self.monitor.on_evaluation(EvaluationReport("validation", epoch, number, 144, 0.1, metrics))

    def all(self, epochs: int, seconds: float = 0.1) -> None:
        for epoch in range(epochs):
            for number in range(epoch * self.steps + 1, (epoch + 1) * self.steps + 1):
                self.step(number, seconds)
            self.epoch(epoch)


SUMMARY = {"finished": True, "steps": 1200, "wall_s": 62.0, "compile_s": 4.24, "examples_per_s": 45123.0}


def test_lines_of_a_whole_run() -> None:
    run = Run("lines", log_every="2 s")
    run.monitor.on_event("compiling kernels took 4.2 s")
    run.all(3)
    run.monitor.on_evaluation(EvaluationReport("test", 2, 120, 359, 0.26, {"loss": 0.3, "accuracy": 0.97}))
    run.monitor.on_end({**SUMMARY, "test": {"loss": 0.3, "accuracy": 0.97}})
    run.monitor.close()
    lines = run.text.splitlines()
    assert lines[:7] == [
        "job       digits [1]",
        "ranks     8 ranks on 1 node",
        "model     17,226 parameters",
        "data      1,300 training, 144 validation, 359 test examples",
        "steps     120: 3 epochs of 40, global batch 33",
        "strategy  all_reduce (ring)",
        "folder    runs/digits-001",
    ]
    assert lines[7] == "compiling kernels took 4.2 s"
    # 1300 examples in 40 steps of 0.1 s; 120 steps take 12 s.
    assert lines[8] == "epoch 1/3  step 20/120  loss 0.5000  325 examples/s  0:10 left"
    epoch = "  loss 0.2500    validation: loss 0.3000    accuracy 97.50 %   325 examples/s  4.0 s"
    assert [line for line in lines if line.startswith("epoch") and "step" not in line] == [
        f"epoch {number}/3{epoch}" for number in (1, 2, 3)
    ]
    assert "test: loss 0.3000    accuracy 97.00 %   359 examples  260 ms" in lines
    table = [re.findall(r"[\w.]+(?: %)?", line) for line in lines[-9:-2]]
    assert [row for row in table if row] == [
        ["validation", "test"],
        ["loss", "0.3000", "0.3000"],
        ["accuracy", "97.50 %", "97.00 %"],
        ["examples", "144", "359"],
    ]
    assert lines[-2] == "finished after 1,200 steps in 1:02 min, compiling 4.2 s, 45.1 k examples/s"
    assert lines[-1] == "results in runs/digits-001"
    assert "\x1b" not in run.text


def test_a_long_run_does_not_flood_a_log() -> None:
    """Ten hours in steps of 1 s, an epoch every 40 s."""
    run = Run("lines", epochs=900)
    run.all(900, seconds=1.0)
    lines = run.text.splitlines()
    assert 200 < len(lines) < 500
    assert any(line.startswith("epoch 900/900") and "validation" in line for line in lines)


def test_every_epoch_of_a_short_run_has_its_line() -> None:
    run = Run("lines", epochs=50, steps=1)
    run.all(50, seconds=0.001)
    assert sum(line.startswith("epoch") and "validation" in line for line in run.text.splitlines()) == 50
    run = Run("lines", epochs=5000, steps=1)
    run.all(5000, seconds=0.001)
    assert sum(line.startswith("epoch") and "validation" in line for line in run.text.splitlines()) <= 7


def test_an_epoch_without_validation_has_its_line_before_what_follows() -> None:
    run = Run("lines", log_every="1000 steps")
    run.epoch(0, validate=False)
    run.monitor.on_event("checkpoint")
    run.epoch(1, validate=False)
    run.monitor.close()
    lines = run.text.splitlines()[7:]
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/3", "checkpoint", "epoch 2/3"]


def test_the_bar() -> None:
    run = Run("bar")
    run.all(3)
    run.monitor.on_event("checkpoint written")
    run.monitor.on_end({**SUMMARY, "test": {"accuracy": 0.97}})
    run.monitor.close()
    text = CONTROL.sub("", run.text)
    assert "─ digits [1] ─" in text
    assert re.search(r"epoch 1/3 .+ 1/120 loss 0\.5000 325 examples/s 0:12 left", text)
    assert re.search(r"epoch 3/3 .+ 120/120 loss 0\.5000 325 examples/s 0:00 left", text)
    assert "epoch 2/3  loss 0.2500    validation: loss 0.3000    accuracy 97.50 %   325 examples/s  4.0 s" in text
    assert "checkpoint written" in text
    assert text.splitlines()[-1] == "results in runs/digits-001"
    # Nothing leaves the terminal without its cursor: not even a kill at any time after the start.
    assert run.text.rindex("\x1b[?25h") > run.text.rindex("\x1b[?25l")
    shown = run.text.index("\x1b[?25h")
    assert "step" not in run.text[run.text.index("\x1b[?25l") : shown]


def test_the_bar_is_drawn_a_few_times_a_second_only() -> None:
    run = Run("bar", epochs=100)
    for number in range(1, 1001):
        run.step(number, 0.01)
    assert 45 <= run.text.count("\x1b[2K") <= 52  # ten seconds at 0.2 s


def test_a_resumed_run_says_so_and_counts_its_own_steps() -> None:
    run = Run("lines", first_step=60, log_every="10 steps")
    assert "resumed   after step 60\n" in run.text
    for number in range(61, 71):
        run.step(number)
    assert run.text.splitlines()[-1] == "epoch 2/3  step 70/120  loss 0.5000  325 examples/s  0:05 left"


def test_the_rate_is_of_steps_alone_and_the_time_left_of_everything() -> None:
    run = Run("lines", log_every="20 steps")
    for number in range(1, 41):
        run.step(number)
        run.clock.now += 0.1  # evaluation, checkpoint
    assert run.text.splitlines()[-1] == "epoch 1/3  step 40/120  loss 0.5000  325 examples/s  0:16 left"


def test_a_run_that_ends_within_an_epoch() -> None:
    run = Run("lines", epochs=3)
    run.info.total_steps = 100
    run.out.truncate(0)
    run.monitor.on_start(run.info)
    assert "100: 2.50 epochs of 40" in run.text
    run.monitor.on_epoch(EpochReport(2, 100, 647, 0.25, 2.0, 325.0))
    run.monitor.on_end({"finished": False, "steps": 100})
    assert "epoch 3/3" in run.text
    assert "stopped after 100 steps" in run.text


@pytest.mark.parametrize("mode", ["bar", "lines", "none"])
def test_odd_values_never_raise(mode: str) -> None:
    run = Run(mode, log_every=0)
    for number, loss in enumerate((math.nan, math.inf, -math.inf, 0.0, 1e300), start=1):
        run.step(number, 0.0, loss)
        run.step(number, 0.3, loss)
    run.monitor.on_epoch(EpochReport(0, 5, 0, math.nan, 0.0, math.inf))
    run.monitor.on_evaluation(EvaluationReport("validation", 0, 5, 0, math.nan, {"accuracy": math.nan, "[bold]": -1}))
    run.monitor.on_evaluation(EvaluationReport("test", 0, 5, 0, 0.0))
    run.monitor.on_event("[red]not markup[/nonsense] :smile:")
    run.monitor.on_end({"test": {"r2": None, "[bold]": math.nan}, "wall_s": math.nan})
    run.monitor.on_end({})
    run.monitor.close()
    run.monitor.close()
    assert ("loss nan" in run.text) == (mode != "none")
    assert ("[red]not markup[/nonsense] :smile:" in run.text) == (mode != "none")
    assert (run.text == "") == (mode == "none")


@pytest.mark.parametrize("mode", ["bar", "lines"])
def test_calls_before_the_start_and_an_empty_run(mode: str) -> None:
    out = io.StringIO()
    monitor = ConsoleMonitor(mode, console=Console(file=out, force_terminal=False, width=100))
    monitor.on_event("reading the data")
    monitor.on_start(RunInfo("x", Path("r"), 1, 1, 0, 0, 0, 0, 0, 0, 1, "all_reduce"))
    monitor.close()
    assert out.getvalue().startswith("reading the data\n")
    assert "0 training examples" in out.getvalue()


@pytest.mark.parametrize("mode", ["bar", "lines"])
def test_an_output_that_is_gone_does_not_end_the_run(mode: str) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    clock = Clock()
    monitor = ConsoleMonitor(mode, 0, PatientConsole(file=Gone(), force_terminal=mode == "bar", width=100), clock)
    monitor.on_start(RunInfo("x", Path("r"), 1, 1, 1, 10, 0, 0, 10, 10, 1, "all_reduce"))
    for number in range(1, 4):
        clock.now += 1
        monitor.on_step(StepReport(number, 0, 0.5, 0.1, 1.0, 1.0))
    monitor.on_end({})
    monitor.close()
    assert monitor.mode == "none"


def test_a_log_in_ascii_takes_any_job_name() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    monitor = ConsoleMonitor("lines", console=Console(file=out, force_terminal=False, width=100))
    monitor.on_start(RunInfo("größe", Path("r"), 1, 1, 1, 10, 0, 0, 10, 10, 1, "all_reduce"))
    monitor.on_end({"test": {"r²": 0.5}})
    out.seek(0)
    assert "gr??e" in out.read()


@pytest.mark.parametrize("mode", ["bar", "lines"])
def test_a_step_costs_little(mode: str) -> None:
    """20 us a step are allowed on average; fast steps of 0.1 ms on the real clock, the best of three tries."""
    console = Console(file=io.StringIO(), force_terminal=mode == "bar", width=110)
    monitor = ConsoleMonitor(mode, console=console)
    monitor.on_start(RunInfo("x", Path("r"), 1, 1, 1, 10, 0, 0, 10, 10**6, 1, "all_reduce"))
    report = StepReport(1, 0, 0.5, 0.1, 1.0, 1e-4)

    def cost(steps: int = 20_000) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            monitor.on_step(report)
        return (time.perf_counter() - start) / steps

    best = min(cost() for _ in range(3))
    monitor.close()
    assert best < 20e-6
