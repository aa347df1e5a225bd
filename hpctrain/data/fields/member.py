"""`Member`: one dataset of a field as it stands in a file, and how its stored values become numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import h5py
import numpy as np

from hpctrain.data.datasets import Found, check_type, is_text, type_name
from hpctrain.data.fields.categories import codes, unknown
from hpctrain.data.fields.expression import Axis, Expression, cut_shape, settle, without_rows
from hpctrain.data.fields.scaling import NONE, scaling_of
from hpctrain.data.format import MISSING_LABEL
from hpctrain.errors import UserError

_IN_FLOAT32 = frozenset(np.dtype(name) for name in ("f4", "f2", "i1", "u1", "i2", "u2", "?"))
_CUT_AFTER = 4096  # bytes of an example up to which all of it is read, and cut in memory: many short pieces are slow


@dataclass(frozen=True)
class Want:
    """How a member's values are wanted.

    labels      as class labels (int64), not as numbers
    categories  of text, in the order of their numbers
    """

    labels: bool = False
    categories: list[str] | None = None


@dataclass(frozen=True)
class Form:
    """What a member is like; all files must agree on it, but for `kind`.

    name   as messages and `Hdf5Source.input_parts` have it: the path, and the selection that the job makes
    path, axes, names  what is taken of which dataset: a slice or index for each axis of an example, fields of records
    shape  of what is taken of one row, or of one example where a dataset is one
    kind   "class" (whole numbers and text) or "real"
    text   whether strings are stored
    """

    name: str
    path: str
    axes: tuple[Axis, ...]
    names: tuple[str, ...]
    shape: tuple[int, ...]
    kind: str = field(compare=False)
    text: bool = False

    def __str__(self) -> str:
        return f"{self.name!r} with examples of shape {self.shape} ({'text' if self.text else self.kind})"


class Member:
    """A dataset of numbers, text or records in an open file, and what a job takes of it.

    has_rows  whether the first axis counts rows; else the dataset is (a part of) one example
    """

    def __init__(self, found: Found, has_rows: bool) -> None:
        self.dataset, self.path, self.where = found.dataset, found.path, found.where
        dataset, expression, where = found.dataset, found.expression, found.where
        self._has_rows = has_rows
        stored = dataset.shape[1:] if has_rows else dataset.shape
        self._names = expression.names
        self.stored_type = np.dtype(_record_type(dataset, expression, where) if self._names else dataset.dtype)
        check_type(dataset, self.stored_type, where)
        axes = without_rows(expression, where) if has_rows else expression.axes
        self.axes: tuple[Axis, ...] = settle(axes, stored, where)
        shape = cut_shape(self.axes)
        self._is_cut = shape != stored
        text = is_text(self.stored_type)
        self.scaling = NONE if text or self._names else scaling_of(dataset)
        if self._names:
            self._widths = [math.prod(dataset.dtype[name].shape) for name in self._names]
            shape = (*shape, sum(self._widths))
        real = self.stored_type.kind == "f" or self.scaling.makes_real
        name = self.path + expression.selection
        self.form = Form(name, self.path, self.axes, self._names, shape, "real" if real else "class", text)
        self.row_bytes = dataset.dtype.itemsize * math.prod(stored)

    @property
    def columns(self) -> Iterator[tuple[str, int]]:
        """The names of what is taken, each with its size along the last axis."""
        if self._names:
            yield from ((f"{self.path}[{name}]", width) for name, width in zip(self._names, self._widths, strict=True))
        else:
            yield self.form.name, self.form.shape[-1] if self.form.shape else 1

    @property
    def is_in_float32(self) -> bool:
        """Whether float32 holds every number that can stand here, to the bit."""
        small = self.stored_type.newbyteorder("=") in _IN_FLOAT32
        return small and not self.form.text and not self.scaling.is_needed

    @property
    def unwritten(self) -> str | None:
        """Say what of the dataset was never written, where that is so: it reads as the fill value."""
        dataset, chunks = self.dataset, self.dataset.chunks
        if dataset.is_virtual or dataset.external or not dataset.size:
            return None
        if chunks is None:
            if dataset.id.get_space_status() != h5py.h5d.SPACE_STATUS_NOT_ALLOCATED:
                return None
            found = "was never written"
        else:
            there = dataset.id.get_num_chunks()
            all_of_it = math.prod(-(-size // chunk) for size, chunk in zip(dataset.shape, chunks, strict=True))
            if there >= all_of_it:
                return None
            found = f"{all_of_it - there:,} of {all_of_it:,} chunks were never written"
        fill = np.asarray(dataset.fillvalue).tolist()  # as a plain number or text
        return f"{dataset.name!r} in {dataset.file.filename}: {found}, and read as {fill!r}"

    def is_plain(self, dtype: np.dtype | type) -> bool:
        """Whether the file holds just what is wanted, so that HDF5 can read into the array itself."""
        stored = self.dataset.dtype
        changed = self._is_cut or self._names or self.scaling.is_needed or h5py.check_enum_dtype(stored)
        return not changed and stored == dtype

    def read_direct(self, lo: int, hi: int, out: np.ndarray) -> None:
        """Fill a C-contiguous array with the rows lo..hi of a plain member, all of the dataset where it has no rows."""
        with self._readable(lo, hi):
            if not self._has_rows:
                self.dataset.read_direct(out.reshape(self.dataset.shape))
            elif hi > lo:
                self.dataset.read_direct(out.reshape(hi - lo, *self.dataset.shape[1:]), np.s_[lo:hi])

    def raw(self, lo: int, hi: int) -> np.ndarray:
        """Return the rows lo..hi as they are stored, cut: (hi - lo, *shape), or (1, *shape) where there are no rows."""
        with self._readable(lo, hi):
            first = (slice(lo, hi),) if self._has_rows else ()
            if self._names:
                dataset = self.dataset
                few = 2 * sum(dataset.dtype[name].itemsize for name in self._names) < dataset.dtype.itemsize
                records = dataset.fields(list(self._names))[first] if few else dataset[first]
                rows = records.shape if self._has_rows else (1, *records.shape)
                columns = [records[name].reshape(*rows, -1).astype(self.stored_type) for name in self._names]
                return np.concatenate(columns, axis=-1)
            if not self._is_cut:
                values = self.dataset[first]
            elif self.row_bytes <= _CUT_AFTER:
                values = self.dataset[first][(slice(None),) * len(first) + self.axes]
            else:
                values = self.dataset[first + self.axes]
            values = np.asarray(values)
            return values if self._has_rows else values[None]

    def values(self, lo: int, hi: int, want: Want) -> np.ndarray:
        """Return the rows lo..hi as numbers; shapes as of `raw`.

        Text becomes the number of its category, a `UserError` where it has none; what is missing becomes NaN, or
        `MISSING_LABEL` where labels are wanted.
        """
        stored = self.raw(lo, hi)
        if self.form.text:
            known = want.categories or []
            numbers, stranger = codes(stored, known)
            if stranger is not None:
                row = f"row {lo + stranger[0]} of " if self._has_rows else ""
                place = f"{row}{self.dataset.name!r} in {self.dataset.file.filename}"
                raise unknown(stranger[1], known, place)
            return numbers
        scaling = self.scaling
        if not scaling.is_needed:
            return stored
        if not want.labels:
            return scaling.apply(stored)
        labels = stored.astype(np.int64)
        labels[scaling.missing(stored)] = MISSING_LABEL
        return labels

    def _readable(self, lo: int, hi: int) -> _Reading:
        return _Reading(self.dataset, f", rows {lo} to {hi - 1}," if self._has_rows else "")


class _Reading:
    """Turns HDF5's failure to read into a `UserError` that names the dataset."""

    def __init__(self, dataset: h5py.Dataset, rows: str) -> None:
        self._dataset, self._rows = dataset, rows

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            raise UserError(
                f"HDF5 cannot read {self._dataset.name!r}{self._rows} in {self._dataset.file.filename}",
                found=str(error).splitlines()[0],
                hint="the file may be damaged; h5dump shows how far it can be read",
            ) from None


def _record_type(dataset: h5py.Dataset, expression: Expression, where: str) -> np.dtype:
    """Return the type that holds the named fields of a dataset of records."""
    fields = dataset.dtype.names
    if not fields:
        raise UserError(
            f"{where}: fields are named, but the dataset holds no records, in {dataset.file.filename}",
            found=f"{dataset.name!r} {dataset.shape} {type_name(dataset.dtype)}",
            hint='columns are cut by number, as in "name[:, 0:3]"',
        )
    for name in expression.names:
        if name not in fields:
            raise UserError(
                f"{where}: the records have no field {name!r} in {dataset.file.filename}",
                allowed=", ".join(fields),
            )
        kind = dataset.dtype[name].base
        text = is_text(kind)
        if kind.kind not in "biuf" and not (text and len(expression.names) == 1):
            raise UserError(
                f"{where}: the field {name!r} does not hold numbers in {dataset.file.filename}",
                found=type_name(kind),
                allowed="fields of integers, floating point numbers or booleans; or one field of text alone",
                hint=f'take the text apart: ["{dataset.name.strip("/")}[{name}]", ...]' if text else None,
            )
    if len(expression.names) == 1:
        return kind
    return np.result_type(*(dataset.dtype[name].base for name in expression.names))
