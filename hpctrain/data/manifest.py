"""`Manifest`: what a folder of shard files holds: which rows stand in which file, checksums, where they came from.

The verb `shard` writes it as manifest.json, `stage` copies it along with the shards, and `data.files = "FOLDER"` and
`data.distribute = "local"` read it.  Nothing here opens an HDF5 file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.errors import UserError
from hpctrain.files import atomic_text, reason

MANIFEST = "manifest.json"
FORMAT = "hpctrain shards"
VERSION = 1
HASH_BLOCK = 4 << 20  # bytes that are read at a time


@dataclass(frozen=True)
class ShardFile:
    """One shard.

    file    its name within the folder
    rows    the rows of the whole data set that it holds, in order: a range, so that `len(rows)` is how many
    bytes   its size
    sha256  checksum of its content, in hexadecimal digits
    """

    file: str
    rows: range
    bytes: int
    sha256: str


@dataclass(frozen=True)
class SourceFile:
    """A file that the rows came from: its absolute path, size, time of its last change (ns), and its number of rows."""

    path: str
    bytes: int
    mtime_ns: int
    rows: int


@dataclass(frozen=True)
class ShardedDataset:
    """A dataset over all shards: shape, element type in words, and rows a chunk (None where it is contiguous)."""

    shape: tuple[int, ...]
    dtype: str
    chunk_rows: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest.json; `folder` is where it stands.

    datasets  path -> what is cut by rows
    copied    paths of what stands whole in every shard
    left_out  path of the source -> why it is in no shard
    """

    folder: Path
    shards: tuple[ShardFile, ...]
    datasets: dict[str, ShardedDataset]
    sources: tuple[SourceFile, ...] = ()
    copied: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Manifest:
        """Read the manifest of a folder (or a manifest.json itself).

        Raises `UserError` where there is none, it cannot be read, or is of a version that this program does not know.
        """
        path = Path(path)
        if path.is_dir():
            path = path / MANIFEST
        elif path.name != MANIFEST:
            raise UserError(
                f"{path} is no folder of shards",
                found="a file" if path.exists() else "there is no such folder",
                allowed="a folder that `python -m hpctrain shard FILES --shards N --out FOLDER` has written",
            )
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UserError(
                f"there is no {MANIFEST} in {path.parent}",
                allowed="a folder of shards, as `python -m hpctrain shard FILES --shards N --out FOLDER` writes it",
                hint="make the shards first; or, where `shard` was interrupted, start it again: it goes on",
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            found = reason(error) if isinstance(error, OSError) else "it is no text"
            raise UserError(f"cannot read {path}", found=found) from None
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path) -> Manifest:
        """Make a manifest from the text of the file at `path`; errors as in `load`."""
        try:
            content = json.loads(text)
            form, version = content["format"], content["version"]
        except (ValueError, TypeError, KeyError):
            form = version = None
        if form != FORMAT:
            raise UserError(f"{path} is no manifest of shards", allowed=f'JSON with "format": "{FORMAT}"')
        if version != VERSION:
            raise UserError(
                f"{path} was written by another version of hpctrain",
                found=f"version {version} of the format",
                allowed=f"version {VERSION}",
                hint="make the shards again with this one, or use the newer one",
            )
        try:
            return cls(
                path.parent,
                tuple(ShardFile(**{**shard, "rows": range(*shard["rows"])}) for shard in content["shards"]),
                {
                    name: ShardedDataset(tuple(data["shape"]), data["dtype"], data["chunk_rows"])
                    for name, data in content["datasets"].items()
                },
                tuple(SourceFile(**source) for source in content["sources"]),
                tuple(content["copied"]),
                content["left_out"],
            ).checked(path)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path} is damaged", found=f"{type(error).__name__}: {error}", hint="make the shards again"
            ) from None

    def checked(self, path: Path) -> Manifest:
        """Return the manifest; a `ValueError` where its shards do not follow one another from row 0."""
        stop = 0
        for shard in self.shards:
            if shard.rows.start != stop or Path(shard.file).name != shard.file:
                raise ValueError(f"shard {shard.file!r} of {path} does not begin with row {stop}")
            stop = shard.rows.stop
        if not self.shards:
            raise ValueError("no shards")
        return self

    def save(self) -> None:
        """Write manifest.json into the folder, whole or not at all."""
        atomic_text(self.folder / MANIFEST, self.text())

    def text(self) -> str:
        """Return the content of manifest.json."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "rows": self.rows,
            "shards": [{**asdict(shard), "rows": [shard.rows.start, shard.rows.stop]} for shard in self.shards],
            "datasets": {name: asdict(data) for name, data in self.datasets.items()},
            "copied": list(self.copied),
            "left_out": self.left_out,
            "sources": [asdict(source) for source in self.sources],
        }
        return json.dumps(content, indent=1) + "\n"

    @property
    def rows(self) -> int:
        """Number of rows over all shards."""
        return self.shards[-1].rows.stop

    @property
    def files(self) -> list[str]:
        """The shards' paths, in the order of their rows."""
        return [str(self.path(index)) for index in range(len(self.shards))]

    def path(self, index: int) -> Path:
        """Return the path of a shard, whether or not it is there."""
        return self.folder / self.shards[index].file

    def here(self) -> list[int]:
        """Return the numbers of the shards whose files are in the folder: a staged one may hold a part of them."""
        return [index for index in range(len(self.shards)) if self.path(index).is_file()]

    def dealt(self, part: int, parts: int) -> range:
        """Return the numbers of the shards that belong to one of several nodes: neighbours, as evenly as can be."""
        count = len(self.shards)
        return range(count * part // parts, count * (part + 1) // parts)

    def check_size(self, index: int) -> None:
        """Raise a `UserError` that names the shard unless its file is there and of the right size."""
        shard, path = self.shards[index], self.path(index)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise UserError(
                f"shard {shard.file} (rows {shard.rows.start} to {shard.rows.stop - 1}) is missing in {self.folder}",
                found=reason(error),
                hint="stage it again, or make the shards again",
            ) from None
        if size != shard.bytes:
            raise self.damaged(index, f"{size:,} bytes", f"{shard.bytes:,} bytes")

    def verify(self, index: int, progress: Callable[[int], None] | None = None) -> None:
        """Read a shard and raise a `UserError` that names it unless its size and checksum are the manifest's.

        progress  called with the number of bytes of each block that was read
        """
        self.check_size(index)
        try:
            found = checksum(self.path(index), progress)
        except OSError as error:
            raise UserError(f"cannot read {self.path(index)}", found=reason(error)) from None
        if found != self.shards[index].sha256:
            raise self.damaged(index, f"sha256 {found}", f"sha256 {self.shards[index].sha256}")

    def damaged(self, index: int, found: str, allowed: str) -> UserError:
        """Return the error for a shard whose content is not what the manifest says."""
        shard = self.shards[index]
        return UserError(
            f"shard {shard.file} (rows {shard.rows.start} to {shard.rows.stop - 1}) is damaged: {self.path(index)}",
            found=found,
            allowed=f"{allowed}, as in {MANIFEST}",
            hint="stage it again from an undamaged copy; or run `shard` again, which replaces what is damaged",
        )


def checksum(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits; reads it in blocks."""
    found = hashlib.sha256()
    block = bytearray(HASH_BLOCK)
    view = memoryview(block)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            found.update(view[:count])
            if progress:
                progress(count)
    return found.hexdigest()
