"""`RowFormat`: what a row of the data looks like in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Inputs, targets and stored weights of some rows."""

MISSING_LABEL = np.iinfo(np.int64).min
"""What stands for a class label that its file says is missing."""

NO_ONE_HOT = MISSING_LABEL + 1
"""What stands for the class label of a row that is not one-hot, where it should be."""


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in memory of an example that is stored channels first: (C, H, W) becomes (H, W, C)."""
    return (*shape[1:], *shape[:1])


@dataclass(frozen=True)
class RowFormat:
    """What a row looks like in memory: float32 inputs of `input_shape`, a target, and perhaps weights.

    target_kind "class": int64 labels, one where `target_shape` is (), else one for each position; "real": float32
    numbers of `target_shape`, which has an axis or more.
    weight_shape  of the stored float32 weights: None where nothing is stored and everything counts 1; () for one weight
                  a row; else one weight for each position: for labels the target's shape, for real targets its first
                  axes.  A position is what has a weight of its own.
    """

    input_shape: tuple[int, ...]
    target_kind: str
    target_shape: tuple[int, ...] = ()
    weight_shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.target_kind == "real":
            one_axis = f"{self.target_width} real target{'s' * (self.target_width != 1)}"
            target = one_axis if len(self.target_shape) == 1 else f"real targets of shape {self.target_shape}"
        else:
            target = f"class labels of shape {self.target_shape}" if self.target_shape else "class labels"
        weights = "" if self.weight_shape is None else f", weights of shape {self.weight_shape}"
        return f"inputs of shape {self.input_shape} and {target}{weights}"

    @property
    def input_size(self) -> int:
        """Numbers in one row of the inputs (float32: as many 32-bit words)."""
        return math.prod(self.input_shape)

    @property
    def target_width(self) -> int:
        """Numbers in one row of the targets."""
        return math.prod(self.target_shape)

    @property
    def position_shape(self) -> tuple[int, ...]:
        """Shape of the positions of a row: () where the row has one weight for all that is in it."""
        return self.target_shape if self.target_kind == "class" else (self.weight_shape or ())

    @property
    def positions(self) -> int:
        """Number of positions of a row."""
        return math.prod(self.position_shape)

    @property
    def target_words(self) -> int:
        """32-bit words in one row of the targets."""
        return self.target_width * (2 if self.target_kind == "class" else 1)

    @property
    def weight_words(self) -> int:
        """Stored weights of a row: none, one, or one for each position."""
        return 0 if self.weight_shape is None else math.prod(self.weight_shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, target and weights included."""
        return 4 * (self.input_size + self.target_words + self.weight_words)

    def empty(self, rows: int) -> Arrays:
        """Return uninitialised arrays for `rows` rows.

        inputs (rows, *input_shape) float32; targets (rows,) or (rows, positions) int64, or (rows, target_width)
        float32; stored weights (rows, weight_words) float32
        """
        inputs = np.empty((rows, *self.input_shape), np.float32)
        weight = np.empty((rows, self.weight_words), np.float32)
        if self.target_kind == "class":
            return inputs, np.empty((rows, self.positions) if self.target_shape else rows, np.int64), weight
        return inputs, np.empty((rows, self.target_width), np.float32), weight

    def words(self, inputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> Arrays:
        """Return views of the three arrays as uint32 (rows, words)."""
        rows = len(inputs)
        return (
            inputs.reshape(rows, self.input_size).view(np.uint32),
            targets.reshape(-1).view(np.uint32).reshape(rows, self.target_words),
            weight.reshape(-1).view(np.uint32).reshape(rows, self.weight_words),
        )

    def full_weight(self, rows: int) -> np.ndarray:
        """Return ones in the shape of a batch's weight: (rows,), or (rows, positions) where a row has positions."""
        return np.ones((rows, self.positions) if self.position_shape else rows, np.float32)

    def spread(self, stored: np.ndarray, weight: np.ndarray) -> None:
        """Fill a batch's `weight` (see `full_weight`) from stored weights; nothing stored leaves it as it is."""
        if self.weight_words:
            np.copyto(weight, stored if weight.ndim == 2 else stored[:, 0])
