"""Memory for the large arrays: on cache lines, and in huge pages where the system gives them.

A matrix product walks down columns of weights, so that each of its loads may lie on another page.  With pages of 4 KiB
the processor spends more time on their addresses than on their contents; Linux gives pages of 2 MiB to those who ask.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np

LINE_BYTES = 64
_HUGE_PAGE_BYTES = 1 << 21


def aligned_zeros(count: int, dtype: Any = np.float32) -> np.ndarray:
    """Return a zeroed 1-D array of `count` elements that starts on a 64-byte boundary."""
    dtype = np.dtype(dtype)
    size = count * dtype.itemsize
    if size >= _HUGE_PAGE_BYTES:
        raw = _huge_pages(size)
        start = -raw.ctypes.data % _HUGE_PAGE_BYTES
    else:
        raw = np.zeros(size + LINE_BYTES, np.uint8)
        start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(dtype)


def _huge_pages(size: int) -> np.ndarray:
    """Return `size` zero bytes and what it takes to start them on a huge page; memory is used where it is touched."""
    pages = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
