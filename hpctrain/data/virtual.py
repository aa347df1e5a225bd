"""Virtual datasets, whose rows stand in other files: refused where HDF5 would quietly read fill values instead."""

from __future__ import annotations

import math
import os

import h5py

from hpctrain.data.files import open_file
from hpctrain.errors import UserError

_PREFIXES = os.environ.get("HDF5_VDS_PREFIX", "").split(":")  # HDF5, too, looks once, when it is loaded


def check_virtual(dataset: h5py.Dataset, where: str, seen: frozenset[tuple[str, str]] = frozenset()) -> None:
    """Raise a `UserError` where a virtual dataset has a source that is missing, or rows that no source fills.

    Sources may be virtual themselves.  `seen` holds the virtual datasets that led here.
    """
    path = dataset.file.filename
    seen |= {(os.path.realpath(path), dataset.name)}
    _check_cover(dataset, where)
    wanted: dict[str, set[str]] = {}
    for source in dataset.virtual_sources():
        # HDF5 puts numbers for %b as long as there are files, and makes the dataset so long: none can be missing.
        if not _has_number(source.file_name) and not _has_number(source.dset_name):
            names = wanted.setdefault(source.file_name.replace("%%", "%"), set())
            names.add(source.dset_name.replace("%%", "%"))
    for file_name, names in wanted.items():
        if file_name == ".":
            _check_sources(dataset.file, names, where, path, seen)
            continue
        found = next((place for place in _places(dataset, file_name) if os.path.exists(place)), None)
        if found is None:
            raise UserError(
                f"{where} is a virtual dataset in {path}, and a file that it takes its rows from is missing",
                found=f"{file_name!r} is not there (looked for {_places(dataset, file_name)[0]})",
                hint="put its source files where it looks for them, or copy its rows into a dataset of their own",
            )
        with open_file(found) as file:
            _check_sources(file, names, where, path, seen)


def _check_sources(file: h5py.File, names: set[str], where: str, path: str, seen: frozenset[tuple[str, str]]) -> None:
    for name in sorted(names):
        source = file.get(name)
        if not isinstance(source, h5py.Dataset):
            raise UserError(
                f"{where} is a virtual dataset in {path}, and a dataset that it takes its rows from is missing",
                found=f"{name!r} is not in {file.filename}",
            )
        if source.is_virtual and (os.path.realpath(source.file.filename), source.name) not in seen:
            check_virtual(source, where, seen)


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


def _places(dataset: h5py.Dataset, name: str) -> list[str]:
    """Return the paths at which HDF5 looks for a source file; the first is the one that its name means."""
    path = dataset.file.filename
    folder = os.path.dirname(os.path.abspath(path))
    prefixes = [prefix.replace("${ORIGIN}", folder) for prefix in _PREFIXES if prefix]
    last = os.path.basename(name) if os.path.isabs(name) else name
    places = [os.path.join(prefix, last) for prefix in (*prefixes, folder)]
    places += [os.path.abspath(last), os.path.join(os.path.dirname(os.path.realpath(path)), last)]
    return [name, *places] if os.path.isabs(name) else places
