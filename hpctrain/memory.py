"""Memory: large arrays on cache lines and in huge pages, how much there is, and sizes as a person writes them.

A matrix product walks down columns of weights, so that each of its loads may lie on another page.  With pages of 4 KiB
the processor spends more time on their addresses than on their contents; Linux gives pages of 2 MiB to those who ask.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import re
import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

LINE_BYTES = 64
_PAGE_BYTES = 1 << 12
_HUGE_PAGE_BYTES = 1 << 21
_STATUS = Path("/proc/self/status")
_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def parse_bytes(text: str) -> int:
    """Return the bytes of "512 MB" (10^6) or "1.5 GiB" (2^30); a ValueError says what is allowed."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)b\s*", text.lower()) if isinstance(text, str) else None
    if not match or not float(match[1]):
        raise ValueError('must be a size: "512 MB", "2 GB"')
    power = "kmgt".index(match[2][0]) + 1
    return int(float(match[1]) * (1024 if match[2].endswith("i") else 1000) ** power)


def bytes_text(size: int) -> str:
    """Return a number of bytes as `parse_bytes` reads it back: "64 MB", "2500 kB"; whole thousands alone are exact."""
    return f"{size // 10**6} MB" if size % 10**6 == 0 else f"{max(1, size // 1000)} kB"


def aligned_zeros(count: int, dtype: Any = np.float32) -> np.ndarray:
    """Return a zeroed 1-D array of `count` elements that starts on a 64-byte boundary."""
    dtype = np.dtype(dtype)
    size = count * dtype.itemsize
    if size >= _HUGE_PAGE_BYTES:
        raw, start = _huge_pages(size)
    else:
        raw = np.zeros(size + LINE_BYTES, np.uint8)
        start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(dtype)


def taken_bytes(size: int, touched: Iterable[tuple[int, int]] | None = None) -> int:
    """Return the memory that an array of `size` bytes takes when the byte ranges `touched` (default: all) are used.

    Whole pages, of the sizes that `aligned_zeros` asks for; what is never touched takes nothing.
    """
    huge = size - size % _HUGE_PAGE_BYTES
    total, end = 0, 0
    for lo, hi in sorted([(0, size)] if touched is None else touched):
        if hi <= lo:
            continue
        first = lo - lo % (_HUGE_PAGE_BYTES if lo < huge else _PAGE_BYTES)
        last = hi + -hi % (_HUGE_PAGE_BYTES if hi <= huge else _PAGE_BYTES)
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


def available_bytes() -> int:
    """Return the memory of this machine that is still to be had, within what a batch system allows (control groups)."""
    return max(0, min([psutil.virtual_memory().available, *_left_in_groups()]))


def _left_in_groups() -> Iterator[int]:
    """Yield what this process's control group, and each above it, has left; what caches files can be taken back."""
    with contextlib.suppress(OSError):
        own = next((line[3:] for line in _GROUP.read_text().splitlines() if line.startswith("0::")), None)
        folder = _GROUPS / own.strip().lstrip("/") if own is not None else _GROUPS
        for group in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
                limit = int((group / "memory.max").read_text())
                used = int((group / "memory.current").read_text())
                cached = re.search(r"^file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
                yield limit - used + (int(cached[1]) if cached else 0)
            if group == _GROUPS:
                return


def resident_bytes() -> int:
    """Return the memory that this process holds now."""
    return _status("VmRSS:") or peak_bytes()


def peak_bytes() -> int:
    """Return the most memory that this process has held; not what the process that started it did before that."""
    return _status("VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def private_bytes() -> int | None:
    """Return what this process holds of memory that is no file's: its own, and windows that ranks share.

    The pages of mapped files, which the system can take back at any time, are not in it.  None where nobody tells.
    """
    anonymous, shared = _status("RssAnon:"), _status("RssShmem:")
    return None if anonymous is None or shared is None else anonymous + shared


class PrivatePeak:
    """The most of `private_bytes` that was seen; the system keeps no account of it, so somebody has to look."""

    def __init__(self) -> None:
        self._most: int | None = None
        self._looked_s = -math.inf

    def look(self, every_s: float = 0.0) -> int | None:
        """Look now, unless somebody has within `every_s`; return the most that was seen, None where nobody tells."""
        now = time.monotonic()
        if now - self._looked_s >= every_s:
            self._looked_s = now
            found = private_bytes()
            if found is not None:
                self._most = max(found, self._most or 0)
        return self._most


private_peak = PrivatePeak()
"""Of this process."""


def _status(key: str) -> int | None:
    """Return a number of bytes out of Linux's account of this process; None where there is none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)


def _huge_pages(size: int) -> tuple[np.ndarray, int]:
    """Return zero bytes and where among them `size` bytes start on a huge page; memory is used where it is touched.

    What does not fill a huge page at the end stays in small ones: of three buffers of 22 MB that is 5 MB.
    """
    pages = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(pages, np.uint8)
    start = -raw.ctypes.data % _HUGE_PAGE_BYTES
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE, start, size - size % _HUGE_PAGE_BYTES)
    return raw, start
