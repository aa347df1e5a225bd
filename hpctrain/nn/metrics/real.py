"""Metrics for real targets.  The computing is in `kernels/metrics.py`."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from hpctrain.kernels import metrics as kernels
from hpctrain.nn.metrics.base import Metric, ratio


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
        return math.sqrt(ratio(state[0], state[1]))


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
