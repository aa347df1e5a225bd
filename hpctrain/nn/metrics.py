"""Metrics: what a network is judged by.  Exact over all ranks: states are sums that are merged, never means of means.

The computing is in `kernels/metrics.py`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from pydantic import Field

from hpctrain.errors import UserError
from hpctrain.kernels import metrics as kernels
from hpctrain.options import Part


class Metric(Part):
    """Base of all metrics.

    Each rank starts from `np.zeros(metric.size(width))`, calls `update` for its rows in blocks of any size, and the
    states are merged in rank order: the result does not depend on who had which rows (but for rounding in float64).
    A row of weight 0 does not count.  NaN in an output makes the result NaN; so does having no rows at all.
    """

    name: ClassVar[str]
    """The name under which the metric is registered."""

    target_kinds: ClassVar[tuple[str, ...]]
    """Kinds of targets that it can judge: "class", "real"."""

    better: ClassVar[str] = "lower"
    """Where the metric improves: "higher" or "lower"."""

    def size(self, width: int) -> int:
        """Return the length of the state (float64) for a network with `width` outputs."""
        return 2

    @abstractmethod
    def update(self, state: np.ndarray, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows to the state: outputs (n, width) float32, targets int64 (n,) or float32 (n, width), weight (n,)
        float32."""

    def merge(self, into: np.ndarray, other: np.ndarray) -> None:
        """Add another rank's state to the first one, in place."""
        into += other

    def result(self, state: np.ndarray) -> float:
        """Return the metric's value."""
        return _ratio(state[0], state[1])

    def check_outputs(self, width: int, target_kind: str) -> None:
        """Raise a `UserError` where the metric cannot judge such targets or a network with `width` outputs."""
        if target_kind not in self.target_kinds:
            words = {"class": "whole numbers (class labels)", "real": "floating point targets"}
            raise UserError(
                f"the metric {self.name} does not fit the targets",
                found=words[target_kind],
                allowed=" or ".join(words[kind] for kind in self.target_kinds),
                hint=f"take metrics such as {', '.join(metric.name for metric in default_metrics(target_kind))}",
            )

    def warm_up(self, width: int, target_kind: str) -> None:
        """Compile the kernels (or load them from the cache) by an update with one row of weight 0."""
        targets = np.zeros(1, np.int64) if target_kind == "class" else np.zeros((1, width), np.float32)
        state = np.zeros(self.size(width))
        self.update(state, np.zeros((1, width), np.float32), targets, np.zeros(1, np.float32))


def _ratio(total: float, weight: float) -> float:
    return float(total / weight) if weight else math.nan


