"""metrics.jsonl: its lines, how often they come, and what a resume does to them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import UserError
from hpctrain.monitor.base import EpochReport, EvaluationReport, RunInfo, StepReport
from hpctrain.monitor.metrics_log import MetricsLog

STEPS = 5  # an epoch


def info(first_step: int = 0) -> RunInfo:
    return RunInfo("job", Path("r"), 1, 1, 10, 50, 5, 5, STEPS, 20, 10, "all_reduce (ring)", first_step)


def step(number: int, loss: float = 0.5) -> StepReport:
    return StepReport(number, (number - 1) // STEPS, loss, 0.1, 10.0, 0.01)


def run(log: MetricsLog, first: int, last: int, loss: float = 0.5) -> None:
    """Report steps after `first` up to `last`, with their epochs and validations."""
    for number in range(first + 1, last + 1):
        log.on_step(step(number, loss))
        if number % STEPS == 0:
            log.on_epoch(EpochReport(number // STEPS - 1, number, 50, loss, 0.1, 500.0))
            log.on_evaluation(EvaluationReport("validation", number // STEPS - 1, number, 5, 0.1, {"loss": loss}))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def keys(path: Path) -> list[tuple[str, int | None]]:
    return [(line["kind"][:2], line.get("step")) for line in read(path)]


def test_each_kind_has_its_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl", log_every=0)
    log.on_start(info())
    log.on_step(StepReport(1, 0, 0.25, 0.1, 10.0, 0.01, grad_norm=2.0, data_wait_s=0.002, reduce_s=0.001))
    log.on_epoch(EpochReport(0, 1, 50, 0.25, 0.1, 500.0, 0.02, 0.01))
    log.on_evaluation(EvaluationReport("test", 0, 1, 5, 0.1, {"accuracy": 0.9}))
    log.on_end({"finished": True, "test": {"accuracy": 0.9}})
    log.close()
    lines = read(tmp_path / "m.jsonl")
    times = [line.pop("time_s") for line in lines]
    assert times == sorted(times)
    assert all(0 <= time < 60 for time in times)
    assert lines == [
        {
            "kind": "step",
            "step": 1,
            "epoch": 0,
            "loss": 0.25,
            "lr": 0.1,
            "weight": 10,
            "step_s": 0.01,
            "grad_norm": 2,
            "data_wait_s": 0.002,
            "reduce_s": 0.001,
        },
        {
            "kind": "epoch",
            "epoch": 0,
            "step": 1,
            "examples": 50,
            "train_loss": 0.25,
            "train_s": 0.1,
            "examples_per_s": 500,
            "data_wait_s": 0.02,
            "reduce_s": 0.01,
        },
        {
            "kind": "evaluation",
            "part": "test",
            "epoch": 0,
            "step": 1,
            "examples": 5,
            "seconds": 0.1,
            "metrics": {"accuracy": 0.9},
        },
        {"kind": "end", "finished": True, "test": {"accuracy": 0.9}},
    ]


def test_steps_are_throttled_but_an_epochs_last_is_there(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl", log_every="3 steps")
    log.on_start(info())
    run(log, 0, 10)
    log.on_step(step(11))
    assert keys(tmp_path / "m.jsonl") == [
        *[("st", 3), ("st", 5), ("ep", 5), ("ev", 5)],
        *[("st", 6), ("st", 9), ("st", 10), ("ep", 10), ("ev", 10)],
    ]
    log.close()
    assert keys(tmp_path / "m.jsonl")[-1] == ("st", 11)


def test_every_line_is_on_disk_at_once(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl", log_every=0)
    log.on_start(info())
    log.on_step(step(1))
    assert keys(tmp_path / "m.jsonl") == [("st", 1)]
    log.close()


def test_what_is_not_a_number_is_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl", log_every=0)
    log.on_start(info())
    log.on_step(step(1, math.nan))
    log.on_evaluation(EvaluationReport("test", 0, 1, 5, 0.1, {"r2": -math.inf}))
    log.close()
    lines = read(tmp_path / "m.jsonl")
    assert lines[0]["loss"] is None
    assert lines[1]["metrics"] == {"r2": None}


def test_a_new_run_starts_anew(tmp_path: Path) -> None:
    for _ in range(2):
        log = MetricsLog(tmp_path / "m.jsonl", log_every=0)
        log.on_start(info())
        run(log, 0, 2)
        log.close()
    assert keys(tmp_path / "m.jsonl") == [("st", 1), ("st", 2)]


def test_a_killed_runs_tail_is_not_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    log = MetricsLog(path, log_every=0)
    log.on_start(info())
    run(log, 0, 8, loss=1.0)
    log.on_end({"finished": False})
    log.close()
    with path.open("a") as file:
        file.write('{"kind": "step", "step": 5, "lo')  # killed while writing
    before_s = read_times(path)
    log = MetricsLog(path, log_every=0)
    log.on_start(info(first_step=5))
    run(log, 5, 10, loss=2.0)
    log.on_end({"finished": True})
    log.close()
    lines = read(path)
    steps = [(line["step"], line["loss"]) for line in lines if line["kind"] == "step"]
    assert steps == [(number, 1.0 if number <= 5 else 2.0) for number in range(1, 11)]
    assert [line["step"] for line in lines if line["kind"] == "epoch"] == [5, 10]
    assert [line["step"] for line in lines if line["kind"] == "evaluation"] == [5, 10]
    assert [line["finished"] for line in lines if line["kind"] == "end"] == [True]
    times = [line["time_s"] for line in lines]
    assert times == sorted(times)  # counts on from before
    assert times[5] >= before_s[5]


def read_times(path: Path) -> list[float]:
    return [json.loads(line)["time_s"] for line in path.read_text().splitlines()[:-1]]


def test_a_report_that_comes_again_after_a_resume_has_one_line(tmp_path: Path) -> None:
    """The checkpoint was written after step 5; its epoch and validation were logged before the kill."""
    path = tmp_path / "m.jsonl"
    for first_step in (0, 5):
        log = MetricsLog(path, log_every=0)
        log.on_start(info(first_step))
        run(log, 4 if first_step else 0, 5)
        log.close()
    assert keys(path)[-3:] == [("st", 5), ("ep", 5), ("ev", 5)]
    assert len(keys(path)) == 7


def test_a_resume_without_a_log_makes_one(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl", log_every=0)
    log.on_start(info(first_step=5))
    run(log, 5, 6)
    log.close()
    assert keys(tmp_path / "m.jsonl") == [("st", 6)]


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*m\.jsonl"):
        MetricsLog(tmp_path / "missing" / "m.jsonl").on_start(info())


def test_closing_without_a_start_does_nothing(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    log.close()
    log.close()
    assert list(tmp_path.iterdir()) == []
