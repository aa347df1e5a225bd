"""`check_alike`: do all ranks see the same files?  Each reads for itself, so that other rows would train unnoticed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.errors import UserError
from hpctrain.files import reason

_SIZED, _READ = 1000, 64  # files, at most, whose sizes and whose contents are compared
_BLOCK_BYTES = 4096
_BLOCKS = (4, 16, 256)  # of a file at least and at most, and of all files together
_NAMED = 3  # ranks in a message

Look = tuple[int, str]
"""The size of a file, and a checksum of some blocks of it, "" where none were read."""


def check_alike(group: Group, files: Sequence[str], distribute: str) -> None:
    """Raise a `UserError` on every rank where one does not see the files as rank 0 does; collective.

    files       rank 0's paths count
    distribute  what the job says, for the message

    Compared are sizes, and a few blocks from all over each file: copies of one file are alike, whenever they were made.
    Of very many files some are looked at.
    """
    seen: list[tuple[str, Look | str]] = []
    blocks = 0
    if group.rank == 0:
        some = files[:: -(-len(files) // _SIZED) or 1]
        read = set(some[:: -(-len(some) // _READ) or 1])
        blocks = min(_BLOCKS[1], max(_BLOCKS[0], _BLOCKS[2] // max(1, len(read))))
        seen = [(path, _look(path, blocks if path in read else 0)) for path in some]
    seen, blocks = group.broadcast_object((seen, blocks))
    mine = seen if group.rank else []
    found = next((problem for path, first in mine if (problem := _differs(path, first, blocks))), None)
    everyone = group.all_gather_objects((group.hostname, found))
    others = [f"rank {rank} ({host}): {what}" for rank, (host, what) in enumerate(everyone) if what]
    if not others:
        return
    more = f"; and {len(others) - _NAMED} other ranks" if len(others) > _NAMED else ""
    raise UserError(
        f'data.distribute = "{distribute}": each rank reads for itself, but not all see the same files',
        found="; ".join(others[:_NAMED]) + more,
        allowed="the same files, or copies of them, under the same paths on all nodes",
        hint='put them where every node sees them, or set data.distribute = "scatter": rank 0 reads for all',
        agreed=True,
    )


def _look(path: str, blocks: int) -> Look | str:
    """Return what a file is like; in words why it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if not blocks:
                return size, ""
            sums = hashlib.blake2b(digest_size=16)
            places = range(0, size, _BLOCK_BYTES)
            if len(places) > blocks:
                places = np.linspace(0, size - _BLOCK_BYTES, blocks).astype(np.int64).tolist()
            for place in places:
                sums.update(os.pread(file.fileno(), _BLOCK_BYTES, place))
            return size, sums.hexdigest()
    except OSError as error:
        return reason(error)


def _differs(path: str, first: Look | str, blocks: int) -> str | None:
    """Return in words how a file is not as rank 0 sees it; None where it is."""
    if isinstance(first, str):
        return f"{path}: {first} on rank 0"
    mine = _look(path, blocks if first[1] else 0)
    if mine == first:
        return None
    if isinstance(mine, str):
        return f"{path}: {mine}"
    sizes = f"has {mine[0]:,} bytes, and {first[0]:,} on rank 0"
    return f"{path} {sizes if mine[0] != first[0] else 'has other contents than on rank 0'}"
