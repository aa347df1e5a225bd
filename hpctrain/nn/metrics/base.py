"""`Metric`: the contract of the metrics."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from hpctrain.errors import UserError
from hpctrain.options import Part

_USUAL = {"class": "accuracy", "real": "mae, r2"}  # for a hint


class Metric(Part):
    """Base of all metrics.

    Each rank begins with `start`, calls `update` for its rows in blocks of any size, and the states are merged in rank
    order: the result does not depend on who had which rows (but for rounding in float64).  A state is a float64 vector,
    unless a metric says otherwise, and travels between ranks by pickling.  A row is an example, or a position of one.
    A row of weight 0 does not count.  NaN in an output makes the result NaN; so does having no rows at all.
    """

    name: ClassVar[str]
    """The name under which the metric is registered."""

    target_kinds: ClassVar[tuple[str, ...]]
    """Kinds of targets that it can judge: "class", "real"."""

    better: ClassVar[str] = "lower"
    """Where the metric improves: "higher" or "lower"."""

    is_number: ClassVar[bool] = True
    """Whether the result is a number (early stopping can watch it), not a table."""

    def size(self, width: int) -> int:
        """Return the length of the state (float64) for a network with `width` outputs."""
        return 2

    def start(self, width: int, rows: int) -> Any:
        """Return an empty state for a network with `width` outputs; `rows` will be judged on all ranks together."""
        return np.zeros(self.size(width))

    def kept_bytes(self, width: int, rows: int) -> int:
        """Return the most memory that the states of an evaluation take on a rank, in the terms of `start`."""
        return 8 * self.size(width)

    @abstractmethod
    def update(self, state: Any, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows to the state: outputs (n, width) float32, targets int64 (n,) or float32 (n, width), weight (n,)
        float32."""

    def merge(self, into: Any, other: Any) -> None:
        """Add another rank's state to the first one, in place."""
        into += other

    def result(self, state: Any) -> Any:
        """Return the metric's value."""
        return ratio(state[0], state[1])

    def check_outputs(self, width: int, target_kind: str) -> None:
        """Raise a `UserError` where the metric cannot judge such targets or a network with `width` outputs."""
        if target_kind not in self.target_kinds:
            words = {"class": "whole numbers (class labels)", "real": "floating point targets"}
            raise UserError(
                f"the metric {self.name} does not fit the targets",
                found=words[target_kind],
                allowed=" or ".join(words[kind] for kind in self.target_kinds),
                hint=f"take metrics such as {_USUAL[target_kind]}",
            )

    def warm_up(self, width: int, target_kind: str) -> None:
        """Compile the kernels (or load them from the cache) by an update with one row of weight 0."""
        targets = np.zeros(1, np.int64) if target_kind == "class" else np.zeros((1, width), np.float32)
        state = self.start(width, 1)
        self.update(state, np.zeros((1, width), np.float32), targets, np.zeros(1, np.float32))


def ratio(total: float, weight: float) -> float:
    """Return total / weight; NaN where nothing counted."""
    return float(total / weight) if weight else math.nan


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Return metrics by the names that reports use: the registered name, with the options where a name occurs twice."""
    metrics = list(dict.fromkeys(metrics))
    names = [metric.name for metric in metrics]
    named = {}
    for metric in metrics:
        options = " ".join(f"{key}={value}" for key, value in metric.model_dump().items())
        named[f"{metric.name} {options}" if names.count(metric.name) > 1 else metric.name] = metric
    return named
