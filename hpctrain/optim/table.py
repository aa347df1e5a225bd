"""`UpdateTable`: which ranges of a flat buffer are tensors, and each one's factors for learning rate and weight decay.

The table knows nothing of names and shapes, so that it can be cut with the buffer: a server's share of the parameters
or a sharded optimizer's gets the table's cut, and the same kernels run on it.
"""

from __future__ import annotations

from collections.abc import Iterable
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


@dataclass(frozen=True, eq=False)
class UpdateTable:
    """One entry for each tensor range of a slice, in order, without overlap.

    starts, stops   int64 (ranges,), relative to the slice
    lr_factor       float32 (ranges,): multiplies the learning rate; 0 freezes the tensor
    decay_factor    float32 (ranges,): multiplies the weight decay; 0 exempts the tensor
    """

    starts: np.ndarray
    stops: np.ndarray
    lr_factor: np.ndarray
    decay_factor: np.ndarray

    @classmethod
    def from_slots(cls, slots: Iterable[Range]) -> UpdateTable:
        """Make the table of a whole flat buffer from its slots; all factors are 1."""
        bounds = [(slot.offset, slot.stop) for slot in slots]
        starts, stops = np.array(bounds, np.int64).reshape(-1, 2).T.copy()
        return cls(starts, stops, np.ones(len(bounds), np.float32), np.ones(len(bounds), np.float32))

    def slice(self, lo: int, hi: int) -> UpdateTable:
        """Return the table of elements lo .. hi of this slice: tensors are cut where need be, offsets count from lo."""
        starts = np.maximum(self.starts, lo)
        stops = np.minimum(self.stops, hi)
        kept = starts < stops
        return UpdateTable(starts[kept] - lo, stops[kept] - lo, self.lr_factor[kept], self.decay_factor[kept])

    def __len__(self) -> int:
        return len(self.starts)
