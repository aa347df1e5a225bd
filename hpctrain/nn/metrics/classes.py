"""Metrics for class labels.  The computing is in `kernels/metrics.py` and `kernels/metrics_classes.py`."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hpctrain.errors import UserError
from hpctrain.kernels import metrics as kernels
from hpctrain.kernels import metrics_classes
from hpctrain.nn.metrics.base import Metric, ratio

_MOST_TABLE = 1000  # classes of a confusion matrix


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


class Perplexity(Metric):
    """exp of the mean of -log p over examples or positions, p the probability that softmax gives to the right class.

    1 is perfect; as many as there are classes is a blind guess.  Of the plain cross-entropy, whatever the loss adds
    to it (smoothing, class weights).
    """

    name: ClassVar[str] = "perplexity"
    target_kinds: ClassVar[tuple[str, ...]] = ("class",)

    def update(self, state: np.ndarray, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: see `Metric.update`."""
        metrics_classes.log_likelihood(state, outputs, targets, weight)

    def result(self, state: np.ndarray) -> float:
        """Return exp of the mean; infinity where that is beyond a float."""
        mean = ratio(state[0], state[1])
        return math.exp(mean) if not mean > 709 else math.inf

    def check_outputs(self, width: int, target_kind: str) -> None:
        """Raise a `UserError` also for a single output."""
        super().check_outputs(width, target_kind)
        if width == 1:
            raise UserError("the metric perplexity needs an output for each class", found="1 output")


class _OfCounts(Metric):
    """A metric made of three weights for each class: right, predicted, actual."""

    target_kinds: ClassVar[tuple[str, ...]] = ("class",)
    better: ClassVar[str] = "higher"

    def size(self, width: int) -> int:
        """Return 1 + 3 classes."""
        return 1 + 3 * max(2, width)

    def update(self, state: np.ndarray, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: see `Metric.update`."""
        metrics_classes.class_counts(state, outputs, targets, weight)

    def result(self, state: np.ndarray) -> float:
        """Return the value; NaN where nothing counted or an output was NaN."""
        right, predicted, actual = state[1:].reshape(3, -1)
        if state[0] or not actual.sum():
            return math.nan
        return float(self._value(right, predicted, actual))

    @abstractmethod
    def _value(self, right: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> float:
        """Return the value for the weights of each class (c,)."""


class _Averaged(_OfCounts):
    """A fraction for each class, averaged.

    average  "binary": that of class 1 of two; "macro": the mean over the classes that occur, as a label or a
             prediction; "micro": of the counts of all classes together; "auto": binary for two classes, else macro

    A class whose fraction would be 0 / 0 counts as 0.
    """

    average: Literal["auto", "binary", "macro", "micro"] = "auto"

    def check_outputs(self, width: int, target_kind: str) -> None:
        """Raise a `UserError` also for average = "binary" and more than two classes."""
        super().check_outputs(width, target_kind)
        if self.average == "binary" and width > 2:
            raise UserError(
                f'the metric {self.name} with average = "binary" is for two classes',
                found=f"{width} outputs",
                hint='take average = "macro" or "micro"',
            )

    def _value(self, right: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> float:
        average = self.average
        if average == "auto":
            average = "binary" if len(right) == 2 else "macro"
        if average == "micro":
            right, predicted, actual = right.sum(), predicted.sum(), actual.sum()
        above, below = self._fraction(right, predicted, actual)
        values = np.divide(above, below, out=np.zeros_like(above), where=below != 0)
        if average == "binary":
            return values[1]
        return values.mean() if average == "micro" else values[(predicted > 0) | (actual > 0)].mean()

    @abstractmethod
    def _fraction(self, right: Any, predicted: Any, actual: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return numerator and denominator for each class (c,), or for all together."""


class Precision(_Averaged):
    """Part of the examples said to be of a class that are of it: right / predicted.

    average  see `F1`
    """

    name: ClassVar[str] = "precision"

    def _fraction(self, right: Any, predicted: Any, actual: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(right), np.asarray(predicted)


class Recall(_Averaged):
    """Part of the examples of a class that are said to be of it: right / actual.

    average  see `F1`
    """

    name: ClassVar[str] = "recall"

    def _fraction(self, right: Any, predicted: Any, actual: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(right), np.asarray(actual)


class F1(_Averaged):
    """Harmonic mean of precision and recall: 2 right / (predicted + actual).

    average  "binary": that of class 1 of two; "macro": the mean over the classes that occur, as a label or a
             prediction; "micro": of the counts of all classes together; "auto": binary for two classes, else macro

    A class whose fraction would be 0 / 0 counts as 0.
    """

    name: ClassVar[str] = "f1"

    def _fraction(self, right: Any, predicted: Any, actual: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(2 * right), np.asarray(predicted + actual)


class BalancedAccuracy(_OfCounts):
    """Mean of the recalls of the classes that occur among the labels: blind to how frequent each of them is."""

    name: ClassVar[str] = "balanced_accuracy"

    def _value(self, right: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> float:
        occurs = actual > 0
        return np.mean(right[occurs] / actual[occurs])


class ConfusionMatrix(Metric):
    """How often class i (row) was taken for class j (column): a list of lists, whole numbers where weights are whole.

    For up to 1000 classes.  Early stopping cannot watch it.
    """

    name: ClassVar[str] = "confusion_matrix"
    target_kinds: ClassVar[tuple[str, ...]] = ("class",)
    better: ClassVar[str] = "higher"
    is_number: ClassVar[bool] = False

    def size(self, width: int) -> int:
        """Return 1 + the square of the number of classes."""
        return 1 + max(2, width) ** 2

    def update(self, state: np.ndarray, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: see `Metric.update`."""
        metrics_classes.confusion(state, outputs, targets, weight)

    def result(self, state: np.ndarray) -> list[list[float]]:
        """Return the table; all NaN where an output was NaN or nothing counted."""
        classes = math.isqrt(len(state) - 1)
        table = state[1:].reshape(classes, classes)
        if state[0] or not table.any():
            return np.full_like(table, np.nan).tolist()
        return table.astype(np.int64).tolist() if (table == np.floor(table)).all() else table.tolist()

    def check_outputs(self, width: int, target_kind: str) -> None:
        """Raise a `UserError` also where the table would be too large to read."""
        super().check_outputs(width, target_kind)
        if width > _MOST_TABLE:
            raise UserError(
                "the metric confusion_matrix would be too large",
                found=f"{width} classes",
                allowed=f"up to {_MOST_TABLE}",
                hint="take f1, precision or recall, which are averages over the classes",
            )
