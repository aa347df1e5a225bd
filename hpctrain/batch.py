"""`Batch`: the rows that one rank works on in one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Batch:
    """This rank's rows of one global batch; may be empty.

    inputs   (rows, *input_shape) float32, C-contiguous
    targets  (rows,) int64 class labels, or (rows, positions) of a sequence or an image, or (rows, width) float32
    weight   (rows,) float32, 1 for a plain example; (rows, positions) where each position has a weight of its own: with
             a label for each position, or a mask.  Its sum is what sums over the batch are divided by.  Losses and
             metrics take a position as a row: outputs are seen as (weight.size, columns).
    ids      (rows,) int64 example ids: the index within the part (training, validation, test) in file order, the same
             at every world size.  Dropout is keyed by id and step.
    step     the update that this batch belongs to, counted from 0 over the whole run
    epoch    counted from 0
    first    where these rows begin among those of the global batch
    """

    inputs: np.ndarray
    targets: np.ndarray
    weight: np.ndarray
    ids: np.ndarray
    step: int
    epoch: int
    first: int = 0

    @property
    def rows(self) -> int:
        """Number of examples in this rank's part of the batch."""
        return len(self.ids)

    def slice(self, lo: int, hi: int) -> Batch:
        """Return the rows lo..hi as a batch of views."""
        parts = (array[lo:hi] for array in (self.inputs, self.targets, self.weight, self.ids))
        return Batch(*parts, self.step, self.epoch, self.first + lo)
