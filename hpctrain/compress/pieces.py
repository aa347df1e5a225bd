"""Which parts of the gradients are encoded, which are sent as they are, and how what is encoded is cut up.

Pure arithmetic over a layout's slots: what has a `size`, an `offset` and a `shape` (`nn.flat.Slot`).

A *piece* is a row (start, length, number) of an int64 array: a stretch of the gradients within one tensor, and the
number of its first unit in the payload; a unit is a block of numbers, or one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np


class Tensor(Protocol):
    """A tensor's place in the flat gradients."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""


def is_encoded(tensor: Tensor, min_size: int) -> bool:
    """The rule: a tensor is encoded when it has two axes or more, and `min_size` elements or more.

    So biases and the scales of normalisation layers, which are few and sensitive, are sent as they are.
    """
    return len(tensor.shape) >= 2 and tensor.size >= min_size


def pieces_within(tensors: Iterable[Tensor], lo: int, hi: int, unit: int = 1) -> np.ndarray:
    """Return the pieces of tensors that lie in [lo, hi), numbered in units of `unit` elements, the last one short."""
    rows, number = [], 0
    for tensor in tensors:
        start, stop = max(tensor.offset, lo), min(tensor.offset + tensor.size, hi)
        if start < stop:
            rows.append((start, stop - start, number))
            number += -(-(stop - start) // unit)
    return np.array(rows, np.int64).reshape(-1, 3)


def units(pieces: np.ndarray, unit: int) -> int:
    """Return how many units the pieces have."""
    return int((-(-pieces[:, 1] // unit)).sum())


def total(pieces: np.ndarray) -> int:
    """Return how many numbers the pieces have."""
    return int(pieces[:, 1].sum())


def cut(pieces: np.ndarray, parts: int, unit: int) -> list[np.ndarray]:
    """Cut pieces into near-even parts at their units, one part behind the other; each is numbered from 0.

    Sizes differ by one unit at most, the larger ones first; with fewer units than parts the last ones are empty.
    """
    count = units(pieces, unit)
    size, larger = divmod(count, parts)
    bounds = [part * size + min(part, larger) for part in range(parts + 1)]
    return [_between(pieces, lo, hi, unit) for lo, hi in zip(bounds, bounds[1:], strict=False)]


def _between(pieces: np.ndarray, lo: int, hi: int, unit: int) -> np.ndarray:
    """Return the pieces of the units lo <= number < hi."""
    rows = []
    for start, length, number in pieces.tolist():
        first, last = max(lo - number, 0) * unit, min((hi - number) * unit, length)
        if first < last:
            rows.append((start + first, last - first, max(number - lo, 0)))
    return np.array(rows, np.int64).reshape(-1, 3)


def others(tensors: Sequence[Tensor], lo: int, hi: int) -> np.ndarray:
    """Return what of [lo, hi) is in none of the tensors (which are in order), as pieces numbered by elements."""
    rows, at, number = [], lo, 0
    for start, stop in [*((t.offset, t.offset + t.size) for t in tensors), (hi, hi)]:
        start, stop = min(max(start, lo), hi), min(max(stop, lo), hi)
        if start > at:
            rows.append((at, start - at, number))
            number += start - at
        at = max(at, stop)
    return np.array(rows, np.int64).reshape(-1, 3)
