"""`Monitor`: what is told about a run while it goes on, and the reports that monitors receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class RunInfo:
    """What is known before the first step."""

    job_name: str
    run_dir: Path
    world_size: int
    nodes: int
    parameters: int  # trainable numbers in the model
    train_examples: int
    validation_examples: int
    test_examples: int
    steps_per_epoch: int
    total_steps: int
    global_batch: int
    strategy: str  # one phrase for people: "all_reduce (ring)"
    first_step: int = 0  # > 0 after a resume
    dropped: Mapping[str, int] = field(default_factory=dict)  # part -> examples of it that do not count


@dataclass
class StepReport:
    """One finished update; `loss` is the weighted mean over the global batch, `step` counts finished updates from 1."""

    step: int
    epoch: int  # counted from 0
    loss: float
    lr: float
    weight: float
    step_s: float
    grad_norm: float | None = None
    data_wait_s: float = 0.0  # of step_s, on rank 0: waiting for rows
    reduce_s: float = 0.0  # of step_s, on rank 0: until the gradients were summed, where that was not hidden


@dataclass
class EpochReport:
    """One finished pass over the data; `train_loss` is the weighted mean over the epoch as trained (float64 sums)."""

    epoch: int  # counted from 0
    step: int
    examples: int
    train_loss: float
    train_s: float
    examples_per_s: float
    data_wait_s: float = 0.0  # of train_s, on rank 0: waiting for rows
    reduce_s: float = 0.0  # of train_s, on rank 0: until the gradients were summed, where that was not hidden


@dataclass
class EvaluationReport:
    """Metrics of one part of the data ("validation" or "test")."""

    part: str
    epoch: int
    step: int
    examples: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)


class Monitor:
    """Base of all monitors; every method may be left out.

    Monitors run on rank 0 alone unless `collective` is true: then all workers call them, at the same places, and they
    may use collective operations.
    """

    collective = False

    def on_start(self, info: RunInfo) -> None:
        """Called once, before the first step."""

    def on_step(self, report: StepReport) -> None:
        """Called after every update."""

    def on_epoch(self, report: EpochReport) -> None:
        """Called after every pass over the data."""

    def on_evaluation(self, report: EvaluationReport) -> None:
        """Called after every evaluation."""

    def on_event(self, text: str) -> None:
        """Called with a line for people: a checkpoint was written, kernels are being compiled, ..."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """Called once with what goes into summary.json; not called when the run fails."""

    def close(self) -> None:
        """Called at the very end, after a failure too: leave the terminal and the files in order."""
