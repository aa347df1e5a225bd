"""What a data set of HDF5 files holds, as `shard` sees it: what is cut by rows, what is copied whole, what is left out.

The rows are counted by the first axis that the most bytes have in common.  Only metadata is read here, and small
datasets that are compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import h5py
import numpy as np

from hpctrain.data.datasets import type_name
from hpctrain.data.fields.opened import Stamp
from hpctrain.data.files import open_file
from hpctrain.data.filters import check_filters
from hpctrain.data.manifest import SourceFile
from hpctrain.data.virtual import files_behind
from hpctrain.errors import UserError, nearest
from hpctrain.tools.cutting.raw import has_references, read_whole, reading, same
from hpctrain.tools.inspecting.contents import place_of

COPY_BYTES = 16 << 20  # a dataset without rows of its own is copied into every shard up to this size
_MEANING = ("scale_factor", "add_offset", "_FillValue", "missing_value")  # attributes that say what the numbers are
_LISTED = 20


@dataclass(frozen=True)
class CutDataset:
    """A dataset that is cut: its rows in each file, and the file whose properties the shards take over."""

    path: str
    rows: tuple[int, ...]
    shape: tuple[int, ...]  # of a row
    dtype: str
    template: int
    row_bytes: int
    chunk_rows: int | None
    stored_bytes: int = 0  # on disk, over all files; uncompressed where it stands in other files


@dataclass(frozen=True)
class Layout:
    """What is to be cut.  `rows` are those of all files; `left_out` says why; `behind`: other files with rows in."""

    sources: tuple[SourceFile, ...]
    cut: tuple[CutDataset, ...]
    copied: tuple[str, ...]
    left_out: dict[str, str]
    behind: tuple[Stamp, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows of all files."""
        return sum(source.rows for source in self.sources)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all datasets that are cut, uncompressed."""
        return sum(dataset.row_bytes for dataset in self.cut)

    def datasets(self) -> dict[str, tuple[tuple[int, ...], str, int | None]]:
        """Return shape over all files, type and rows a chunk of each dataset that is cut."""
        return {data.path: ((self.rows, *data.shape), data.dtype, data.chunk_rows) for data in self.cut}


@dataclass(frozen=True)
class _Seen:
    """A dataset as one file has it."""

    rows: int | None  # None: no axis at all
    is_null: bool
    shape: tuple[int, ...]
    type: h5py.h5t.TypeID
    dtype: np.dtype
    bytes: int
    stored: int  # of them on disk; of virtual ones none
    chunk_rows: int | None
    meaning: dict[str, str]  # attributes that say what the numbers are
    problem: str | None
    behind: tuple[str, ...]  # files beside its own in which its numbers stand


def look(paths: Sequence[str], along: str | None = None) -> Layout:
    """Find out what a data set holds.

    along  the path of the dataset whose rows count; default: those that the most bytes have in common

    Raises `UserError` for files that do not fit together, for a filter that is not installed, and where there are no
    rows.
    """
    status = [os.stat(path) for path in paths]
    looked = [_datasets(path) for path in paths]
    files = [found for found, _ in looked]
    names = list(dict.fromkeys(name for found in files for name in found))
    left_out = {name: why for _, links in looked for name, why in links.items()}
    everywhere = [name for name in names if all(name in found for found in files)]
    left_out |= {name: f"it is not in {_first_without(paths, files, name)}" for name in names if name not in everywhere}
    for name in list(everywhere):
        problem = next((found[name].problem for found in files if found[name].problem), None)
        if problem:
            left_out[name] = problem
            everywhere.remove(name)
    rows = _common_rows(paths, files, everywhere, along, left_out)
    cut, copied = [], []
    for name in everywhere:
        seen = [found[name] for found in files]
        if tuple(one.rows or 0 for one in seen) == rows and any(one.rows is not None for one in seen):
            cut.append(_cut(name, paths, seen, rows))
            continue
        why = _why_not_copied(name, paths, seen, rows)
        if why:
            left_out[name] = why
        else:
            copied.append(name)
    sources = tuple(
        SourceFile(os.path.abspath(path), stat.st_size, stat.st_mtime_ns, count)
        for path, stat, count in zip(paths, status, rows, strict=True)
    )
    behind = {other for found in files for seen in found.values() for other in seen.behind} - set(paths)
    return Layout(sources, tuple(cut), tuple(copied), left_out, tuple(Stamp.of(other) for other in sorted(behind)))


def check_unchanged(sources: Sequence[SourceFile]) -> None:
    """Raise a `UserError` for a source that is not any more, or not here, what it was when it was looked at."""
    for source in sources:
        try:
            stat = os.stat(source.path)
            now = (stat.st_size, stat.st_mtime_ns)
        except OSError as error:
            raise UserError(f"{source.path} is not there any more", found=error.strerror) from None
        if now != (source.bytes, source.mtime_ns):
            raise UserError(
                f"{source.path} changed while it was cut, or is another file on this node",
                found=f"{now[0]:,} bytes, changed {now[1]} ns",
                allowed=f"{source.bytes:,} bytes, changed {source.mtime_ns} ns, as at the start",
                hint="wait until nobody writes to it, and cut again into an empty folder",
            )


def _datasets(path: str) -> tuple[dict[str, _Seen], dict[str, str]]:
    """Return the datasets of a file that hard links lead to, and what other links there are, which are not followed."""
    found: dict[str, _Seen] = {}
    links: dict[str, str] = {}

    def visit(group: h5py.Group, prefix: str, above: frozenset[tuple]) -> None:
        if (own := place_of(group)) in above:
            return  # a hard link to a group that holds it
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                links[prefix + name] = f"a link to {link.path} in {link.filename}"
            elif isinstance(link, h5py.SoftLink):
                links[prefix + name] = f"a link to {link.path}"
            elif isinstance(item := group[name], h5py.Group):
                visit(item, f"{prefix}{name}/", above | {own})
            elif isinstance(item, h5py.Dataset):
                found[prefix + name] = _see(item)

    with open_file(path) as file:
        try:
            visit(file, "", frozenset())
        except (OSError, RuntimeError, KeyError) as error:
            text = str(error).splitlines()[0].strip("'\"")
            raise UserError(f"HDF5 cannot read what is in {path}", found=text, hint="the file may be damaged") from None
    return found, links


def _see(dataset: h5py.Dataset) -> _Seen:
    is_null = dataset.shape is None
    shape = () if is_null else dataset.shape
    kind = dataset.id.get_type().copy()
    size = kind.get_size() * int(np.prod(shape[1:], dtype=np.int64))
    check_filters(dataset, repr(dataset.name))
    # Of a virtual one that lacks some, HDF5 would give fill values for what is missing.
    behind = files_behind(dataset, dataset.file.filename, repr(dataset.name))
    return _Seen(
        shape[0] if shape else None,
        is_null,
        shape[1:],
        kind,
        dataset.dtype,
        size * (shape or (1,))[0],
        0 if dataset.is_virtual else dataset.id.get_storage_size(),
        dataset.chunks[0] if dataset.chunks and not dataset.is_virtual else None,
        {key: str(np.asarray(dataset.attrs[key]).tolist()) for key in _MEANING if key in dataset.attrs},
        "references into the file itself" if has_references(dataset.dtype) else None,
        behind,
    )


def _common_rows(
    paths: Sequence[str],
    files: list[dict[str, _Seen]],
    names: list[str],
    along: str | None,
    left_out: dict[str, str],
) -> tuple[int, ...]:
    """Return the number of rows of each file."""
    by_rows: dict[tuple[int, ...], int] = {}
    for name in names:
        seen = [found[name] for found in files]
        if all(one.rows is None for one in seen) or any(one.rows is None and not one.is_null for one in seen):
            continue
        key = tuple(one.rows or 0 for one in seen)
        by_rows[key] = by_rows.get(key, 0) + sum(one.bytes for one in seen)
        if along is not None and name == along.strip("/"):
            return _some(key, paths)
    if along is not None:
        guess = nearest(along.strip("/"), names)
        raise UserError(
            f"--along {along!r} is no dataset with rows that all files have",
            found=left_out.get(along.strip("/")),
            allowed=", ".join(names[:_LISTED]) or "there is none",
            hint=f"did you mean {guess!r}?" if guess else None,
        )
    if not by_rows:
        raise UserError(
            f"there is nothing that could be cut in {paths[0]}" + (" and the other files" if len(paths) > 1 else ""),
            found="; ".join(f"{name}: {why}" for name, why in list(left_out.items())[:_LISTED]) or "no dataset",
            allowed="a dataset with an axis, which all files have",
        )
    return _some(max(by_rows, key=lambda key: (by_rows[key], sum(key))), paths)


def _some(rows: tuple[int, ...], paths: Sequence[str]) -> tuple[int, ...]:
    if sum(rows) == 0:
        raise UserError("the data set has no rows", found=f"0 rows in {', '.join(paths[:_LISTED])}")
    return rows


def _cut(name: str, paths: Sequence[str], seen: list[_Seen], rows: tuple[int, ...]) -> CutDataset:
    """Return a dataset that is cut, once it is sure that its rows are alike in all files."""
    template = next(i for i, count in enumerate(rows) if count and not seen[i].is_null)
    first = seen[template]
    for path, one in zip(paths, seen, strict=True):
        # An empty dataset may have been written with any type: it gives no rows.
        if one.rows and (one.shape != first.shape or not one.type.equal(first.type)):
            raise UserError(
                f"the files do not fit together: {name!r} is not the same in all of them",
                found=f"rows of shape {first.shape}, {first.dtype}, in {paths[template]}, "
                f"but {one.shape}, {one.dtype}, in {path}",
                allowed="the same shape and type of a row in all files",
                hint="cut them apart, or bring them to one type first",
            )
        if one.rows and one.meaning != first.meaning:
            raise UserError(
                f"the files do not fit together: the numbers of {name!r} do not mean the same in all of them",
                found=f"{first.meaning} in {paths[template]}, but {one.meaning} in {path}",
                allowed="the same " + ", ".join(_MEANING) + " in all files",
                hint="unpack the numbers first, or cut the files apart",
            )
    row_bytes = first.type.get_size() * int(np.prod(first.shape, dtype=np.int64))
    stored = sum(one.stored or one.bytes for one in seen)
    return CutDataset(name, rows, first.shape, _type(first.dtype), template, row_bytes, first.chunk_rows, stored)


def _type(dtype: np.dtype) -> str:
    """Return a type in words; numbers with their byte order: "float32", ">f4"."""
    return str(dtype) if dtype.kind in "biufc" else type_name(dtype)


def _why_not_copied(name: str, paths: Sequence[str], seen: list[_Seen], rows: tuple[int, ...]) -> str | None:
    """Return why a dataset without the common rows cannot stand whole in every shard, None where it can."""
    if any(one.is_null for one in seen):
        return None if all(one.is_null for one in seen) else "it is not the same in all files"
    if seen[0].bytes > COPY_BYTES:
        counts = ", ".join(str(one.rows) for one in seen[:3])
        return f"it has {counts} rows where the others have {', '.join(map(str, rows[:3]))}, and is too large to copy"
    if any(one.rows != seen[0].rows or one.shape != seen[0].shape or one.dtype != seen[0].dtype for one in seen):
        return "it is not the same in all files"
    with open_file(paths[0]) as file, reading(paths[0], name):
        first = read_whole(file[name])
    for path in paths[1:]:
        with open_file(path) as file, reading(path, name):
            if not same(first, read_whole(file[name])):
                return f"it is not the same in {path} as in {paths[0]}"
    return None


def _first_without(paths: Sequence[str], files: list[dict[str, _Seen]], name: str) -> str:
    return next(path for path, found in zip(paths, files, strict=True) if name not in found)
