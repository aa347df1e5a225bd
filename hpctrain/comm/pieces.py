"""Long arrays in pieces: one MPI call counts up to 2^31 - 1 elements, and takes scratch as long as what it sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

MOST_BYTES = 2**30  # of one call; far below what an MPI before version 4 can count, far above what a message costs


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield a C-contiguous array as 1-D slices of at most `MOST_BYTES` bytes; a short one as it is.

    Every rank cuts an array of the same length and type in the same way.
    """
    if array.nbytes <= MOST_BYTES:
        yield array
        return
    if not array.flags.c_contiguous:
        raise ValueError("an array that is sent must be contiguous")
    flat, count = array.reshape(-1), max(1, MOST_BYTES // array.itemsize)
    for start in range(0, len(flat), count):
        yield flat[start : start + count]


def is_long(array: np.ndarray) -> bool:
    """Whether an array takes more than one piece."""
    return array.nbytes > MOST_BYTES
