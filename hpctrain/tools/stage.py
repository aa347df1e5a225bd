"""The verb `stage`: copies shards to storage of each node's own, checks their checksums, and goes on after a stop.

The ranks of a node share its copies.  A file is copied under another name and renamed when its checksum is right, so
that what has its name is whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.data.manifest import HASH_BLOCK, MANIFEST, Manifest
from hpctrain.errors import UserError
from hpctrain.files import atomic_text, atomic_write, cannot_write, reason, sweep_temporary

if TYPE_CHECKING:
    from hpctrain.comm.group import Group


def command(folder: Path, to: Path, everything: bool = False) -> int:
    """Stage on all ranks, say on rank 0 what came of it, and return the exit code."""
    from hpctrain.run import launch

    def verb(group: Group) -> None:
        staged = stage(group, folder, to, everything)
        if group.rank == 0:
            print(report(staged, to), flush=True)

    return launch.command(verb)


@dataclass(frozen=True)
class Staged:
    """What `stage` did on one node: shards (numbers) that the node needs, how many of them were copied, and bytes."""

    hostname: str
    shards: range
    copied: int
    bytes: int


def stage(group: Group, folder: str | Path, to: str | Path, everything: bool = False) -> list[Staged]:
    """Copy the shards that each node needs into the folder `to` of that node; collective.

    folder      a folder of shards with its manifest, which all nodes see
    everything  every node gets all shards; else each gets its part of them, neighbours (see `Manifest.dealt`)

    A shard that is there with the right checksum is kept.  Returns what was done, by node.  Raises `UserError` on every
    rank: for a damaged shard (named), no space, no permission, or another data set in `to`.
    """
    from hpctrain.tools.saying import Saying

    to = Path(os.path.abspath(os.path.expanduser(to)))
    source = _read_manifest(group, folder, to)
    local = replace(source, folder=to)
    needed = range(len(source.shards)) if everything else source.dealt(group.node, group.nodes)
    with group.agreed():
        if group.local_rank == 0:
            _prepare(source, local, needed, group.hostname)
    mine = needed[group.local_rank :: group.local_size]
    saying = Saying("staging", sum(source.shards[index].bytes for index in mine), loud=group.rank == 0)
    copied, size = 0, 0
    with group.agreed(patient=True):
        for index in mine:
            if not _is_right(local, index, saying.add):
                _copy(source, local, index, saying.add)
                copied += 1
                size += source.shards[index].bytes
    with group.agreed():
        if group.local_rank == 0:
            # Last of all: a folder with a manifest has all that its node needs.
            atomic_text(to / MANIFEST, source.text())
    done = group.all_gather_objects((group.node, Staged(group.hostname, needed, copied, size)))
    nodes = sorted({node for node, _ in done})
    return [_together([one for node, one in done if node == number]) for number in nodes]


def _together(parts: list[Staged]) -> Staged:
    """Add up what the ranks of one node did."""
    return replace(parts[0], copied=sum(part.copied for part in parts), bytes=sum(part.bytes for part in parts))


def _read_manifest(group: Group, folder: str | Path, to: Path) -> Manifest:
    manifest = None
    with group.agreed():
        manifest = Manifest.load(os.path.abspath(os.path.expanduser(folder)))
        if os.path.realpath(manifest.folder) == os.path.realpath(to):
            raise UserError("--to is the folder of the shards itself", found=str(to), hint="choose another folder")
    return manifest


def _prepare(source: Manifest, local: Manifest, needed: range, hostname: str) -> None:
    """Make a node's folder ready: there, of no other data set, without what a killed run left, with enough space."""
    to = local.folder
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(f"{to} on {hostname}", error) from None
    if (to / MANIFEST).exists() and Manifest.load(to).text() != source.text():
        raise UserError(
            f"{to} on {hostname} holds shards of another data set",
            found=f"a {MANIFEST} that is not the one in {source.folder}",
            allowed="an empty folder, or one with these shards",
            hint="choose another --to, or remove the folder",
        )
    sweep_temporary(to)
    # An interrupted run may have left shards of any data set without a manifest: their sizes tell most of them apart
    # from ours, their checksums the rest, and what is not ours is replaced.
    missing = 0
    for index in needed:
        path, shard = local.path(index), source.shards[index]
        if not path.is_file() or path.stat().st_size != shard.bytes:
            missing += shard.bytes  # a wrong file is there until the right one takes its place
    free = shutil.disk_usage(to).free
    if missing > free:
        raise UserError(
            f"there is not enough space for the shards in {to} on {hostname}",
            found=f"{free / 1e9:.2f} GB free, {missing / 1e9:.2f} GB needed for {len(needed)} shards",
            hint="make room there, choose another --to, or take more nodes (without --all each gets its part)",
        )


def _is_right(local: Manifest, index: int, progress: Callable[[int], None]) -> bool:
    try:
        local.check_size(index)
        local.verify(index, progress)
    except UserError:
        return False
    return True


def _copy(source: Manifest, local: Manifest, index: int, progress: Callable[[int], None]) -> None:
    """Copy a shard, with its checksum worked out on the way; a wrong one is an error that names it."""
    source.check_size(index)

    def write(temporary: Path) -> None:
        digest = hashlib.sha256()
        with open(temporary, "wb", buffering=0) as target:
            for block in _blocks(source.path(index)):
                _write_all(target, block)
                digest.update(block)
                progress(len(block))
        if digest.hexdigest() != source.shards[index].sha256:
            wanted = f"sha256 {source.shards[index].sha256}"
            raise source.damaged(index, f"sha256 {digest.hexdigest()}", wanted)

    atomic_write(local.path(index), write)


def _blocks(path: Path) -> Iterator[memoryview]:
    """Yield a file's content in blocks, which stay valid until the next; what fails is told apart from writing."""
    block = bytearray(HASH_BLOCK)
    try:
        with open(path, "rb", buffering=0) as stream:
            while count := stream.readinto(block):
                yield memoryview(block)[:count]
    except OSError as error:
        raise UserError(f"cannot read {path}", found=reason(error)) from None


def _write_all(file: object, view: memoryview) -> None:
    """Write all of a block: one call may write less of it, on a disk that is nearly full for example."""
    while view:
        view = view[file.write(view) :]


def report(staged: list[Staged], to: Path) -> str:
    """Return what was done on each node, in words."""
    from hpctrain.monitor.words import counted

    lines = []
    for node in staged:
        kept = len(node.shards) - node.copied
        lines.append(
            f"{node.hostname}: {counted(len(node.shards), 'shard')} in {to}, checked: "
            f"{node.copied} copied ({node.bytes / 1e6:,.1f} MB), {kept} there already"
        )
    return "\n".join(lines)
