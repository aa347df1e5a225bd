"""`Holders`: which ranks read which files, where each node has shard files of its own (`data.distribute = "local"`).

The shards' folder and its manifest are seen by all ranks; each node has copies of some shards in a folder of its own,
as the verb `stage` makes them.  A shard that no node has a copy of is read from the shards' folder.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.data.manifest import MANIFEST, Manifest
from hpctrain.data.sharding import row_range
from hpctrain.errors import UserError


@dataclass(frozen=True)
class Holders:
    """Which ranks read which rows of a source.

    starts   (files + 1,) int64: the files' rows
    readers  (files, 2) int64: file f is read by the ranks readers[f, 0] .. readers[f, 1] - 1
    """

    starts: np.ndarray
    readers: np.ndarray

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return for each row its readers, (rows, 2) int64."""
        return self.readers[np.searchsorted(self.starts, rows, side="right") - 1]

    def ranges(self, rank: int) -> list[tuple[int, int]]:
        """Return the rows lo..hi that a rank keeps: an even share of those of its node's files, in order."""
        mine = np.flatnonzero((self.readers[:, 0] <= rank) & (rank < self.readers[:, 1]))
        if not len(mine):
            return []
        first, stop = (int(value) for value in self.readers[mine[0]])
        lengths = np.diff(self.starts)[mine]
        lo, hi = row_range(int(lengths.sum()), rank - first, stop - first)
        found, before = [], 0
        for file, length in zip(mine, lengths, strict=True):
            a, b = max(lo - before, 0), min(hi - before, int(length))
            if a < b:
                found.append((int(self.starts[file]) + a, int(self.starts[file]) + b))
            before += int(length)
        return found


def staged_files(files: list[str], staged: str | None) -> tuple[list[str], list[int], Manifest]:
    """Return where this node reads the shards, which it has copies of, and their manifest.

    files   the shards, as their manifest lists them
    staged  this node's folder of copies; may name environment variables; None: the shards' own folder

    Raises `UserError` where the files are no shards, or the copies are not copies of them.
    """
    folder = Path(files[0]).parent
    manifest = Manifest.load(folder) if (folder / MANIFEST).exists() else None
    if manifest is None or manifest.files != files:
        raise UserError(
            'data.distribute = "local" is for shards: data.files must name one folder of them',
            found=f"{folder} has {f'no {MANIFEST}' if manifest is None else 'other files than data.files names'}",
            hint="make shards (`python -m hpctrain shard`), copy them to each node (`stage`), and name their folder in "
            "data.files and the folder of the copies in data.staged",
        )
    if staged is None:
        return files, list(range(len(files))), manifest
    place = Path(os.path.expandvars(os.path.expanduser(staged)))
    if not place.is_dir():
        raise UserError(
            f"data.staged = {staged!r} is no folder on {socket.gethostname()}",
            found=f"{place} is a file" if place.exists() else f"there is no {place}",
            hint=f"copy the shards there first: python -m hpctrain stage {folder} --to {place}",
        )
    copies = Manifest.load(place)
    if copies.shards != manifest.shards:
        raise UserError(
            f"data.staged = {str(place)!r} has copies of other shards than data.files names",
            found=f"{copies.folder / MANIFEST} differs from {manifest.folder / MANIFEST}",
            hint="stage the shards again",
        )
    here = copies.here()
    for index in here:
        copies.check_size(index)
    return [str(copies.path(i)) if i in set(here) else files[i] for i in range(len(files))], here, manifest


def holders_of(group: Group, here: list[int], manifest: Manifest) -> tuple[Holders, int]:
    """Return who reads which shard, and how many shards no node has a copy of; collective.

    here  the shards that this rank's node has

    A shard goes to the node that `stage` deals it to, where that has it, else to the first that has.
    """
    ranks = group.all_gather_objects((group.node, here))
    nodes = [node for node, _ in ranks]
    if nodes != sorted(nodes):
        raise UserError(
            'data.distribute = "local" needs the ranks of a node to be neighbours',
            found=f"ranks on the nodes {nodes}",
            hint="place ranks node by node: mpirun --map-by core, srun --distribution=block",
            agreed=True,
        )
    having = {node: set(shards) for node, shards in ranks}
    spans = {node: (nodes.index(node), nodes.index(node) + nodes.count(node)) for node in having}
    readers, nowhere = [], 0
    for node in having:
        dealt = manifest.dealt(node, len(having))
        for shard in dealt:
            with_it = [other for other in (node, *having) if shard in having[other]]
            nowhere += not with_it
            readers.append(spans[with_it[0] if with_it else node])
    starts = [0, *(shard.rows.stop for shard in manifest.shards)]
    return Holders(np.array(starts, np.int64), np.array(readers, np.int64)), nowhere
