"""Moving what stands in a dataset or an attribute from file to file bit for bit, whatever its type.

Types of a fixed size travel as opaque bytes: no number is converted on the way, not even one that numpy has no type for
or a NaN with a payload.  Texts and lists of varying length travel as Python objects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import h5py
import numpy as np

from hpctrain.errors import UserError


@contextlib.contextmanager
def reading(path: str, name: str, lo: int = 0, hi: int = 0) -> Iterator[None]:
    """Turn HDF5's failure to read a dataset, or its rows lo..hi, into a `UserError` that names it and its file."""
    try:
        yield
    except (OSError, RuntimeError, KeyError) as error:
        text = str(error)
        if "write failed" in text:  # of what is copied in one go: the target's disk
            raise
        rows = f", rows {lo} to {hi - 1}," if hi else ""
        raise UserError(
            f"HDF5 cannot read {name!r}{rows} in {path}",
            found=text.splitlines()[0].strip("'\""),
            hint="the file may be damaged; h5dump shows how far it can be read",
        ) from None


def read_rows(dataset: h5py.Dataset, lo: int, hi: int) -> np.ndarray:
    """Return the rows lo..hi of a dataset: an array of bytes or objects, for `write_rows`."""
    return _read(dataset, (hi - lo, *dataset.shape[1:]), (lo, *[0] * (dataset.ndim - 1)))


def read_whole(dataset: h5py.Dataset) -> np.ndarray:
    """Return all of a dataset (not one with an empty dataspace); see `read_rows`."""
    return _read(dataset, dataset.shape, (0,) * dataset.ndim)


def write_rows(dataset: h5py.Dataset, lo: int, rows: np.ndarray) -> None:
    """Write what `read_rows` returned from a dataset of the same type to the rows from `lo` on."""
    if rows.size == 0:
        return
    memory, there = _spaces(dataset, rows.shape, (lo, *[0] * (dataset.ndim - 1)))
    dataset.id.write(memory, there, rows, **_as_it_is(dataset.id, rows))


def same(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two arrays that were read hold the same, bit for bit."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return first.tobytes() == second.tobytes() if first.dtype.kind == "V" else repr(first) == repr(second)


def copy_attributes(source: h5py.HLObject, target: h5py.HLObject) -> list[str]:
    """Copy all attributes of an object to one of another file; return the names of those that hold references."""
    skipped = []
    for name in source.attrs:
        old = source.attrs.get_id(name)
        if has_references(old.dtype):
            skipped.append(name)
            continue
        new = h5py.h5a.create(target.id, name.encode(), old.get_type().copy(), old.get_space().copy())
        if old.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            continue
        values = _empty(old, old.shape)
        old.read(values, **_as_it_is(old, values))
        new.write(values, **_as_it_is(new, values))
    return skipped


def has_references(dtype: np.dtype) -> bool:
    """Return whether a type holds references, which mean nothing in another file."""
    if h5py.check_ref_dtype(dtype):
        return True
    if isinstance(inner := h5py.check_vlen_dtype(dtype), np.dtype):
        return has_references(inner)
    if dtype.subdtype is not None:
        return has_references(dtype.subdtype[0])
    return any(has_references(dtype[name]) for name in dtype.names or ())


def _read(dataset: h5py.Dataset, shape: tuple[int, ...], at: tuple[int, ...]) -> np.ndarray:
    rows = _empty(dataset.id, shape)
    if rows.size:
        memory, there = _spaces(dataset, shape, at)
        dataset.id.read(memory, there, rows, **_as_it_is(dataset.id, rows))
    return rows


def _spaces(dataset: h5py.Dataset, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple:
    there = dataset.id.get_space()
    if shape:
        there.select_hyperslab(at, shape)
    return h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR), there


def _empty(stored: h5py.h5d.DatasetID | h5py.h5a.AttrID, shape: tuple[int, ...]) -> np.ndarray:
    # h5py's own word: the dtypes of texts, lists and records with these in them hold Python objects.
    if stored.dtype.hasobject:
        return np.empty(shape, stored.dtype)
    return np.empty(shape, f"V{stored.get_type().get_size()}")


def _as_it_is(stored: h5py.h5d.DatasetID | h5py.h5a.AttrID, values: np.ndarray) -> dict[str, h5py.h5t.TypeID]:
    """Return the argument that makes HDF5 take opaque bytes for the type that is in the file."""
    return {} if values.dtype.hasobject else {"mtype": stored.get_type()}
