"""`Auc`: the area under the ROC curve, exact over all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from hpctrain.kernels import metrics_classes
from hpctrain.nn.metrics.base import Metric

EXACT_SCORES = 1 << 22  # of all ranks: 20 bytes each at most on every rank
_COARSE_BITS = 16
_PENDING = 1 << 16  # rows that wait to be sorted in


class ScoreCounts:
    """How much weight of negative and of positive examples each score has: the state of one ROC curve.

    Scores are float32, put in order as unsigned integers; of those the upper 16 bits are kept where `exact` is false.
    keys  (n,) uint32, rising;  sums  (n, 2) float64: weight of the negatives and of the positives
    """

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self.keys = np.empty(0, np.uint32)
        self.sums = np.empty((0, 2))
        self._pending: list[tuple[np.ndarray, np.ndarray]] = []
        self._pending_rows = 0

    def add(self, scores: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: scores (n,) float32 without NaN, positive (n,) bool, weight (n,)."""
        bits = (scores + np.float32(0)).view(np.uint32)  # -0 becomes 0
        keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
        if not self.exact:
            keys = keys >> np.uint32(32 - _COARSE_BITS)
        sums = np.zeros((len(keys), 2))
        sums[np.arange(len(keys)), positive.astype(np.intp)] = weight
        self._pending.append((keys, sums))
        self._pending_rows += len(keys)
        if self._pending_rows > max(_PENDING, len(self.keys)):
            self.settle()

    def merge(self, other: ScoreCounts) -> None:
        """Add another rank's counts, which were made with the same `exact`."""
        other.settle()
        self._pending.append((other.keys, other.sums))
        self.settle()

    def settle(self) -> None:
        """Sort what is pending into `keys` and `sums`."""
        if not self._pending:
            return
        keys = np.concatenate([self.keys, *(keys for keys, _ in self._pending)])
        sums = np.concatenate([self.sums, *(sums for _, sums in self._pending)])
        self._pending.clear()
        self._pending_rows = 0
        self.keys, place = np.unique(keys, return_inverse=True)
        self.sums = np.stack([np.bincount(place, sums[:, side], len(self.keys)) for side in (0, 1)], axis=1)

    def area(self) -> float:
        """Return the area; NaN where there are no positives or no negatives."""
        self.settle()
        negative, positive = self.sums.T
        pairs = negative.sum() * positive.sum()
        if not pairs:
            return math.nan
        below = np.cumsum(negative) - negative
        return float((positive * (below + 0.5 * negative)).sum() / pairs)

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return dict(self.__dict__)


class Auc(Metric):
    """Area under the ROC curve: how often a positive example has a higher score than a negative one; ties count half.

    With one output that is the score of class 1, with two their difference.  With more: the mean over the classes of
    one class against the rest, by its log-probability; classes without positives or without negatives are left out.

    Scores are compared as float32, exactly, for up to 2^22 scores over all ranks (rows x outputs where there are three
    or more).  Beyond, scores that agree in sign, exponent and 7 bits of the fraction (0.8 %) count as ties: the value
    is off by at most half of the share that these are of all pairs (Mann and Whitney 1947).
    """

    name: ClassVar[str] = "auc"
    target_kinds: ClassVar[tuple[str, ...]] = ("class",)
    better: ClassVar[str] = "higher"

    def start(self, width: int, rows: int) -> dict[str, Any]:
        """Return the state: a `ScoreCounts` for each curve, and the weight of rows with a NaN or a strange label."""
        curves = 1 if width <= 2 else width
        exact = rows * curves <= EXACT_SCORES
        return {"broken": 0.0, "curves": [ScoreCounts(exact) for _ in range(curves)]}

    def kept_bytes(self, width: int, rows: int) -> int:
        """Return the bytes of all ranks' scores, 20 each, and of sorting one curve's; see `Metric.kept_bytes`."""
        curves = 1 if width <= 2 else width
        scores = rows if rows * curves <= EXACT_SCORES else 1 << _COARSE_BITS
        return 20 * scores * curves + 40 * max(scores, _PENDING)

    def update(self, state: dict[str, Any], outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: see `Metric.update`."""
        width, counts = outputs.shape[1], weight != 0
        outputs, targets, weight = outputs[counts], targets[counts], weight[counts]
        scores, classes = _scores(outputs)
        # NaN is seen in the scores: two infinite outputs have no difference either.
        broken = np.isnan(scores).any(axis=1) | (targets < 0) | (targets >= max(2, width))
        state["broken"] += float(weight[broken].sum(dtype="f8"))
        scores, targets, weight = scores[~broken], targets[~broken], weight[~broken]
        for column, label in enumerate(classes):
            state["curves"][column].add(np.ascontiguousarray(scores[:, column]), targets == label, weight)

    def merge(self, into: dict[str, Any], other: dict[str, Any]) -> None:
        """Add another rank's state to the first one, in place."""
        into["broken"] += other["broken"]
        for mine, theirs in zip(into["curves"], other["curves"], strict=True):
            mine.merge(theirs)

    def result(self, state: dict[str, Any]) -> float:
        """Return the mean area; NaN where there is none or an output was NaN."""
        areas = [area for area in (curve.area() for curve in state["curves"]) if not math.isnan(area)]
        return float(np.mean(areas)) if areas and not state["broken"] else math.nan


def _scores(outputs: np.ndarray) -> tuple[np.ndarray, Sequence[int]]:
    """Return the scores (n, curves) float32 of outputs (n, k), and which class each curve is for."""
    width = outputs.shape[1]
    if width == 1:
        return outputs, [1]
    if width == 2:
        with np.errstate(invalid="ignore"):
            return (outputs[:, 1:].astype(np.float64) - outputs[:, :1]).astype(np.float32), [1]
    scores = np.empty_like(outputs)
    metrics_classes.log_probabilities(outputs, scores)
    return scores, range(width)
