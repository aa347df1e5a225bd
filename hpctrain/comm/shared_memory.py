"""Memory that the ranks of a node share: a row of floats for each, and flags by which they wait for each other.

It is a file in the system's memory file system that all ranks map and that has no name any more once they have: it goes
away with the last process that holds it, however that ends.  Each rank claims the memory of its own row, which the
system then takes from the part that is near to the rank's processor.
"""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.errors import UserError
from hpctrain.kernels.window import LINE

_FOLDER = Path("/dev/shm")
_PAGE_BYTES = 4096
# Rows that lie a large power of two apart share the same lines of the cache and throw each other out.
_APART_BYTES = 10304


class SharedRows:
    """A row of `count` float32 numbers for each rank of a node, zeroed.

    rows   (ranks, more than count) float32: everybody's, each on a 64-byte boundary
    flags  (LINE * ranks,) int64, zeroed: see `kernels.window.meet`
    """

    def __init__(self, memory: mmap.mmap, ranks: int, count: int) -> None:
        raw = np.frombuffer(memory, np.uint8)
        stride = _stride(count)
        self.rows = raw[: ranks * stride].view(np.float32).reshape(ranks, stride // 4)
        self.flags = raw[ranks * stride :].view(np.int64)[: LINE * ranks]
        self._met = [0]

    def from_column(self, first: int) -> SharedRows:
        """Return the rows from an element on, with the same flags."""
        part = copy.copy(self)
        part.rows = self.rows[:, first:]
        return part

    def meetings(self, count: int) -> int:
        """Return the number of the next of `count` meetings of the ranks, counted from 1."""
        self._met[0] += count
        return self._met[0] - count + 1


_shared: dict[int, SharedRows] = {}  # address of a rank's own row -> all of them, as long as the row is in use


def share(group: Group, count: int) -> np.ndarray:
    """Return this rank's row of `count` float32 numbers in memory that the ranks of `group` share.  Collective.

    group  ranks of one node.  Errors: `UserError` where there is not enough shared memory, on every rank.
    """
    size = group.size * _stride(count) + _PAGE_BYTES * -(-8 * LINE * group.size // _PAGE_BYTES)
    with _passed_round(group, size) as path, group.agreed():
        made = SharedRows(_mapped(path, size, _own_ranges(group, count, size)), group.size, count)
    own = made.rows[group.rank, :count]
    address = own.ctypes.data
    _shared[address] = made
    weakref.finalize(own, _shared.pop, address, None)
    return own


def shared_rows(own: np.ndarray) -> SharedRows | None:
    """Return everybody's rows for an array that `share` made, or for a slice of one; None for any other array."""
    address = own.ctypes.data
    for start, shared in _shared.items():
        if start <= address < start + 4 * shared.rows.shape[1]:
            return shared if start == address else shared.from_column((address - start) // 4)
    return None


def _stride(count: int) -> int:
    return -(-4 * count // _PAGE_BYTES) * _PAGE_BYTES + _APART_BYTES


@contextlib.contextmanager
def _passed_round(group: Group, size: int) -> Iterator[str]:
    """Make a file of `size` zero bytes on the group's first rank and give its path to all; it is gone afterwards."""
    path = None
    try:
        with group.agreed():
            if group.rank == 0:
                path = _made(size)
        yield group.broadcast_object(path)
    finally:
        group.barrier()
        if path is not None:
            os.unlink(path)


def _made(size: int) -> str:
    try:
        number, path = tempfile.mkstemp(prefix="hpctrain-", dir=_FOLDER if _FOLDER.is_dir() else None)
        try:
            os.ftruncate(number, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(number)
    except OSError as error:
        raise _too_little(size, error) from None
    return path


def _own_ranges(group: Group, count: int, size: int) -> list[tuple[int, int]]:
    """Return the bytes that a rank claims: its row; the first one also what stands behind the rows."""
    stride = _stride(count)
    ranges = [(group.rank * stride, (group.rank + 1) * stride)]
    return ranges if group.rank else [*ranges, (group.size * stride, size)]


def _mapped(path: str, size: int, claimed: list[tuple[int, int]]) -> mmap.mmap:
    try:
        with open(path, "r+b") as file:
            try:
                for start, stop in claimed:  # a file system that is full says so here, and not by a signal later
                    os.posix_fallocate(file.fileno(), start, stop - start)
            except OSError as error:
                raise _too_little(size, error) from None
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise UserError("shared memory cannot be mapped", found=f"{path}: {error.strerror}") from None


def _too_little(size: int, error: OSError) -> UserError:
    return UserError(
        f"there is not enough shared memory on this node for {size / 1e6:,.0f} MB",
        found=f"{_FOLDER}: {error.strerror}",
        hint='take strategy.collective = "native", or give the container more (docker run --shm-size)',
    )
