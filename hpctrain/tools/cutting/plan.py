"""Where a data set is cut, and what a half-finished folder of shards says about it, so that `shard` can go on.

Until all shards are there the folder holds `PLAN` and, beside each finished shard, its checksum in a file that
`sha256sum -c` understands; then the manifest takes their place.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpctrain.data.manifest import FORMAT, MANIFEST, VERSION, Manifest, ShardedDataset, ShardFile, SourceFile, checksum
from hpctrain.errors import UserError
from hpctrain.files import atomic_text, cannot_write, sync_folder
from hpctrain.tools.cutting.layout import Layout

PLAN = "unfinished.json"
_UNEVEN = 10  # shards of at least so many chunks may end where chunks end: they differ by a tenth at most


@dataclass(frozen=True)
class Plan:
    """How a data set is cut: shard i holds the rows `cuts[i]` to `cuts[i + 1]`.

    unit  every cut but the last is a multiple of so many rows: those of a chunk, or 1
    """

    folder: Path
    layout: Layout
    cuts: tuple[int, ...]
    unit: int

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.cuts) - 1

    def file(self, index: int) -> str:
        """Return the name of a shard's file."""
        return f"shard-{index:05d}-of-{self.shards:05d}.h5"

    def rows(self, index: int) -> range:
        """Return the rows of a shard."""
        return range(self.cuts[index], self.cuts[index + 1])

    def sources_of(self, index: int) -> list[SourceFile]:
        """Return the files that a shard's rows come from."""
        rows, first, found = self.rows(index), 0, []
        for source in self.layout.sources:
            if first < rows.stop and rows.start < first + source.rows:
                found.append(source)
            first += source.rows
        return found

    def manifest(self, finished: list[tuple[int, str]]) -> Manifest:
        """Return the manifest, given size and checksum of each shard."""
        layout = self.layout
        shards = [ShardFile(self.file(i), self.rows(i), size, digest) for i, (size, digest) in enumerate(finished)]
        datasets = {name: ShardedDataset(*what) for name, what in layout.datasets().items()}
        return Manifest(self.folder, tuple(shards), datasets, layout.sources, layout.copied, layout.left_out)

    def description(self) -> dict[str, Any]:
        """Return what two plans must have in common to be one, as JSON values."""
        layout = self.layout
        return {
            "format": FORMAT,
            "version": VERSION,
            "cuts": list(self.cuts),
            "sources": [asdict(source) for source in layout.sources],
            "datasets": {name: [list(shape), dtype, rows] for name, (shape, dtype, rows) in layout.datasets().items()},
            "copied": list(layout.copied),
        }


def plan(layout: Layout, shards: int, folder: Path) -> Plan:
    """Decide where to cut: evenly, and where chunks end if that leaves the shards within a tenth of each other."""
    if shards > layout.rows:
        raise UserError(
            "there are more shards than rows",
            found=f"--shards {shards}, {layout.rows} rows",
            allowed=f"1 to {layout.rows} shards",
        )
    unit = _unit(layout)
    if unit * _UNEVEN * shards > layout.rows:
        unit = 1
    pieces = -(-layout.rows // unit)
    cuts = [min(unit * (pieces * index // shards), layout.rows) for index in range(shards + 1)]
    return Plan(folder, layout, tuple(cuts), unit)


def _unit(layout: Layout) -> int:
    """Return the rows after which a chunk of every dataset ends, or of the largest one where that is too many."""
    chunked = [data for data in layout.cut if data.chunk_rows]
    if not chunked:
        return 1
    unit = math.lcm(*(data.chunk_rows for data in chunked))
    return unit if unit * 100 <= layout.rows else max(chunked, key=lambda data: data.row_bytes).chunk_rows


def open_folder(planned: Plan) -> None:
    """Make the folder ready: new, or one with the same plan.  Another data set in it is a `UserError`."""
    folder = planned.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise cannot_write(folder, error) from None
    if (found := _description_of(folder)) is not None:
        if found != planned.description():
            raise UserError(
                f"{folder} holds the shards of another data set, or of other files than now",
                found=_difference(found, planned.description()),
                allowed="an empty folder, or one with shards of the same files, cut in the same way",
                hint="choose another --out, or remove the folder",
            )
    elif strange := [name for name in there if name.endswith((".h5", ".hdf5"))]:
        raise UserError(
            f"{folder} holds other HDF5 files",
            found=", ".join(strange[:10]),
            allowed="an empty folder, or one with shards of the same files",
            hint="choose another --out",
        )
    atomic_text(folder / PLAN, json.dumps(planned.description(), indent=1) + "\n")


def _description_of(folder: Path) -> dict[str, Any] | None:
    """Return what a folder's shards are of, by its manifest or by what an interrupted `shard` left; None without."""
    if (folder / MANIFEST).exists():
        manifest = Manifest.load(folder)
        return {
            "format": FORMAT,
            "version": VERSION,
            "cuts": [0, *(shard.rows.stop for shard in manifest.shards)],
            "sources": [asdict(source) for source in manifest.sources],
            "datasets": {
                name: [list(data.shape), data.dtype, data.chunk_rows] for name, data in manifest.datasets.items()
            },
            "copied": list(manifest.copied),
        }
    try:
        return json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder / PLAN} cannot be read", found=error, hint="remove the folder and start over"
        ) from None


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Word the first difference between two descriptions."""
    words = {"cuts": "row ranges", "sources": "source files", "datasets": "datasets", "copied": "copied datasets"}
    for key, what in words.items():
        if found.get(key) != wanted[key]:
            there, here = (json.dumps(value.get(key)) for value in (found, wanted))
            return f"{what} {_short(there)}, but now {_short(here)}"
    return "another version of the format"


def _short(text: str, length: int = 200) -> str:
    return text if len(text) <= length else text[: length - 4] + " ..."


def finished_before(planned: Plan, index: int) -> tuple[int, str] | None:
    """Return size and checksum of a shard that an earlier run finished and that is undamaged; None where it is not."""
    path, digest = planned.folder / planned.file(index), _digest(planned, index)
    if digest is None or not path.is_file() or checksum(path) != digest:
        return None
    return path.stat().st_size, digest


def _digest(planned: Plan, index: int) -> str | None:
    """Return the checksum that a shard should have, None where it was never finished."""
    try:
        return _digest_path(planned, index).read_text(encoding="utf-8").split()[0]
    except (OSError, ValueError, IndexError):
        whole = (planned.folder / MANIFEST).exists()
        return Manifest.load(planned.folder).shards[index].sha256 if whole else None


def note_finished(planned: Plan, index: int) -> tuple[int, str]:
    """Write down that a shard is finished; return its size and checksum."""
    path = planned.folder / planned.file(index)
    digest = checksum(path)
    atomic_text(_digest_path(planned, index), f"{digest}  {path.name}\n")
    return path.stat().st_size, digest


def close_folder(planned: Plan, finished: list[tuple[int, str]]) -> Manifest:
    """Write the manifest and remove what only an unfinished folder needs."""
    manifest = planned.manifest(finished)
    manifest.save()
    for index in range(planned.shards):
        _digest_path(planned, index).unlink(missing_ok=True)
    (planned.folder / PLAN).unlink(missing_ok=True)
    sync_folder(planned.folder)
    return manifest


def _digest_path(planned: Plan, index: int) -> Path:
    return planned.folder / f"{planned.file(index)}.sha256"
