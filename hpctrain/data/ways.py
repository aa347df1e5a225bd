"""Which way each part of the data goes: in memory, in mapped files, or streamed; and who can see the files.

Looking (at files, at memory) and choosing are apart: `choose` is arithmetic.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hpctrain.comm.group import Group
from hpctrain.errors import UserError
from hpctrain.memory import available_bytes

MEMORY, MAPPED, STREAMED = "memory", "mapped", "streamed"
_LOOKED_AT = 1000  # files, at most: a file system that all ranks ask at once is slow
_MOST_TIMES_RANKS = 16  # more ranks than so many times those that there are help nobody
_SHARE_OF_AVAILABLE = 0.5  # of the memory that is left on a node, for the data of all its ranks


@dataclass(frozen=True)
class Needs:
    """What the parts of one source take on the rank that needs most, in bytes.

    memory    part -> its rows in memory
    loading   beside that, for a while, where any part of the source is read into memory
    mapped    all parts of the source, mapped; None where the source cannot be mapped
    streamed  the rows of training, streamed
    judged    a part that is only judged, streamed; such parts take turns
    passed_on of `streamed` what a rank takes that does not read
    """

    memory: dict[str, int]
    loading: int
    mapped: int | None
    streamed: int
    judged: int = 0
    passed_on: int = 0


@dataclass(frozen=True)
class Ways:
    """What was chosen: part -> way, the order of training, and lines that say so."""

    of: dict[str, str]
    shuffle: str
    said: tuple[str, ...]


def budget(group: Group, memory: int | None) -> int:
    """Return the bytes that data may take on a rank, the same on every rank.  Collective.

    `memory` is what the job says; None: half of what is available on the rank's node, divided by its ranks there, and
    the least of all nodes.
    """
    if memory is not None:
        return memory
    return min(group.all_gather_objects(share_of_available(group.local_size)))


def share_of_available(ranks: int) -> int:
    """Return the bytes that data may take on each of so many ranks of this machine, where the job does not say."""
    return int(_SHARE_OF_AVAILABLE * available_bytes() / ranks)


def sees_files(group: Group, files: list[str] | None) -> bool:
    """Return whether every rank sees the same files as rank 0, whose paths are given there.  Collective.

    The same: of the same size, and last written to at the same time.  Of very many files some are looked at.
    """
    states = None
    if group.rank == 0:
        looked_at = files[:: -(-len(files) // _LOOKED_AT)] if files else []
        states = [(path, _state(path)) for path in looked_at]
    states = group.broadcast_object(states)
    return all(group.all_gather_objects(all(_state(path) == state for path, state in states)))


def _state(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def choose(needs: list[Needs], limit: int, shuffle: str, is_free: bool, ranks: int) -> Ways:
    """Choose a way for every part.

    needs    of each source; the first one's parts are "train" and what is split off from it
    limit    bytes that data may take on a rank
    is_free  "global" may become "chunks" where the training rows neither fit nor can be mapped

    Raises `UserError` where there is no way.
    """
    parts = {part: size for need in needs for part, size in need.memory.items()}
    loading = max(need.loading for need in needs)
    everything = sum(parts.values()) + loading
    if everything <= limit:
        return Ways(dict.fromkeys(parts, MEMORY), shuffle, ())
    why = f"{_size(everything)} of data and reading them are more than the {_size(limit)} a rank may use"
    if shuffle == "local":
        raise UserError(
            'data.shuffle = "local" needs all rows in memory',
            found=f"{why} (data.memory)",
            hint='set data.shuffle = "chunks", give data.memory more, or take more ranks',
        )
    train = needs[0]
    ways: dict[str, str] = {}
    said = []
    if shuffle == "global" and train.mapped is not None and train.mapped <= limit:
        ways |= dict.fromkeys(train.memory, MAPPED)
        left = limit - train.mapped
        said.append(f"data: every rank reads its rows where they stand in the files (memory maps): {why}")
    else:
        if shuffle == "global":
            if not is_free:
                raise _no_way(sum(parts.values()), loading, limit, ranks)
            shuffle = "chunks"
            said.append(
                'shuffle: "chunks" instead of "global", which needs all rows in memory or in contiguous, '
                "uncompressed float32 that every rank sees"
            )
        ways["train"] = STREAMED
        left = limit - train.streamed
        said.append(f"data: read in pieces in every epoch: {why}")
        if left < 0:
            raise UserError(
                "data.memory is too little to read the data in pieces",
                found=f"{_size(limit)} a rank, and reading takes {_size(train.streamed)} with this data.shuffle_buffer",
                hint="give data.memory more, or data.shuffle_buffer less",
            )
    for need in needs:
        kept = need.loading
        for part, size in need.memory.items():
            if part in ways:
                continue
            if size + kept <= left:
                ways[part] = MEMORY
                left -= size
            elif need.mapped is not None and need.mapped <= left:
                ways[part] = MAPPED
                left -= need.mapped
            else:
                ways[part] = STREAMED
    return Ways(ways, shuffle, tuple(said))


def mixing(shuffle: str, chunk_rows: int, pool_rows: int, total: int) -> str:
    """Say in a line what order the examples come in, and what that costs in mixing."""
    if shuffle == "none":
        return "shuffle: none, every epoch goes through the rows in the order of the files"
    if shuffle == "local":
        return (
            "shuffle: local, each rank mixes the rows that it holds and exchanges none: "
            "batches, and so the results, depend on the number of ranks"
        )
    if shuffle == "global":
        return "shuffle: global, every epoch is a permutation of all examples"
    if pool_rows >= total:
        return (
            "shuffle: chunks in random order, mixed among all examples, which data.shuffle_buffer holds: as good as "
            '"global", every epoch is a permutation of them'
        )
    return (
        f"shuffle: chunks of about {chunk_rows:,} examples in random order, mixed among {pool_rows:,} at a time "
        f"({min(1.0, pool_rows / total):.1%} of the epoch; more with a larger data.shuffle_buffer)"
    )


def _no_way(parts: int, loading: int, limit: int, ranks: int) -> UserError:
    """Return the error for rows that take `parts` bytes on each of so many ranks, and `loading` on any number."""
    needed, hint = _size(parts + loading), 'set data.shuffle = "chunks", or give data.memory '
    enough = -(-parts * ranks // (limit - loading)) if limit > loading else 0
    more = f", or take about {enough:,} ranks" if 0 < enough <= _MOST_TIMES_RANKS * ranks else ""
    return UserError(
        'data.shuffle = "global" needs all rows in memory, or in files that can be mapped',
        found=f"{needed} a rank, more than the {_size(limit)} of data.memory; the inputs are not contiguous, "
        "uncompressed float32 that every rank sees",
        allowed='data.shuffle = "chunks" or "none" for data that are read in pieces',
        hint=f"{hint}{needed}{more}",
    )


def _size(size: int) -> str:
    """Return bytes for people: "5,064 MB", "9.5 MB", "2 kB", "10 bytes"."""
    if size < 1000:
        return f"{size} bytes"
    value, unit = (size / 1e6, "MB") if size >= 10**6 else (size / 1e3, "kB")
    return f"{value:,.{1 if value < 100 else 0}f}".removesuffix(".0") + f" {unit}"
