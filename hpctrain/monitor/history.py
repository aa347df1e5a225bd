"""`History`: the epochs of a run in memory, for the Python interface."""

from __future__ import annotations

from typing import Any

from hpctrain.monitor.base import EpochReport, EvaluationReport, Monitor


class History(Monitor):
    """Collects one dict an epoch: "epoch" (from 1), "step", "train_loss", "examples_per_s", and "validation"."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []

    def on_epoch(self, report: EpochReport) -> None:
        """Add the epoch."""
        self.epochs.append(
            {
                "epoch": report.epoch + 1,
                "step": report.step,
                "train_loss": report.train_loss,
                "examples_per_s": report.examples_per_s,
            }
        )

    def on_evaluation(self, report: EvaluationReport) -> None:
        """Add a validation's metrics to its epoch."""
        if report.part == "validation" and self.epochs:
            self.epochs[-1]["validation"] = dict(report.metrics)
