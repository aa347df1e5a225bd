"""Losses: what training makes small.  The computing is in `kernels/losses.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from hpctrain.errors import UserError
from hpctrain.kernels import losses as kernels
from hpctrain.options import Part


class Loss(Part):
    """Base of all losses.

    A loss's kernel has the signature `(outputs (n, k), targets, weight (n,), d_outputs (n, k), *constants) ->
    float64`: it
    returns the *sum* of weight x loss over the rows and stores the derivative of that sum into `d_outputs`.  Evaluation
    uses the same kernel, with `d_outputs` as scratch.
    """

    name: ClassVar[str]
    """The name under which the loss is registered, for messages."""

    accepts: ClassVar[tuple[str, ...]]
    """Kinds of targets that the loss can take, "class" (int64 labels) or "real" (float32), the usual one first."""

    @property
    def target_kind(self) -> str:
        """The kind of target that the loss is made for: the first of `accepts`."""
        return self.accepts[0]

    @abstractmethod
    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function for targets of this kind."""

    def constants(self) -> tuple[float, ...]:
        """Return the numbers that the kernel takes after `d_outputs`."""
        return ()

    def outputs_for(self, target_kind: str, classes: int | None, target_width: int) -> int:
        """Return how many outputs a network needs: one for each class, or as many as the target has columns."""
        return max(2, classes or 0) if target_kind == "class" else target_width

    def check_outputs(
        self,
        width: int,
        target_kind: str,
        classes: int | None,
        target_width: int,
        target_range: tuple[float, float] | None = None,
    ) -> None:
        """Raise a `UserError` where this loss cannot compare a network's outputs with the targets.

        width         number of outputs of the network
        target_kind   "class" or "real"
        classes       for "class": the largest label + 1; None where it is not known
        target_width  for "real": number of columns
        target_range  for "real": the smallest and the largest value, where they are known
        """
        if target_kind not in self.accepts:
            whole = target_kind == "class"
            raise UserError(
                f"the loss {self.name} does not fit the targets",
                found="whole numbers (class labels)" if whole else f"floating point targets, {_columns(target_width)}",
                allowed=" or ".join(_KINDS[kind] for kind in self.accepts),
                hint='take loss "softmax_cross_entropy" for classes, or store the target as float32 to predict a number'
                if whole
                else 'take loss "mse", "mae" or "huber", or store the target as whole numbers if they are classes',
            )
        if target_kind == "class":
            self._check_classes(width, classes)
        elif width != target_width:
            raise UserError(
                f"the loss {self.name} needs an output for each column of the target",
                found=f"{_outputs(width)}, {_columns(target_width)}",
                hint=f"give the last layer {target_width} units",
            )

    def _check_classes(self, width: int, classes: int | None) -> None:
        if width < 2:
            raise UserError(
                f"the loss {self.name} needs an output for each class, two or more",
                found=_outputs(width),
                hint=f"give the last layer {self.outputs_for('class', classes, 1)} units"
                + (', or take loss "binary_cross_entropy", which has one output' if (classes or 2) <= 2 else ""),
            )
        if classes is not None and classes > width:
            raise UserError(
                f"the loss {self.name} needs an output for each class",
                found=f"{_outputs(width)}, {classes} classes (labels up to {classes - 1})",
                hint=f"give the last layer {classes} units, or number the labels from 0 without gaps",
            )


_KINDS = {"class": "whole numbers (class labels)", "real": "floating point targets"}


def _outputs(width: int) -> str:
    return f"{width} output" + "s" * (width != 1)


def _columns(width: int) -> str:
    return f"{width} target column" + "s" * (width != 1)


class SoftmaxCrossEntropy(Loss):
    """Cross-entropy of softmax(outputs) and a class label: log sum_j exp x_j - x_label."""

    name: ClassVar[str] = "softmax_cross_entropy"
    accepts: ClassVar[tuple[str, ...]] = ("class",)

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.softmax_cross_entropy


class BinaryCrossEntropy(Loss):
    """Cross-entropy of sigmoid(outputs) and the targets: max(x, 0) - x y + log(1 + exp(-|x|)).

    Takes labels 0 and 1 with a single output, or probabilities in [0, 1] with an output for each column (the loss of an
    example is then the mean over its columns).
    """

    name: ClassVar[str] = "binary_cross_entropy"
    accepts: ClassVar[tuple[str, ...]] = ("class", "real")

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function: the same for both kinds."""
        return kernels.binary_cross_entropy

    def outputs_for(self, target_kind: str, classes: int | None, target_width: int) -> int:
        """Return 1 for labels, else the number of target columns."""
        return 1 if target_kind == "class" else target_width

    def check_outputs(
        self,
        width: int,
        target_kind: str,
        classes: int | None,
        target_width: int,
        target_range: tuple[float, float] | None = None,
    ) -> None:
        """Raise a `UserError` also for real targets outside [0, 1]: see `Loss.check_outputs`."""
        super().check_outputs(width, target_kind, classes, target_width, target_range)
        if target_kind == "real" and target_range and not (target_range[0] >= 0 and target_range[1] <= 1):
            raise UserError(
                f"the loss {self.name} needs targets that are probabilities",
                found=f"values from {target_range[0]:g} to {target_range[1]:g}",
                allowed="0 to 1",
                hint='take loss "mse", "mae" or "huber" for other numbers',
            )

    def _check_classes(self, width: int, classes: int | None) -> None:
        if classes is not None and classes > 2:
            raise UserError(
                f"the loss {self.name} tells two classes apart",
                found=f"{classes} classes (labels up to {classes - 1})",
                allowed="labels 0 and 1",
                hint=f'take loss "softmax_cross_entropy" and give the last layer {classes} units',
            )
        if width != 1:
            raise UserError(
                f"the loss {self.name} needs a single output for labels 0 and 1",
                found=_outputs(width),
                hint='give the last layer 1 unit, or take loss "softmax_cross_entropy"',
            )


class MeanSquaredError(Loss):
    """(x - y)^2, the mean over the columns of an example."""

    name: ClassVar[str] = "mse"
    accepts: ClassVar[tuple[str, ...]] = ("real",)

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.mse


class MeanAbsoluteError(Loss):
    """|x - y|, the mean over the columns of an example."""

    name: ClassVar[str] = "mae"
    accepts: ClassVar[tuple[str, ...]] = ("real",)

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.mae


class Huber(Loss):
    """d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), with d = x - y; the mean over an example's columns.

    delta  from where on the loss grows in a line, so that outliers count less; above 0 (Huber 1964)
    """

    name: ClassVar[str] = "huber"
    accepts: ClassVar[tuple[str, ...]] = ("real",)

    delta: float = Field(1.0, gt=0)

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.huber

    def constants(self) -> tuple[float, ...]:
        """Return (delta,)."""
        return (self.delta,)


def default_loss(target_kind: str) -> Loss:
    """Return the loss of a job that names none: softmax cross-entropy for class labels, mse for real targets."""
    return SoftmaxCrossEntropy() if target_kind == "class" else MeanSquaredError()
