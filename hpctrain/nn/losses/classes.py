"""Losses for class labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from pydantic import Field, field_validator

from hpctrain.errors import UserError
from hpctrain.kernels import losses as kernels
from hpctrain.nn.losses.base import Loss, Shape, outputs_phrase, squeezed


class SoftmaxCrossEntropy(Loss):
    """Cross-entropy of softmax(outputs) and a class label: log sum_j exp x_j - x_label.

    Labels may be one an example, or one a position: labels (T,) go with outputs (T, classes), each position is a row.

    smoothing      s: the wanted probabilities are 1 - s for the label and s / k for each of the k classes, the label
                   among them (label smoothing, Szegedy et al. 2016)
    class_weights  one number a class: an example counts its weight x that of its class, in the loss and in the sum
                   of weights that it is divided by (PyTorch's weighted mean); metrics do not see it.  In the smoothed
                   part, too, it is the label's class that counts.
    """

    name: ClassVar[str] = "softmax_cross_entropy"
    accepts: ClassVar[tuple[str, ...]] = ("class",)

    smoothing: float = Field(0.0, ge=0, lt=1)
    class_weights: tuple[float, ...] | None = None

    @field_validator("class_weights")
    @classmethod
    def _can_weigh(cls, weights: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if weights is not None and (min(weights, default=0.0) < 0 or max(weights, default=0.0) <= 0):
            raise ValueError("must be numbers of 0 or more, at least one above 0")
        return weights

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.softmax_cross_entropy

    def constants(self) -> tuple[float | tuple[float, ...], ...]:
        """Return (smoothing,)."""
        return (self.smoothing,)

    @property
    def weighs(self) -> bool:
        """Whether there are class weights."""
        return self.class_weights is not None

    def weigh(self, targets: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return weight x class_weights[target], in float32; labels that do not count may be any number."""
        if self.class_weights is None:
            return weight
        return weight * np.take(np.array(self.class_weights, np.float32), targets, mode="clip")

    def _check_shapes(self, out_shape: Shape, target_kind: str, classes: int | None, target_shape: Shape) -> None:
        width = out_shape[-1]
        if squeezed(out_shape[:-1]) != squeezed(target_shape):
            raise UserError(
                f"the loss {self.name} needs outputs for each label of an example",
                found=f"outputs of shape {out_shape}, labels of shape {target_shape}",
                allowed=f"outputs of shape {(*target_shape, classes or 'classes')}",
                hint='put a "flatten" layer before the first dense layer, or pool'
                if not target_shape
                else "if the labels are one-hot rows, store their argmax(axis=1)"
                if len(target_shape) == len(out_shape)
                else None,
            )
        if width < 2:
            raise UserError(
                f"the loss {self.name} needs an output for each class, two or more",
                found=outputs_phrase(width),
                hint=f"give the last layer {self.outputs_for('class', classes, 1)} units"
                + (', or take loss "binary_cross_entropy", which has one output' if (classes or 2) <= 2 else ""),
            )
        if classes is not None and classes > width:
            raise UserError(
                f"the loss {self.name} needs an output for each class",
                found=f"{outputs_phrase(width)}, {classes} classes (labels up to {classes - 1})",
                hint=f"give the last layer {classes} units, or number the labels from 0 without gaps",
            )
        if self.class_weights is not None and len(self.class_weights) != width:
            raise UserError(
                "loss.class_weights needs a number for each class",
                found=f"{len(self.class_weights)} numbers, {outputs_phrase(width)}",
                allowed=f"{width} numbers",
            )


class BinaryCrossEntropy(Loss):
    """Cross-entropy of sigmoid(outputs) and the targets: p y log(1 + exp(-x)) + (1 - y) log(1 + exp x).

    Takes labels 0 and 1, of any shape, with an output for each, or probabilities in [0, 1] with an output for each
    column (the loss of an example is then the mean over its columns).

    positive_weight  p: how much more an error on a target of 1 counts than one on a target of 0
    """

    name: ClassVar[str] = "binary_cross_entropy"
    accepts: ClassVar[tuple[str, ...]] = ("class", "real")
    bounds: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    positive_weight: float = Field(1.0, gt=0)

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function: the same for both kinds."""
        return kernels.binary_cross_entropy

    def constants(self) -> tuple[float | tuple[float, ...], ...]:
        """Return (positive_weight,)."""
        return (self.positive_weight,)

    def outputs_for(self, target_kind: str, classes: int | None, target_width: int) -> int:
        """Return 1 for labels, else the number of target columns."""
        return 1 if target_kind == "class" else target_width

    def predictions(self, outputs: np.ndarray, target_kind: str) -> np.ndarray:
        """Return the outputs for labels, the probabilities sigmoid(outputs) for real targets."""
        return outputs if target_kind == "class" else (0.5 + 0.5 * np.tanh(0.5 * outputs))

    def outputs_saying(self, values: np.ndarray) -> np.ndarray:
        """Return the logits of probabilities, kept within 1e-7 of 0 and 1."""
        values = np.clip(values.astype(np.float64), 1e-7, 1 - 1e-7)
        return np.log(values / (1 - values)).astype(np.float32)

    def _check_shapes(self, out_shape: Shape, target_kind: str, classes: int | None, target_shape: Shape) -> None:
        if target_kind == "real":
            super()._check_shapes(out_shape, target_kind, classes, target_shape)
            return
        if classes is not None and classes > 2:
            raise UserError(
                f"the loss {self.name} tells two classes apart",
                found=f"{classes} classes (labels up to {classes - 1})",
                allowed="labels 0 and 1",
                hint=f'take loss "softmax_cross_entropy" and give the last layer {classes} units',
            )
        if squeezed(out_shape) == squeezed(target_shape):
            return
        if len(out_shape) == 1 and not target_shape:
            raise UserError(
                f"the loss {self.name} needs a single output for labels 0 and 1",
                found=outputs_phrase(out_shape[0]),
                hint='give the last layer 1 unit, or take loss "softmax_cross_entropy"',
            )
        raise UserError(
            f"the loss {self.name} needs an output for each label of an example",
            found=f"outputs of shape {out_shape}, labels of shape {target_shape}",
            allowed=f"outputs of shape {target_shape or (1,)}",
        )
