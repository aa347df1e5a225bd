"""The verb `shard`: cuts a data set into even shard files with a manifest; the ranks write them in parallel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.errors import UserError

if TYPE_CHECKING:
    from hpctrain.comm.group import Group
    from hpctrain.data.manifest import Manifest
    from hpctrain.tools.cutting.plan import Plan

_SPARE = 1.02  # of the bytes that the shards are thought to take
_LISTED = 12


def command(files: Sequence[str], shards: int, out: Path, along: str | None = None) -> int:
    """Cut on all ranks, say on rank 0 what came of it, and return the exit code."""
    from hpctrain.run import launch

    def verb(group: Group) -> None:
        manifest, kept = shard(group, files, shards, out, along)
        if group.rank == 0:
            print(report(manifest, kept), flush=True)

    return launch.command(verb)


def shard(
    group: Group, files: Sequence[str], shards: int, out: str | Path, along: str | None = None
) -> tuple[Manifest, int]:
    """Cut the rows of HDF5 files into `shards` files in the folder `out`; collective.

    files  paths, globs, or folders of shards, relative to the current folder
    along  the dataset whose rows count; default: the rows that most bytes have in common

    Returns the manifest and how many shards were there already, undamaged.  Raises `UserError` on every rank.
    """
    from hpctrain.tools.cutting import layout, plan
    from hpctrain.tools.cutting.write import write_shard
    from hpctrain.tools.saying import Saying

    planned = group.broadcast_object(_plan(group, files, shards, Path(out), along), patient=True)
    mine = range(group.rank, planned.shards, group.size)
    rows = sum(len(planned.rows(index)) for index in mine)
    saying = Saying("cutting", rows * planned.layout.row_bytes, loud=group.rank == 0)
    finished: dict[int, tuple[int, str]] = {}
    kept = 0
    with group.agreed(patient=True):
        for index in mine:
            found = plan.finished_before(planned, index)
            if found is None:
                write_shard(planned, index, saying.add)
                layout.check_unchanged(planned.sources_of(index))
                for stamp in planned.layout.behind:
                    stamp.check()
                found = plan.note_finished(planned, index)
            else:
                kept += 1
                saying.add(len(planned.rows(index)) * planned.layout.row_bytes)
            finished[index] = found
    everyone = group.all_gather_objects((finished, kept))
    manifest = None
    with group.agreed():
        if group.rank == 0:
            shards_of = {index: found for part, _ in everyone for index, found in part.items()}
            manifest = plan.close_folder(planned, [shards_of[index] for index in range(planned.shards)])
    return group.broadcast_object(manifest), sum(count for _, count in everyone)


def _plan(group: Group, files: Sequence[str], shards: int, out: Path, along: str | None) -> Plan | None:
    """Look at the files and make the folder ready, on rank 0; the others get None, and all of them its errors."""
    from hpctrain.data.files import expand
    from hpctrain.files import sweep_temporary
    from hpctrain.tools.cutting import layout, plan

    planned = None
    with group.agreed():
        if group.rank == 0:
            paths = expand([str(path) for path in files], os.getcwd())
            planned = plan.plan(layout.look(paths, along), shards, Path(os.path.abspath(out)))
            if any(Path(source.path).parent == planned.folder for source in planned.layout.sources):
                raise UserError(
                    "--out is the folder of a file that is to be cut", found=str(out), hint="choose another folder"
                )
            plan.open_folder(planned)
            sweep_temporary(planned.folder)
            _check_space(planned)
    return planned


def _check_space(planned: Plan) -> None:
    there = sum(path.stat().st_size for path in planned.folder.glob("shard-*.h5"))
    needed = int(_SPARE * sum(data.stored_bytes for data in planned.layout.cut)) - there
    free = shutil.disk_usage(planned.folder).free
    if needed > free:
        raise UserError(
            f"there is not enough space for the shards in {planned.folder}",
            found=f"{free / 1e9:.2f} GB free, about {needed / 1e9:.2f} GB needed",
            hint="make room there (`df -h`, `quota`), or choose another --out",
        )


def report(manifest: Manifest, kept: int = 0) -> str:
    """Return what was cut, in words."""
    from hpctrain.monitor.words import count, counted

    sizes = [len(shard.rows) for shard in manifest.shards]
    even = count(sizes[0]) if min(sizes) == max(sizes) else f"{count(min(sizes))} to {count(max(sizes))}"
    total = sum(shard.bytes for shard in manifest.shards)
    lines = [
        f"{counted(len(sizes), 'shard')} of {even} rows in {manifest.folder}: {count(manifest.rows)} rows, "
        f"{total / 1e6:,.1f} MB"
    ]
    if kept:
        lines.append(f"  {counted(kept, 'shard')} stood there already, undamaged")
    cut = [f"{name} {data.shape} {data.dtype}" for name, data in manifest.datasets.items()]
    lines += _named("cut by rows", cut) + _named("copied whole", list(manifest.copied))
    lines += _named("left out", [f"{name}: {why}" for name, why in manifest.left_out.items()])
    lines.append(f'  to read them: files = "{manifest.folder}" in [data]')
    return "\n".join(lines)


def _named(title: str, items: list[str]) -> list[str]:
    if len(items) > _LISTED:
        items = [*items[:_LISTED], f"... and {len(items) - _LISTED} more"]
    return [f"  {title if index == 0 else '':<13} {item}" for index, item in enumerate(items)]
