"""Finding a dataset in an HDF5 file and judging whether it can be trained on; says what is there when it cannot."""

from __future__ import annotations

from collections.abc import Iterator

import h5py
import numpy as np

from hpctrain.data.virtual import check_virtual
from hpctrain.errors import UserError, nearest

_LISTED = 40  # names in a message


def find_dataset(file: h5py.File, path: str, role: str) -> h5py.Dataset:
    """Return the dataset of numbers at a path; `role` is the job key that named it ("data.input").

    Raises `UserError` for a missing name (lists the datasets that are there), a group, text, records, references, a
    scalar, an empty dataspace, rows without a number in them, a compression filter that HDF5 does not have here, or a
    virtual dataset without its sources.
    """
    where = f"{role} = {path!r}"
    try:
        found = file[path] if path.strip("/") else file
    except (KeyError, ValueError):
        raise _missing(file, path, where) from None
    if not isinstance(found, h5py.Dataset):
        is_group = isinstance(found, h5py.Group)
        inside = _listing(found) if is_group else ""
        there = inside or _listing(file)
        raise UserError(
            f"{where} is a {'group' if is_group else 'type'}, not a dataset, in {file.filename}",
            found="a group without datasets" if is_group and not inside else None,
            allowed=there or "the file has no datasets",
            hint="name one of these datasets" if there else None,
        )
    _check_type(found, where)
    _check_shape(found, where)
    _check_filters(found, where)
    if found.is_virtual:
        check_virtual(found, where)
    return found


def _missing(file: h5py.File, path: str, where: str) -> UserError:
    there = [name for name, _ in _walk(file)]
    guess = nearest(path.strip("/"), there)
    return UserError(
        f"{where}: there is no such dataset in {file.filename}",
        allowed=_listing(file) or "the file has no datasets",
        hint=f"did you mean {guess!r}?" if guess else "name one of the datasets that are there",
    )


def _walk(group: h5py.Group) -> Iterator[tuple[str, h5py.Dataset]]:
    found: list[tuple[str, h5py.Dataset]] = []
    group.visititems(lambda name, item: found.append((name, item)) if isinstance(item, h5py.Dataset) else None)
    prefix = group.name.strip("/")
    yield from ((f"{prefix}/{name}".lstrip("/"), item) for name, item in found)


def _listing(group: h5py.Group) -> str:
    lines = [f"{name} {item.shape} {type_name(item.dtype)}" for name, item in _walk(group)]
    if len(lines) > _LISTED:
        lines[_LISTED:] = [f"... and {len(lines) - _LISTED} more"]
    return "\n           ".join(lines)


def type_name(dtype: np.dtype) -> str:
    """Return a word for an HDF5 element type: "float32", "text", "record (a, b)", ..."""
    if h5py.check_string_dtype(dtype) or dtype.kind in "SU":
        return "text"
    if h5py.check_ref_dtype(dtype):
        return "references"
    if h5py.check_vlen_dtype(dtype) is not None:
        return "lists of varying length"
    if dtype.names:
        return f"records ({', '.join(dtype.names)})"
    return str(dtype.base.newbyteorder("=")) if dtype.kind in "biufc" else f"opaque data ({dtype})"


def _check_type(dataset: h5py.Dataset, where: str) -> None:
    if dataset.dtype.kind not in "biuf":
        raise UserError(
            f"{where} does not hold numbers in {dataset.file.filename}",
            found=f"{dataset.shape} {type_name(dataset.dtype)}",
            allowed="integers, floating point numbers, or booleans",
            hint="turn it into numbers first: text categories, for example, into codes 0, 1, 2, ...",
        )


def _check_shape(dataset: h5py.Dataset, where: str) -> None:
    found = None
    if dataset.shape is None:
        found = "an empty dataspace"
    elif dataset.shape == ():
        found = "a single number"
    elif 0 in dataset.shape[1:]:
        found = f"shape {dataset.shape}: rows without a number in them"
    if found:
        raise UserError(
            f"{where} has no rows of numbers in {dataset.file.filename}",
            found=found,
            allowed="shape (rows, ...): the first dimension counts the examples",
        )


def _check_filters(dataset: h5py.Dataset, where: str) -> None:
    properties = dataset.id.get_create_plist()
    for code, _, _, name in (properties.get_filter(i) for i in range(properties.get_nfilters())):
        if not h5py.h5z.filter_avail(code):
            raise UserError(
                f"{where} is compressed by a filter that is not installed here, in {dataset.file.filename}",
                found=f"HDF5 filter {code} ({name.decode(errors='replace') or 'no name'})",
                hint="install its HDF5 plugin (pip install hdf5plugin has many, and set HDF5_PLUGIN_PATH), "
                "or write the file with gzip",
            )
