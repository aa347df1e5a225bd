"""`Shard` and `Dataset`: the rows that this rank holds, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpctrain.batch import Batch
from hpctrain.data.hdf5 import RowFormat


@dataclass(frozen=True)
class Shard:
    """This rank's rows of one part (training, validation or test); there may be none.

    format   what a row looks like
    inputs   (rows, *input_shape) float32
    targets  (rows,) int64 class labels, or (rows, target_width) float32
    starts   (size + 1,) int64: rank r holds the part's examples starts[r] .. starts[r + 1].  An example's id is its
             index within the part in file order, the same at every world size.
    first    id of this rank's first row
    """

    format: RowFormat
    inputs: np.ndarray
    targets: np.ndarray
    starts: np.ndarray
    first: int

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def total(self) -> int:
        """Rows of the part over all ranks."""
        return int(self.starts[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's rows."""
        return self.inputs.nbytes + self.targets.nbytes

    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield this rank's rows in order, at most `rows` at a time, for evaluation; the arrays are views.

        Ranks need not have the same number of batches.  Step and epoch are 0.
        """
        weight = np.ones(min(rows, len(self)), np.float32)
        for lo in range(0, len(self), rows):
            hi = min(lo + rows, len(self))
            ids = np.arange(self.first + lo, self.first + hi)
            yield Batch(self.inputs[lo:hi], self.targets[lo:hi], weight[: hi - lo], ids, step=0, epoch=0)


@dataclass(frozen=True)
class Dataset:
    """This rank's shards of all parts; None where the job has no such part."""

    train: Shard
    validation: Shard | None = None
    test: Shard | None = None
