"""`Loss`: the contract of the losses, and what all of them check."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from hpctrain.errors import UserError
from hpctrain.options import Part

Shape = tuple[int, ...]


class Loss(Part):
    """Base of all losses.

    A loss's kernel has the signature `(outputs, targets, weight (n,), d_outputs, *constants) -> float64`: it takes the
    outputs, of any shape, as n rows, returns the *sum* of weight x loss over the rows and stores the derivative of that
    sum into `d_outputs`.  A row is what has a weight: an example, or a position of one.  Evaluation uses the same
    kernel, with `d_outputs` as scratch.
    """

    name: ClassVar[str]
    """The name under which the loss is registered, for messages."""

    accepts: ClassVar[tuple[str, ...]]
    """Kinds of targets that the loss can take, "class" (int64 labels) or "real" (float32), the usual one first."""

    bounds: ClassVar[tuple[float, float] | None] = None
    """The least and the largest real target that the loss can take, both included; None: any."""

    @property
    def target_kind(self) -> str:
        """The kind of target that the loss is made for: the first of `accepts`."""
        return self.accepts[0]

    @abstractmethod
    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function for targets of this kind."""

    def constants(self) -> tuple[float | tuple[float, ...], ...]:
        """Return the numbers, or tuples of numbers, that the kernel takes after `d_outputs`."""
        return ()

    def outputs_for(self, target_kind: str, classes: int | None, target_width: int) -> int:
        """Return how many outputs a network needs: one for each class, or as many as the target has columns."""
        return max(2, classes or 0) if target_kind == "class" else target_width

    def dummy_rows(self, target_kind: str, out_shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Return targets and weight of one example for a network's outputs, to run the kernel once; class labels 0.

        They are flat, as the compiled passes take them: int64 (n,) and float32 (n,), or float32 (1, width) and (1,).
        """
        size = math.prod(out_shape)
        if target_kind == "class":
            rows = size // (1 if self.outputs_for("class", None, 1) == 1 else out_shape[-1])
            return np.zeros(rows, np.int64), np.ones(rows, np.float32)
        return np.zeros((1, size // self.outputs_for("real", None, 1)), np.float32), np.ones(1, np.float32)

    @property
    def weighs(self) -> bool:
        """Whether `weigh` changes anything: training rows are then weighed once, when they are loaded."""
        return False

    def weigh(self, targets: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return what the loss makes of the examples' weights, for these targets; most leave them as they are."""
        return weight

    def predictions(self, outputs: np.ndarray, target_kind: str) -> np.ndarray:
        """Return what metrics judge, for outputs (n, k): a column for each class (its score), or each target column."""
        return outputs

    def judged_width(self, target_kind: str, out_shape: Shape, positions: int) -> int:
        """Return how many columns `predictions` have for a network's outputs, seen as a row for each position."""
        row = np.zeros((1, math.prod(out_shape) // positions), np.float32)
        return self.predictions(row, target_kind).shape[1]

    def outputs_saying(self, values: np.ndarray) -> np.ndarray:
        """Return the outputs (n, k) whose predictions are `values` (n, target columns), for real targets."""
        return values

    def check_outputs(
        self,
        out_shape: Shape,
        target_kind: str,
        classes: int | None,
        target_shape: Shape,
    ) -> None:
        """Raise a `UserError` where this loss cannot compare a network's outputs with the targets.

        out_shape     of one example's outputs
        target_kind   "class" or "real"
        classes       for "class": the largest label + 1; None where it is not known
        target_shape  of one example's target: () for a single label, else an axis or more
        """
        if target_kind not in self.accepts:
            whole = target_kind == "class"
            columns = _columns(math.prod(target_shape))
            raise UserError(
                f"the loss {self.name} does not fit the targets",
                found="whole numbers (class labels)" if whole else f"floating point targets, {columns}",
                allowed=" or ".join(_KINDS[kind] for kind in self.accepts),
                hint='take loss "softmax_cross_entropy" for classes, or store the target as float32 to predict a number'
                if whole
                else 'take loss "mse", "mae" or "huber", or store the target as whole numbers if they are classes',
            )
        self._check_shapes(out_shape, target_kind, classes, target_shape)

    def _check_shapes(self, out_shape: Shape, target_kind: str, classes: int | None, target_shape: Shape) -> None:
        """Check outputs for real targets; a loss for class labels has a check of its own.

        They may have the target's shape (axes of length 1 do not matter), or one axis with as many numbers.
        """
        factor = self.outputs_for("real", None, 1)
        size = math.prod(target_shape) * factor
        wanted = {(size,), squeezed((*target_shape[:-1], target_shape[-1] * factor)), squeezed((*target_shape, factor))}
        if out_shape == (size,) or squeezed(out_shape) in wanted:
            return
        each = "an output" if factor == 1 else f"{factor} outputs"
        if len(out_shape) == 1 and len(target_shape) == 1:
            raise UserError(
                f"the loss {self.name} needs {each} for each column of the target",
                found=f"{outputs_phrase(out_shape[0])}, {_columns(target_shape[0])}",
                hint=f"give the last layer {size} units",
            )
        raise UserError(
            f"the loss {self.name} needs {each} for each number of the target",
            found=f"outputs of shape {out_shape}, targets of shape {target_shape}",
            allowed=f"outputs of shape {(*target_shape[:-1], target_shape[-1] * factor)}",
        )


_KINDS = {"class": "whole numbers (class labels)", "real": "floating point targets"}


def squeezed(shape: Shape) -> Shape:
    """Return a shape without its axes of length 1."""
    return tuple(size for size in shape if size != 1)


def outputs_phrase(width: int) -> str:
    """Return "1 output", "2 outputs", ..."""
    return f"{width} output" + "s" * (width != 1)


def _columns(width: int) -> str:
    return f"{width} target column" + "s" * (width != 1)
