"""`MetricsLog`: the run as `metrics.jsonl`, one JSON object a line.

Every line has `kind` and `time_s`, the seconds of training so far (a resumed run counts on from its last line):

    step         step, epoch, loss, lr, weight, step_s, grad_norm (null unless clipping), data_wait_s, reduce_s
    epoch        epoch, step, examples, train_loss, train_s, examples_per_s, data_wait_s, reduce_s
    evaluation   part, epoch, step, examples, seconds, metrics (name -> value)
    end          what is in summary.json

Epochs count from 0, finished steps from 1.  What is not a number is null: strict JSON.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, TextIO

from hpctrain.duration import Duration
from hpctrain.files import atomic_text, cannot_write
from hpctrain.monitor.base import EpochReport, EvaluationReport, Monitor, RunInfo, StepReport
from hpctrain.monitor.pace import Throttle
from hpctrain.monitor.words import plain


class MetricsLog(Monitor):
    """Writes metrics.jsonl: a step every `log_every` and always an epoch's last one, and all epochs and evaluations.

    A run that starts at step 0 starts the file anew.  A resumed one appends, after the lines past the step that it
    resumes from, an `end`, and a line cut off by a kill are removed, so that no step stands there twice.

    Raises:
        UserError: the file cannot be written (from `on_start` and every report).
    """

    def __init__(self, path: str | Path, log_every: Duration | str | float = 1.0) -> None:
        self.path = Path(path)
        self._throttle = Throttle(log_every)
        self._file: TextIO | None = None
        self._start_s = 0.0
        self._waiting: StepReport | None = None  # the newest step that has no line yet
        self._there: set[tuple[Any, ...]] = set()  # reports of the resumed step that have their line from before

    def on_start(self, info: RunInfo) -> None:
        """Open the file; on a resume remove what the resumed run will write again."""
        kept = _kept_lines(self.path, info.first_step) if info.first_step else []
        self._there = {_identity(line) for line in kept}
        before_s = max((line.get("time_s") or 0.0 for line in kept), default=0.0)
        now_s = time.perf_counter()
        self._start_s = now_s - before_s
        self._throttle.start(info.first_step, info.steps_per_epoch, now_s)
        atomic_text(self.path, "".join(_dump(line) for line in kept))
        try:
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def on_step(self, report: StepReport) -> None:
        """Write the step if a line is due; else keep it in mind, in case it is the last of the epoch."""
        self._waiting = report
        if self._throttle.due(report.step, time.perf_counter()):
            self._write_waiting()

    def on_epoch(self, report: EpochReport) -> None:
        """Write the epoch's last step and the epoch."""
        self._write_waiting()
        self._write("epoch", dataclasses.asdict(report))

    def on_evaluation(self, report: EvaluationReport) -> None:
        """Write the evaluation."""
        self._write_waiting()
        self._write("evaluation", dataclasses.asdict(report))

    def on_end(self, summary: dict[str, Any]) -> None:
        """Write the summary."""
        self._write_waiting()
        self._write("end", summary)

    def close(self) -> None:
        """Write the last step and close the file."""
        if self._file is not None:
            self._write_waiting()
            self._file.close()
            self._file = None

    def _write_waiting(self) -> None:
        if self._waiting is not None:
            self._write("step", dataclasses.asdict(self._waiting))
            self._waiting = None

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        line = {"kind": kind, "time_s": round(time.perf_counter() - self._start_s, 6), **values}
        if self._file is None or _identity(line) in self._there:
            return
        try:
            self._file.write(_dump(line))
            self._file.flush()
        except OSError as error:
            raise cannot_write(self.path, error) from error


def _dump(line: dict[str, Any]) -> str:
    return json.dumps(plain(line), allow_nan=False) + "\n"


def _identity(line: dict[str, Any]) -> tuple[Any, ...]:
    return line.get("kind"), line.get("step"), line.get("part")


def _kept_lines(path: Path, step: int) -> list[dict[str, Any]]:
    """Return a log's lines up to a step, without an `end` and without what cannot be read (a line cut by a kill)."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_write(path, error) from error
    kept = []
    for row in text.splitlines():
        try:
            line = json.loads(row)
            if line["kind"] != "end" and line["step"] <= step:
                kept.append(line)
        except (ValueError, TypeError, KeyError):
            continue
    return kept
