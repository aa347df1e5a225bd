"""A metric that is a table: out of the lines of a run, below the table at its end, and refused for early stopping."""

import io

import h5py
import numpy as np
import pytest
from rich.console import Console

from hpctrain import Job
from hpctrain.errors import UserError
from hpctrain.monitor.base import EpochReport, EvaluationReport
from hpctrain.monitor.console import ConsoleMonitor
from hpctrain.monitor.views import matrix
from hpctrain.monitor.words import metric
from hpctrain.run.master import resolve
from hpctrain.tools.evaluate import table

COUNTS = [[12, 3], [0, 1234]]


def printed(*things: object) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    for thing in things:
        console.print(thing)
    return console.file.getvalue()


def test_the_end_of_a_run_shows_the_table():
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    monitor = ConsoleMonitor("lines", console=console)
    metrics = {"loss": 0.5, "accuracy": 0.75, "confusion_matrix": COUNTS}
    monitor.on_epoch(EpochReport(0, 10, 100, 0.6, 1.0, 100.0))
    monitor.on_evaluation(EvaluationReport("validation", 0, 10, 50, 0.1, metrics))
    line = console.file.getvalue()
    assert "accuracy 75.00 %" in line
    assert "confusion_matrix" not in line
    monitor.on_end({"test": metrics, "steps": 10, "wall_s": 1.0})
    end = console.file.getvalue().removeprefix(line)
    assert "confusion_matrix, test" in end
    rows = [row.split() for row in end.splitlines()]
    assert ["0", "12", "3"] in rows
    assert ["1", "0", "1,234"] in rows


def test_large_tables_are_only_named():
    assert "21 classes" in printed(matrix("confusion_matrix", np.eye(21).tolist()))
    assert metric("confusion_matrix", COUNTS) == "2 x 2"


def test_evaluate_prints_the_table_line_by_line():
    lines = table("run", {"loss": 0.25, "confusion_matrix": COUNTS}).splitlines()
    assert [line.split() for line in lines[2:]] == [["confusion_matrix", "12", "3"], ["0", "1234"]]
    assert lines[2].index("3") == lines[3].index("1234") + 3


def test_early_stop_cannot_watch_a_table(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros((20, 2)), np.arange(20) % 2
    job = Job(
        data={"files": str(tmp_path / "a.h5"), "input": "x", "target": "y", "split": {"validation": 0.5}},
        metrics={"names": ["accuracy", "confusion_matrix"]},
        run={"epochs": 1, "early_stop": {"metric": "confusion_matrix"}},
    )
    with pytest.raises(UserError, match="confusion_matrix(.|\n)*accuracy, loss"):
        resolve(job)
