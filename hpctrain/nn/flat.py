"""Flat buffers: one contiguous float32 array for all parameters, one for all gradients, and named views into them.

The layout never depends on the world size.  Each tensor starts on a multiple of 16 floats (64 bytes); the padding stays
zero and is neither hashed nor written to files.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

ALIGN = 16  # floats: one cache line

# The gradient buffer ends in a short tail that is summed by the same all-reduce as the gradients.
TAIL = 16
WEIGHT = 0  # sum of the example weights of the step: what the gradients are divided by
LOSS = 1  # sum of the weighted losses, for the progress display (exact losses are kept apart in float64)
STOP = 2  # more than zero: some rank was told to stop
CHECKPOINT = 3  # more than zero: rank 0 wants a checkpoint after this step
ROWS = 4  # number of examples of the step: what sums of running statistics are divided by


@dataclass(frozen=True)
class Slot:
    """One tensor's place in a flat buffer: `offset` in floats."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """Offset just after the last element."""
        return self.offset + self.size


class Layout:
    """The named slots of a flat buffer, in order; `size` is the buffer's length in floats."""

    def __init__(self, tensors: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        slots, offset = [], 0
        for name, shape in tensors:
            slot = Slot(name, offset, tuple(shape))
            slots.append(slot)
            offset += -(-slot.size // ALIGN) * ALIGN
        self.slots: tuple[Slot, ...] = tuple(slots)
        self.size = offset
        self._by_name = {slot.name: slot for slot in slots}
        if len(self._by_name) != len(slots):
            raise ValueError("two tensors have the same name")

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, name: str) -> Slot:
        return self._by_name[name]

    def view(self, buffer: np.ndarray, name: str) -> np.ndarray:
        """Return the named tensor of a flat buffer as a view in its own shape."""
        slot = self[name]
        return buffer[slot.offset : slot.stop].reshape(slot.shape)

    def views(self, buffer: np.ndarray) -> dict[str, np.ndarray]:
        """Return all tensors of a flat buffer as views, by name."""
        return {slot.name: self.view(buffer, slot.name) for slot in self}


def weights_sha256(*parts: tuple[Layout, np.ndarray]) -> str:
    """Hash tensors as little-endian float32 in layout order, without the padding (parameters first, then state)."""
    digest = hashlib.sha256()
    for layout, buffer in parts:
        for slot in layout:
            digest.update(np.ascontiguousarray(buffer[slot.offset : slot.stop], "<f4"))
    return digest.hexdigest()
