"""`ConsoleMonitor`: what a person sees of a run, as a live bar on a terminal or as plain lines in a file."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.text import Text

from hpctrain.duration import Duration
from hpctrain.monitor.base import EpochReport, EvaluationReport, Monitor, RunInfo, StepReport
from hpctrain.monitor.pace import Rate, Throttle
from hpctrain.monitor.terminal import Screen, choose_mode
from hpctrain.monitor.views import end_summary, open_progress, start_summary, total_epochs
from hpctrain.monitor.words import clock, compact, count, figure, is_table, metric, seconds

_REFRESH_S = 0.2  # at most so often is the bar drawn ...
_REFRESH_SHARE = 0.005  # ... and with at most this share of the time
_ALL_EPOCHS = 50  # runs of more epochs leave lines out, see `ConsoleMonitor`
_COLUMN = 8  # characters of a value, so that epochs stand under each other
_WORTH_SAYING = 0.05  # of an epoch's time: waiting for data
_PLAIN_WIDTH = 100  # columns of tables in a file


class ConsoleMonitor(Monitor):
    """Prints a run's start, progress, epochs, evaluations, events and results.

    `mode` is "bar" (a live bar: epoch, step, loss, examples/s, time left), "lines", "none", or "auto", which looks at
    where the output goes (`terminal.choose_mode`).  With "lines", a line about a step comes every `log_every`; a time
    grows with the run (`pace.Throttle`), so that the log of a long batch job stays short.  Every epoch has one line,
    with its validation's metrics; of a run with more than 50 epochs those that end within `log_every` (growing as well)
    of the line before are left out, the last excepted.

    examples/s is a moving average over 10 s of steps, without evaluations and checkpoints; the time left includes them.
    An output that cannot be written any more (a closed pipe) silences the monitor and does not end the run.

    `console` is a `rich` console to print to in place of standard output.
    """

    def __init__(
        self,
        mode: str = "auto",
        log_every: Duration | str | float = 1.0,
        console: Console | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.mode, self._screen = choose_mode(mode)
        self.console = console or open_console(self.mode, self._screen)
        self._clock_s = clock_s
        self._step_lines = Throttle(log_every, growing=True)
        self._epoch_lines = Throttle(log_every, growing=True)
        self._info: RunInfo | None = None
        self._progress: Progress | None = None
        self._pending: EpochReport | None = None  # an epoch that waits for its validation, to share a line with it
        self._rate = Rate()
        self._start_s = 0.0
        self._next_draw_s = 0.0
        self._steps = 0  # of this process
        self._busy_s = 0.0
        self._last: StepReport | None = None
        self._evaluations: dict[str, EvaluationReport] = {}  # the last one of each part

    def on_start(self, info: RunInfo) -> None:
        """Show what will run, and start the bar."""
        self._info = info
        self._start_s = self._clock_s()
        for throttle in (self._step_lines, self._epoch_lines):
            throttle.start(info.first_step, info.steps_per_epoch, self._start_s)
        self._print(start_summary(info, framed=self.mode == "bar"))
        if self.mode == "bar":
            self._progress = open_progress(self.console, info)
            self._start_bar(self._progress)

    def on_step(self, report: StepReport) -> None:
        """Count the step; draw the bar or print a line when one is due."""
        self._steps += 1
        self._busy_s += report.step_s
        self._last = report
        now_s = self._clock_s()
        if self.mode == "bar":
            if now_s >= self._next_draw_s:
                self._draw(now_s)
        elif self._step_lines.due(report.step, now_s):
            self._print_step(report, now_s)

    def on_epoch(self, report: EpochReport) -> None:
        """Keep the epoch for the line that it shares with its validation."""
        self._print_pending()
        self._pending = report

    def on_evaluation(self, report: EvaluationReport) -> None:
        """Print the metrics: in the epoch's line when it is its validation, else in one of their own."""
        self._evaluations[report.part] = report
        numbers = {name: value for name, value in report.metrics.items() if not is_table(value)}
        values = "  ".join(f"{name} {metric(name, value):<{_COLUMN}}" for name, value in numbers.items())
        epoch = self._pending
        if epoch is not None and report.part == "validation" and report.step == epoch.step:
            self._pending = None
            self._print_epoch(epoch, f"  validation: {values}")
            return
        self._print_pending()
        rows = f"  {count(report.examples)} examples  {seconds(report.seconds)}"
        self._print(Text.assemble((f"{report.part}: ", "bold"), values, (rows, "dim")))

    def on_event(self, text: str) -> None:
        """Print a line."""
        self._print_pending()
        self._print(Text(str(text), style="dim"))

    def on_end(self, summary: dict[str, Any]) -> None:
        """Show the results and where they are."""
        self._print_pending()
        self._stop_bar()
        self._print(end_summary(summary, self._info, self._evaluations))

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._print_pending()
        self._stop_bar()

    def _print_step(self, report: StepReport, now_s: float) -> None:
        info = self._info
        total = info.total_steps if info else None
        epochs = f"epoch {report.epoch + 1}/{total_epochs(info)}  " if info else ""
        self._print(
            f"{epochs}step {count(report.step)}/{count(total)}  loss {figure(report.loss)}  "
            f"{self._speed()}  {clock(self._left_s(now_s))} left"
        )

    def _print_pending(self) -> None:
        epoch, self._pending = self._pending, None
        if epoch is not None:
            self._print_epoch(epoch, "")

    def _print_epoch(self, epoch: EpochReport, ending: str) -> None:
        epochs = total_epochs(self._info)
        due = self._epoch_lines.due(epoch.step, self._clock_s())
        if not due and epochs is not None and epochs > _ALL_EPOCHS and epoch.epoch + 1 < epochs:
            return
        number = f"{epoch.epoch + 1:{len(str(epochs))}}/{epochs}" if epochs is not None else f"{epoch.epoch + 1}"
        speed = f"  {compact(epoch.examples_per_s)} examples/s  {seconds(epoch.train_s)}"
        if epoch.train_s and epoch.data_wait_s >= _WORTH_SAYING * epoch.train_s:
            speed += f" ({epoch.data_wait_s / epoch.train_s:.0%} waiting for data)"
        loss = f"  loss {figure(epoch.train_loss):<{_COLUMN}}"
        line = Text.assemble((f"epoch {number}", "bold"), loss, ending)
        # On a narrow terminal a line that wraps is worse than one without the speed, which the bar shows as well.
        fits = self.mode != "bar" or len(line) + len(speed) <= self.console.width
        self._print(Text.assemble(line, (speed, "dim")) if fits else line)

    def _speed(self) -> str:
        rate = self._rate.update(self._steps, self._busy_s)
        if rate is None or self._info is None or not self._info.steps_per_epoch:
            return "- examples/s"
        return f"{compact(rate * self._info.train_examples / self._info.steps_per_epoch)} examples/s"

    def _left_s(self, now_s: float) -> float | None:
        if self._info is None or not self._steps:
            return None
        left = self._info.total_steps - self._info.first_step - self._steps
        return left * (now_s - self._start_s) / self._steps

    def _draw(self, now_s: float) -> None:
        """Bring the bar up to date, and put the next time off so far that drawing stays a small share of the run."""
        if self._progress is None or self._last is None:
            return
        if self._screen is not None:
            self.console.width = self._screen.size()[0]
        self._fill_bar(now_s)
        self._guarded(self._progress.refresh)
        done_s = self._clock_s()
        self._next_draw_s = done_s + max(_REFRESH_S, (done_s - now_s) / _REFRESH_SHARE)

    def _fill_bar(self, now_s: float) -> None:
        """Give the bar the last step's numbers, without drawing: `rich` draws it again below each printed line."""
        if self._progress is None or self._last is None:
            return
        last = self._last
        self._progress.update(
            self._progress.task_ids[0],
            completed=last.step,
            epoch=last.epoch + 1,
            step=count(last.step),
            loss=figure(last.loss),
            speed=self._speed(),
            left=clock(self._left_s(now_s)),
        )

    def _start_bar(self, progress: Progress) -> None:
        self._guarded(progress.start)
        # Without this, a job that is killed leaves a terminal without a cursor.
        self._guarded(lambda: self.console.show_cursor(True))

    def _stop_bar(self) -> None:
        if self._progress is not None:
            self._draw(self._clock_s())
            progress, self._progress = self._progress, None
            self._guarded(progress.stop)

    def _print(self, what: RenderableType) -> None:
        if self.mode != "none":
            self._fill_bar(self._clock_s())
            self._guarded(
                lambda: self.console.print(what, soft_wrap=self.mode == "lines" and isinstance(what, (str, Text)))
            )

    def _guarded(self, write: Callable[[], object]) -> None:
        """Write to the output; one that is gone or cannot take the text ends the display, not the run."""
        try:
            write()
        except (OSError, ValueError):  # a broken pipe or full disk; a closed file or a character it cannot encode
            self.mode, self.console.quiet = "none", True
            if self._progress is not None:
                with contextlib.suppress(Exception):  # it may have been broken off half started
                    self._progress.stop()  # gives sys.stdout back
                self._progress = None


class PatientConsole(Console):
    """A console that leaves a closed pipe to its user, where `rich` ends the program."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled; standard output goes nowhere now: Python flushes it at its exit."""
        if self.file is sys.__stdout__:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)
        raise


def open_console(mode: str, screen: Screen | None) -> Console:
    """Return a console on standard output that draws for "bar" and prints plain text for "lines"."""
    # A log's encoding may be ASCII under a batch system: a job's name in other letters must not be an error there.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    options = {"highlight": False, "markup": False, "emoji": False, "force_jupyter": False}
    if mode != "bar":
        return PatientConsole(force_terminal=False, color_system=None, width=_PLAIN_WIDTH, **options)
    columns, lines = screen.size() if screen else (_PLAIN_WIDTH, 25)
    return PatientConsole(force_terminal=True, width=columns, height=lines, **options)
