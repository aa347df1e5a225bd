"""`Shard` and `Dataset`: the rows that this rank holds, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hpctrain.batch import Batch
from hpctrain.data.format import RowFormat


@dataclass(frozen=True)
class Shard:
    """This rank's rows of one part (training, validation or test); there may be none.

    format   what a row looks like
    inputs   (rows, *input_shape) float32
    targets  (rows,) or (rows, positions) int64 class labels, or (rows, target_width) float32
    starts   (size + 1,) int64: rank r holds the part's examples starts[r] .. starts[r + 1].  An example's id is its
             index within the part in file order, the same at every world size.
    first    id of this rank's first row
    weight   (rows, format.weight_words) float32: stored weights; None where the format has none
    """

    format: RowFormat
    inputs: np.ndarray
    targets: np.ndarray
    starts: np.ndarray
    first: int
    weight: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def total(self) -> int:
        """Rows of the part over all ranks."""
        return int(self.starts[-1])

    @property
    def stored_weight(self) -> np.ndarray:
        """The stored weights, an array without columns where there are none."""
        return np.empty((len(self), 0), np.float32) if self.weight is None else self.weight

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's rows."""
        return self.inputs.nbytes + self.targets.nbytes + self.stored_weight.nbytes

    def weighed(self, weigh: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Shard:
        """Return the same rows with other weights: weigh(targets, weight), both flat or both (rows, positions)."""
        form, weight = self.format, self.format.full_weight(len(self))
        form.spread(self.stored_weight, weight)
        weight = np.ascontiguousarray(weigh(self.targets, weight), np.float32)
        return replace(
            self,
            format=replace(form, weight_shape=form.position_shape),
            weight=weight.reshape(len(self), form.positions),
        )

    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield this rank's rows in order, at most `rows` at a time, for evaluation; the arrays are views.

        Ranks need not have the same number of batches.  Step and epoch are 0.
        """
        for lo in range(0, len(self), rows):
            hi = min(lo + rows, len(self))
            ids = np.arange(self.first + lo, self.first + hi)
            weight = self.format.full_weight(hi - lo)
            self.format.spread(self.stored_weight[lo:hi], weight)
            yield Batch(self.inputs[lo:hi], self.targets[lo:hi], weight, ids, step=0, epoch=0)


@dataclass(frozen=True)
class Dataset:
    """This rank's shards of all parts; None where the job has no such part."""

    train: Shard
    validation: Shard | None = None
    test: Shard | None = None