class Accuracy(Metric):
    """Part of the examples whose largest output is that of their class (the first of equal ones is the largest).

    With one output, a logit as for binary_cross_entropy, class 1 is predicted where it is above 0.
    """

    name: ClassVar[str] = "accuracy"
    target_kinds: ClassVar[tuple[str, ...]] = ("class",)
    better: ClassVar[str] = "higher"

    def update(self, state: np.ndarray, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: see `Metric.update`."""
        kernels.accuracy(state, outputs, targets, weight)


class TopK(Metric):
    """Part of the examples whose class is among the k largest outputs: fewer than k outputs are greater than that of
    the class.

    Equal outputs are thus counted in favour of the class, whatever their order.

    k  1 or more; at most the number of outputs
    """

    name: ClassVar[str] = "top_k"
    target_kinds: ClassVar[tuple[str, ...]] = ("class",)
    better: ClassVar[str] = "higher"

    k: int = Field(5, ge=1)

    def update(self, state: np.ndarray, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: see `Metric.update`."""
        kernels.top_k(state, outputs, targets, weight, self.k)

    def check_outputs(self, width: int, target_kind: str) -> None:
        """Raise a `UserError` also where there are not even k outputs, or only one."""
        super().check_outputs(width, target_kind)
        if width == 1:
            raise UserError("the metric top_k needs an output for each class", found="1 output", hint="take accuracy")
        if self.k > width:
            raise UserError(
                "the metric top_k would always be 1: k is larger than the number of outputs",
                found=f"k = {self.k}, {width} outputs",
                allowed=f"k from 1 to {width}",
                hint='for example {name = "top_k", k = 2}',
            )


class MeanAbsoluteErrorMetric(Metric):
    """Mean of |x - y| over examples and columns."""

    name: ClassVar[str] = "mae"
    target_kinds: ClassVar[tuple[str, ...]] = ("real",)

    def update(self, state: np.ndarray, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: see `Metric.update`."""
        kernels.absolute_error(state, outputs, targets, weight)


class RootMeanSquaredError(Metric):
    """Square root of the mean of (x - y)^2 over examples and columns."""

    name: ClassVar[str] = "rmse"
    target_kinds: ClassVar[tuple[str, ...]] = ("real",)

    def update(self, state: np.ndarray, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: see `Metric.update`."""
        kernels.squared_error(state, outputs, targets, weight)

    def result(self, state: np.ndarray) -> float:
        """Return the root of the mean square."""
        return math.sqrt(_ratio(state[0], state[1]))


class R2(Metric):
    """Coefficient of determination, 1 - sum (x - y)^2 / sum (y - mean y)^2 for each column, the mean over the columns.

    1 is perfect, 0 no better than the mean of these same targets.  A column whose targets are all equal counts as 0,
    whatever the outputs are.

    State: [W, means (k), sums of squares about them (k), squared errors (k)].
    """

    name: ClassVar[str] = "r2"
    target_kinds: ClassVar[tuple[str, ...]] = ("real",)
    better: ClassVar[str] = "higher"

    def size(self, width: int) -> int:
        """Return 1 + 3 width."""
        return 1 + 3 * width

    def update(self, state: np.ndarray, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: see `Metric.update`."""
        errors = 1 + 2 * outputs.shape[1]
        kernels.moments(state[:errors], targets, weight)
        kernels.column_squared_error(state[errors:], outputs, targets, weight)

    def merge(self, into: np.ndarray, other: np.ndarray) -> None:
        """Add another rank's state to the first one, in place."""
        errors = 1 + 2 * (len(into) // 3)
        _merge_moments(into[:errors], other[:errors])
        into[errors:] += other[errors:]

    def result(self, state: np.ndarray) -> float:
        """Return the mean over the columns."""
        if not state[0]:
            return math.nan
        squares, errors = state[1:].reshape(3, -1)[1:]
        varied = squares != 0
        ratio = np.divide(errors, squares, out=np.ones_like(errors), where=varied)
        ratio[~varied & np.isnan(errors)] = np.nan
        return float(np.mean(1 - ratio))


class MeanPredictor:
    """The predictor that always says the mean of the targets: what any network must beat.  Not a metric, but judged
    by them.

    A first pass over the targets (best of the training part) gives its state, merged over ranks as a metric's; `fill`
    then makes its outputs, to be given to any metric for real targets.

    State: [W, means (k), sums of squares about them (k)], float64.
    """

    def size(self, width: int) -> int:
        """Return the length of the state for targets of `width` columns."""
        return 1 + 2 * width

    def update(self, state: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: targets (n, width) float32, weight (n,) float32."""
        kernels.moments(state, targets, weight)

    def merge(self, into: np.ndarray, other: np.ndarray) -> None:
        """Add another rank's state to the first one, in place."""
        _merge_moments(into, other)

    def mean(self, state: np.ndarray) -> np.ndarray:
        """Return the mean of each column (width,) in float64; NaN where there was no row."""
        width = (len(state) - 1) // 2
        return state[1 : 1 + width].copy() if state[0] else np.full(width, np.nan)

    def fill(self, state: np.ndarray, outputs: np.ndarray) -> None:
        """Write the predictor's outputs, the same in every row, into `outputs` (n, width) float32."""
        outputs[:] = self.mean(state)


def _merge_moments(into: np.ndarray, other: np.ndarray) -> None:
    """Merge [W, means, sums of squares about them] in place (Chan, Golub and LeVeque 1979).

    W = Wa + Wb; d = mean_b - mean_a; mean = mean_a + d Wb / W; M = Ma + Mb + d^2 Wa Wb / W.
    """
    if not other[0]:
        return
    total = into[0] + other[0]
    mean, squares = into[1:].reshape(2, -1)
    other_mean, other_squares = other[1:].reshape(2, -1)
    difference = other_mean - mean
    squares += other_squares + difference**2 * (into[0] * (other[0] / total))
    mean += difference * (other[0] / total)
    into[0] = total


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Return metrics by the names that reports use: the registered name, with the options where a name occurs twice."""
    metrics = list(dict.fromkeys(metrics))
    names = [metric.name for metric in metrics]
    named = {}
    for metric in metrics:
        options = " ".join(f"{key}={value}" for key, value in metric.model_dump().items())
        named[f"{metric.name} {options}" if names.count(metric.name) > 1 else metric.name] = metric
    return named


def default_metrics(target_kind: str) -> list[Metric]:
    """Return the metrics of a job that names none: accuracy for class labels, mae and r2 for real targets."""
    return [Accuracy()] if target_kind == "class" else [MeanAbsoluteErrorMetric(), R2()]
