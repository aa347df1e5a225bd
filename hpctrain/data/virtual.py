"""Datasets whose numbers stand in other files: which files those are; virtual ones, which take their rows from others.

A virtual dataset is refused where HDF5 would quietly read fill values instead of rows.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator

import h5py

from hpctrain.data.files import open_file
from hpctrain.errors import UserError

_PREFIXES = os.environ.get("HDF5_VDS_PREFIX", "").split(":")  # HDF5, too, looks once, when it is loaded


def files_behind(dataset: h5py.Dataset, path: str, where: str) -> tuple[str, ...]:
    """Return the files beside `path`, where it was found, in which a dataset's numbers stand, sorted.

    That is: another file that a link leads to, raw files of its own, the sources of a virtual dataset and those behind
    them.  Errors are those of `check_virtual`.
    """
    own = dataset.file.filename
    found = {own} | set(_raw_files(dataset))
    if dataset.is_virtual:
        found |= check_virtual(dataset, where)
    return tuple(sorted(found - {path}))


def check_virtual(dataset: h5py.Dataset, where: str, seen: frozenset[tuple[str, str]] = frozenset()) -> set[str]:
    """Return the files that a virtual dataset takes its rows from.

    Sources may be virtual themselves.  `seen` holds the virtual datasets that led here.  Raises a `UserError` where a
    source is missing, or for rows that no source fills.
    """
    path = dataset.file.filename
    seen |= {(os.path.realpath(path), dataset.name)}
    files: set[str] = set()
    _check_cover(dataset, where)
    wanted: dict[str, dict[str, list[object]]] = {}
    for source in dataset.virtual_sources():
        # HDF5 puts numbers for %b as long as there are files, and makes the dataset so long: none can be missing.
        if _has_number(source.file_name):
            files |= set(_numbered(dataset, source.file_name))
        elif not _has_number(source.dset_name):
            names = wanted.setdefault(source.file_name.replace("%%", "%"), {})
            names.setdefault(source.dset_name.replace("%%", "%"), []).append(source)
    for file_name, names in wanted.items():
        if file_name == ".":
            files |= _check_sources(dataset.file, names, where, path, seen)
            continue
        found = next((place for place in _places(dataset, file_name) if os.path.exists(place)), None)
        if found is None:
            raise UserError(
                f"{where} is a virtual dataset in {path}, and a file that it takes its rows from is missing",
                found=f"{file_name!r} is not there (looked for {_places(dataset, file_name)[0]})",
                hint="put its source files where it looks for them, or copy its rows into a dataset of their own",
            )
        files.add(found)
        with open_file(found) as file:
            files |= _check_sources(file, names, where, path, seen)
    return files


def _check_sources(
    file: h5py.File, names: dict[str, list[object]], where: str, path: str, seen: frozenset[tuple[str, str]]
) -> set[str]:
    """Look at the datasets that rows are taken from in a file; return the files behind those."""
    files: set[str] = set()
    for name in sorted(names):
        source = file.get(name)
        if not isinstance(source, h5py.Dataset):
            raise UserError(
                f"{where} is a virtual dataset in {path}, and a dataset that it takes its rows from is missing",
                found=f"{name!r} is not in {file.filename}",
            )
        if not all(_is_there(source, mapped) for mapped in names[name]):
            raise UserError(
                f"{where} is a virtual dataset in {path}, and a dataset that it takes its rows from is too short",
                found=f"{name!r} in {file.filename} has the shape {source.shape}",
                hint="make the virtual dataset again from what is there",
            )
        files |= {source.file.filename, *_raw_files(source)} - {file.filename}
        if source.is_virtual and (os.path.realpath(source.file.filename), source.name) not in seen:
            files |= check_virtual(source, where, seen)
    return files


def _is_there(source: h5py.Dataset, mapped: object) -> bool:
    """Return whether a source dataset holds all that a map (h5py's VDSmap) takes of it."""
    space = mapped.src_space
    if space.get_select_type() == h5py.h5s.SEL_ALL:
        return source.size >= mapped.vspace.get_select_npoints()
    try:
        _, last = space.get_select_bounds()
    except (RuntimeError, ValueError):
        return True  # without an end: as much as there is
    return len(last) == source.ndim and all(at < size for at, size in zip(last, source.shape, strict=True))


def _check_cover(dataset: h5py.Dataset, where: str) -> None:
    try:
        filled = sum(source.vspace.get_select_npoints() for source in dataset.virtual_sources())
    except RuntimeError:
        return  # a source without an end: the dataset is as long as what is there
    size = math.prod(dataset.shape)
    if filled < size:
        raise UserError(
            f"{where} is a virtual dataset with a part that no source fills, in {dataset.file.filename}",
            found=f"sources for {filled:,} of its {size:,} numbers",
            hint="map every part of it to a source, or make it shorter",
        )


def _has_number(name: str) -> bool:
    return "%b" in name.replace("%%", "")


def _numbered(dataset: h5py.Dataset, name: str) -> Iterator[str]:
    """Yield the files that a name with %b in it stands for: numbered from 0, as long as they are there."""
    for number in itertools.count():
        spelled = re.sub(r"%([%b])", lambda found, n=number: "%" if found[1] == "%" else str(n), name)
        path = next((place for place in _places(dataset, spelled) if os.path.exists(place)), None)
        if path is None:
            return
        yield path


def _raw_files(dataset: h5py.Dataset) -> Iterator[str]:
    """Yield the files without HDF5 in them in which a dataset's bytes stand, those that are there."""
    folder = os.path.dirname(os.path.abspath(dataset.file.filename))
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", folder)
    for name, _, _ in dataset.external or ():
        path = os.path.join(prefix, name)
        if os.path.exists(path):
            yield os.path.abspath(path)


def _places(dataset: h5py.Dataset, name: str) -> list[str]:
    """Return the paths at which HDF5 looks for a source file; the first is the one that its name means."""
    path = dataset.file.filename
    folder = os.path.dirname(os.path.abspath(path))
    prefixes = [prefix.replace("${ORIGIN}", folder) for prefix in _PREFIXES if prefix]
    last = os.path.basename(name) if os.path.isabs(name) else name
    places = [os.path.join(prefix, last) for prefix in (*prefixes, folder)]
    places += [os.path.abspath(last), os.path.join(os.path.dirname(os.path.realpath(path)), last)]
    return [name, *places] if os.path.isabs(name) else places
