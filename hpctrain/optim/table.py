"""`UpdateTable`: which ranges of a flat buffer are trained, and each one's factors for learning rate and weight decay.

The table knows nothing of names and shapes, so that it can be cut with the buffer: a server's share of the parameters
or a sharded optimizer's gets the table's cut, and the same kernels run on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Range(Protocol):
    """A tensor's place in a flat buffer (`nn.flat.Slot` is one)."""

    @property
    def offset(self) -> int:
        """Its first element."""

    @property
    def stop(self) -> int:
        """Just after its last element."""


@dataclass(eq=False)
class UpdateTable:
    """One entry for each tensor range of a slice, in order, without overlap.  What is frozen has no entry.

    starts, stops   int64 (ranges,), relative to the slice
    lr_factor       float32 (ranges,): multiplies the learning rate
    decay_factor    float32 (ranges,): multiplies the weight decay; 0 exempts the tensor
    tensors         int64 (ranges,): number of the tensor, among all of the whole buffer; default: counted from 0
    tensor_count    number of tensors of the whole buffer: how many rows the arrays of `Optimizer.norms` have
    """

    starts: np.ndarray
    stops: np.ndarray
    lr_factor: np.ndarray
    decay_factor: np.ndarray
    tensors: np.ndarray | None = None
    tensor_count: int | None = None

    def __post_init__(self) -> None:
        if self.tensors is None:
            self.tensors = np.arange(len(self.starts))
        if self.tensor_count is None:
            self.tensor_count = len(self.starts)

    @classmethod
    def from_slots(
        cls,
        slots: Iterable[Range],
        lr_factor: Sequence[float] | None = None,
        decay_factor: Sequence[float] | None = None,
        trained: Sequence[bool] | None = None,
    ) -> UpdateTable:
        """Make the table of a whole flat buffer from its slots, and one factor for each of them (default: 1).

        Tensors that are not `trained` (default: all are) get no range.
        """
        bounds = np.array([(slot.offset, slot.stop) for slot in slots], np.int64).reshape(-1, 2)
        count = len(bounds)
        kept = np.flatnonzero(np.ones(count, bool) if trained is None else np.array(trained, bool))
        factors = [np.ones(count) if given is None else np.array(given) for given in (lr_factor, decay_factor)]
        lr, decay = (factor.astype(np.float32)[kept] for factor in factors)
        return cls(bounds[kept, 0], bounds[kept, 1], lr, decay, kept, count)

    def slice(self, lo: int, hi: int) -> UpdateTable:
        """Return the table of elements lo .. hi of this slice: tensors are cut where need be, offsets count from lo."""
        starts = np.maximum(self.starts, lo)
        stops = np.minimum(self.stops, hi)
        kept = starts < stops
        return UpdateTable(
            starts[kept] - lo,
            stops[kept] - lo,
            self.lr_factor[kept],
            self.decay_factor[kept],
            self.tensors[kept],
            self.tensor_count,
        )

    def __len__(self) -> int:
        return len(self.starts)
