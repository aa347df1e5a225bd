"""What HDF5 files hold: their datasets, with files that are alike, and groups that are alike, taken together.

Only metadata is read.  Of very many files or groups some, evenly spread, are looked at, and `FileSet` says so.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import h5py
import numpy as np

from hpctrain.data.datasets import type_name
from hpctrain.data.files import open_file
from hpctrain.data.filters import is_available
from hpctrain.data.virtual import check_virtual
from hpctrain.errors import UserError

LOOKED_AT = 256  # files, or groups that are alike, at most
_FEW = 3  # groups with numbers in their names that are alike are taken together from here on; others from ...
_MANY = 9
_COMPARED = 16
_DEEP = 32  # groups within groups

_FILTERS = {
    1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32001: "blosc",
    32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz", 32026: "blosc2", 307: "bzip2",
}  # fmt: skip


@dataclass(frozen=True)
class Filter:
    """A step of a dataset's compression: its number and name, its level where it has one, and whether it is here."""

    code: int
    name: str
    level: int | None
    installed: bool

    def __str__(self) -> str:
        level = "" if self.level is None else f" {self.level}"
        return f"{self.name}{level}" + ("" if self.installed else " (not installed)")


@dataclass(frozen=True)
class Entry:
    """A dataset of a file, or the datasets of that name in files or groups that are alike.

    name     path in the file; "*" stands for the names of groups that are alike: "sample_*/image"
    kind     "number", "text", "record" or "other"; `type` is a word for it
    shapes   of each place that was looked at; None: an empty dataspace
    places   file and path of each of them
    count    number of places, looked at or not
    stored   bytes on disk and `raw` bytes uncompressed, of the places that were looked at
    packed   the attributes by which stored numbers become values: scale_factor, add_offset; _FillValue, missing_value
    grouped  whether "*" stands in the name
    """

    name: str
    kind: str
    type: str
    dtype: np.dtype
    shapes: tuple[tuple[int, ...] | None, ...]
    places: tuple[tuple[str, str], ...]
    count: int
    chunks: tuple[int, ...] | None = None
    grows: bool = False
    filters: tuple[Filter, ...] = ()
    stored: int = 0
    raw: int = 0
    virtual: bool = False
    packed: dict[str, float] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # of an enumeration's values
    problem: str | None = None  # why the values cannot be read

    @property
    def grouped(self) -> bool:
        """Whether the entry stands for the datasets of groups that are alike."""
        return "*" in self.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the first place that has one; () where none has."""
        return next((shape for shape in self.shapes if shape is not None), ())

    @property
    def rows(self) -> tuple[int, ...]:
        """Length of the first axis in each place; 0 without one."""
        return tuple(shape[0] if shape else 0 for shape in self.shapes)

    @property
    def readable(self) -> bool:
        """Whether the values can be read here."""
        return self.problem is None and all(step.installed for step in self.filters)

    def signature(self) -> tuple:
        """Return what files that are alike have in common: all but the number of rows."""
        return self.name, self.type, None if self.shape == () else self.shape[1:]


@dataclass(frozen=True)
class FileSet:
    """Files with the same datasets.

    files    all of them, in the order given; `looked` of them, evenly spread, were opened
    bytes    their sizes on disk
    links    path -> what it leads to; links are not followed
    """

    files: tuple[str, ...]
    entries: tuple[Entry, ...]
    bytes: int
    looked: int
    links: dict[str, str] = field(default_factory=dict)

    def entry(self, name: str) -> Entry | None:
        """Return the entry of that name, None without one."""
        return next((entry for entry in self.entries if entry.name == name), None)


def look(paths: Sequence[str], everything: bool = False) -> list[FileSet]:
    """Return the files in sets of those that are alike, the largest set first.

    Raises `UserError` for a file that cannot be opened.  Of more than `LOOKED_AT` files some are opened, the others are
    counted to the first set; `everything` opens all, and looks into all groups.
    """
    if not paths:
        raise UserError("no file is named", allowed="HDF5 files")
    most = sys.maxsize if everything else LOOKED_AT
    chosen = spread(len(paths), most)
    sets: dict[object, list[tuple[int, FileSet]]] = {}
    for index in chosen:
        found = _file(paths[index], most)
        # A dataset with an empty dataspace may have lost its shape: names alone decide then.
        key = tuple(
            sorted(entry.signature()[:1] if None in entry.shapes else entry.signature() for entry in found.entries)
        )
        sets.setdefault(repr(key), []).append((index, found))
    _join_empty(sets)
    joined = sorted(sets.values(), key=lambda one: (-len(one), one[0][0]))
    opened = set(chosen)
    others = [path for index, path in enumerate(paths) if index not in opened]
    return [_together(one, others if number == 0 else [], paths) for number, one in enumerate(joined)]


def spread(count: int, most: int) -> list[int]:
    """Return at most so many of the numbers below `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [0]
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def _join_empty(sets: dict[object, list[tuple[int, FileSet]]]) -> None:
    """Put files whose datasets have no rows, of whatever shape and type, to the files with the same names and rows."""
    empty = [key for key, one in sets.items() if not any(sum(entry.rows) for _, file in one for entry in file.entries)]
    for key in empty:
        names = {entry.name for entry in sets[key][0][1].entries}
        for other, one in sets.items():
            if other != key and other not in empty and {entry.name for entry in one[0][1].entries} == names:
                one += sets.pop(key)
                one.sort(key=lambda item: item[0])
                break


def _together(found: list[tuple[int, FileSet]], others: list[str], paths: Sequence[str]) -> FileSet:
    """Return one set for files that are alike; `others` are files that were not opened."""
    sets = [one for _, one in found]
    files = {one.files[0] for one in sets} | set(others)
    first = next((one for one in sets if any(sum(entry.rows) for entry in one.entries)), sets[0])
    entries = []
    for entry in first.entries:
        parts = [one.entry(entry.name) for one in sets]
        whole = _added_up(parts)
        entries.append(
            replace(
                entry,
                **{key: getattr(whole, key) for key in ("shapes", "places", "stored", "raw", "filters")},
                count=whole.count + len(others) * entry.count,
            )
        )
    size = sum(one.bytes for one in sets) + sum(os.path.getsize(path) for path in others)
    ordered = tuple(path for path in paths if path in files)
    return FileSet(ordered, tuple(entries), size, len(sets), first.links)


def _file(path: str, most: int) -> FileSet:
    with open_file(path) as file:
        walk = _Walk(most)
        try:
            entries = tuple(walk.entries(file))
        except (OSError, RuntimeError, KeyError) as error:
            raise UserError(
                f"HDF5 cannot read what is in {path}", found=str(error).splitlines()[0], hint="the file may be damaged"
            ) from None
    return FileSet((path,), entries, os.path.getsize(path), 1, walk.links)


class _Walk:
    """A walk through the groups of a file, which looks into at most so many groups that are alike."""

    def __init__(self, most: int) -> None:
        self.links: dict[str, str] = {}
        self._most = most

    def entries(
        self, group: h5py.Group, prefix: str = "", depth: int = 0, above: frozenset[tuple] = frozenset()
    ) -> Iterator[Entry]:
        """Yield the datasets in a group and below; `above` are the groups that led here."""
        if isinstance(group, h5py.Dataset):  # among very many groups that were not all asked
            yield entry_of(group, prefix.rstrip("/"))
            return
        if (own := place_of(group)) in above:
            return  # a hard link to a group that holds it
        above |= {own}
        names = list(group)
        groups = self._surely_groups(group, names)
        known = set(groups)
        for name in names:
            if name in known:
                continue
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                self.links[prefix + name] = f"{link.path} in {link.filename}"
            elif isinstance(link, h5py.SoftLink):
                self.links[prefix + name] = link.path
            elif group.get(name, getclass=True) is h5py.Group:
                groups.append(name)
            elif isinstance(item := group[name], h5py.Dataset):
                yield entry_of(item, prefix + name)
        if depth > _DEEP:
            return
        if pattern := _alike(group, groups):
            yield from self._grouped(group, groups, prefix + pattern, prefix, depth)
            return
        for name in groups:
            yield from self.entries(group[name], f"{prefix}{name}/", depth + 1, above)

    def _surely_groups(self, group: h5py.Group, names: list[str]) -> list[str]:
        """Return names of groups that differ in their numbers alone; of very many some are asked: it takes time."""
        by_pattern: dict[str, list[str]] = {}
        if len(names) > self._most:
            for name in names:
                by_pattern.setdefault(re.sub(r"\d+", "#", name), []).append(name)
        found = []
        for series in by_pattern.values():
            asked = [series[index] for index in spread(len(series), self._most)]
            if len(series) > self._most and all(
                isinstance(group.get(name, getlink=True), h5py.HardLink)
                and group.get(name, getclass=True) is h5py.Group
                for name in asked
            ):
                found += series
        return found

    def _grouped(self, group: h5py.Group, names: list[str], pattern: str, prefix: str, depth: int) -> Iterator[Entry]:
        """Yield one entry for each dataset of groups that are alike."""
        found: dict[str, list[Entry]] = {}
        chosen = spread(len(names), self._most)
        for index in chosen:
            inside = f"{prefix}{names[index]}/"
            for entry in self.entries(group[names[index]], inside, depth + 1):
                found.setdefault(entry.name.removeprefix(inside), []).append(entry)
        for name, parts in found.items():
            count = round(len(names) * len(parts) / len(chosen))
            yield replace(_added_up(parts), name=f"{pattern}/{name}", count=count)


def _added_up(parts: Sequence[Entry]) -> Entry:
    """Return one entry for datasets of one kind in several places."""
    return replace(
        parts[0],
        shapes=tuple(chain.from_iterable(part.shapes for part in parts)),
        places=tuple(chain.from_iterable(part.places for part in parts)),
        count=sum(part.count for part in parts),
        stored=sum(part.stored for part in parts),
        raw=sum(part.raw for part in parts),
        filters=tuple(dict.fromkeys(step for part in parts for step in part.filters)),
    )


def place_of(group: h5py.Group) -> tuple:
    """Return what tells a group apart from all others, by whatever name it was reached."""
    info = h5py.h5o.get_info(group.id)
    return info.fileno, info.addr


def _alike(group: h5py.Group, names: list[str]) -> str | None:
    """Return the pattern of names of groups that hold the same each, None where they are no such series."""
    counted = len({re.sub(r"\d+", "#", name) for name in names}) == 1 and re.search(r"\d", names[0])
    if len(names) < (_FEW if counted else _MANY):
        return None
    seen = set()
    for index in spread(len(names), _COMPARED):
        inside = _Walk(LOOKED_AT).entries(group[names[index]], depth=_DEEP)
        seen.add(tuple(sorted((entry.name, entry.type, len(entry.shape)) for entry in inside)))
        if len(seen) > 1 or () in seen:
            return None
    return os.path.commonprefix([re.split(r"\d", name)[0] if counted else name for name in names]) + "*"


def entry_of(dataset: h5py.Dataset, name: str) -> Entry:
    """Return the entry of one dataset."""
    shape, properties = dataset.shape, dataset.id.get_create_plist()
    size = dataset.id.get_type().get_size()
    return Entry(
        name,
        kind_of(dataset.dtype),
        "enumeration" if h5py.check_enum_dtype(dataset.dtype) else type_name(dataset.dtype),
        dataset.dtype,
        (shape,),
        ((dataset.file.filename, dataset.name),),
        1,
        dataset.chunks if not dataset.is_virtual else None,
        shape is not None and None in dataset.maxshape,
        tuple(_filter(*properties.get_filter(index)) for index in range(properties.get_nfilters())),
        0 if dataset.is_virtual else dataset.id.get_storage_size(),
        0 if shape is None else size * int(np.prod(shape, dtype=np.int64)),
        dataset.is_virtual,
        _packed(dataset),
        {value: key for key, value in (h5py.check_enum_dtype(dataset.dtype) or {}).items()},
        _problem(dataset, name),
    )


def _problem(dataset: h5py.Dataset, name: str) -> str | None:
    """Return what is missing of a virtual dataset: HDF5 would give fill values in its place."""
    if dataset.is_virtual:
        try:
            check_virtual(dataset, repr(name))
        except UserError as error:
            found = re.search(r"found:\s*(.*)", error.message)
            return found[1] if found else error.message.splitlines()[0]
    return None


def kind_of(dtype: np.dtype) -> str:
    """Return "number", "text", "record" or "other" for an element type."""
    if h5py.check_string_dtype(dtype) or dtype.kind in "SU":
        return "text"
    if dtype.names:
        return "record"
    return "number" if dtype.kind in "biuf" else "other"


def _filter(code: int, _flags: int, values: Sequence[int], name: bytes) -> Filter:
    known = _FILTERS.get(code) or name.decode(errors="replace").split(";")[0] or f"filter {code}"
    level = values[0] if code in (1, 32015) and len(values) == 1 else None
    return Filter(code, known, level, is_available(code))


def _packed(dataset: h5py.Dataset) -> dict[str, float]:
    found = {}
    for name in ("scale_factor", "add_offset", "_FillValue", "missing_value"):
        try:
            value = np.asarray(dataset.attrs[name]).reshape(-1)
        except (KeyError, OSError, TypeError):
            continue
        if value.size == 1 and value.dtype.kind in "biuf":
            found[name] = float(value[0])
    return found
