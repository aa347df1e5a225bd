"""`Hdf5Source`: rows of inputs and targets in HDF5 files, read in bounded blocks and checked.

Metadata (rows, shapes, types) are read and checked when the source is made.  Who reads which rows is not decided here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import h5py
import numpy as np

from hpctrain.data.datasets import find_dataset, type_name
from hpctrain.data.files import open_file
from hpctrain.data.format import Arrays, RowFormat, channels_last
from hpctrain.data.values import (
    bad_label,
    bad_value,
    bad_weight,
    counts,
    first_bad,
    first_bad_token,
    token_error,
    weight_error,
)
from hpctrain.errors import UserError

_CACHE_BYTES = (1 << 20, 96 << 20)  # least and most for one dataset's cache of decoded chunks


@dataclass(frozen=True)
class _File:
    path: str
    first: int  # its first row among all rows
    rows: int
    chunk_rows: int  # 1 where the inputs are contiguous
    row_bytes: int  # in the file's own types, uncompressed
    converted_bytes: int  # of a row of the dataset with most of them that is read into memory of its own and converted
    is_chunked: bool

    @property
    def stop(self) -> int:
        return self.first + self.rows


class Hdf5Source:
    """The rows of several HDF5 files, one after another in the order given.

    files         paths (see `files.expand`)
    input         path of the inputs' dataset: (rows, ...) numbers, read as float32; (rows,) counts as (rows, 1)
    target        path of the targets' dataset: integers or booleans are class labels, (rows,) or (rows, 1), or one for
                  each position, (rows, ...); floating point numbers are real targets, (rows,) or (rows, ...)
    target_kind   "class" or "real" where the loss wants it so; "real" also takes integers
    weight        path of the weights' dataset: (rows,), or one for each position; finite numbers, 0 or more
    mask          path of the mask's dataset, of 0 and 1: (rows,) or one for each position.  Positions are those of the
                  labels; for real targets, their first axes or all of them
    ignore_label  the label of positions (or rows) that do not count
    channels_first  the inputs are stored (rows, channels, ...) and turned to (rows, ..., channels) as they are read; so
                  are real targets with channels at each place of the inputs, and weights of the targets' shape
    tokens        the inputs have to be whole numbers below this; None: any finite numbers

    Weight, mask and `ignore_label` are multiplied.  Raises `UserError` for all that a user can have got wrong in the
    files; for values there is `check_values`.  One file at a time is kept open; `close` it when done.
    """

    def __init__(
        self,
        files: list[str],
        input: str,
        target: str,
        target_kind: str | None = None,
        *,
        weight: str | None = None,
        mask: str | None = None,
        ignore_label: int | None = None,
        channels_first: bool = False,
        tokens: int | None = None,
    ) -> None:
        self.input, self.target = input, target
        self._tokens = tokens
        self._weights = {key: name for key, name in (("weight", weight), ("mask", mask)) if name is not None}
        self._ignore_label = ignore_label
        self._channels_first = channels_first
        self._turned: set[str] = set()  # names of the datasets that are stored channels first
        self._open: tuple[str, h5py.File] | None = None
        self._files: list[_File] = []
        for path in files:
            with open_file(path) as file:
                self._add(file, path, target_kind)
        if len(self) == 0:
            raise UserError(
                "the data has no rows", found=f"data.input = {input!r} has 0 rows in {', '.join(map(repr, files))}"
            )

    def _add(self, file: h5py.File, path: str, target_kind: str | None) -> None:
        inputs = find_dataset(file, self.input, "data.input")
        targets = find_dataset(file, self.target, "data.target")
        weights = {key: find_dataset(file, name, f"data.{key}") for key, name in self._weights.items()}
        if len(inputs) != len(targets):
            less = "targets" if len(targets) < len(inputs) else "inputs"
            raise UserError(
                f"there are fewer {less} than {'inputs' if less == 'targets' else 'targets'} in {path}",
                found=f"{self.input!r} has {len(inputs)} rows, {self.target!r} has {len(targets)}",
                allowed="as many targets as inputs",
            )
        if self._channels_first:
            self._find_turned(inputs, targets, weights, path, target_kind)
        kind, target_shape = self._target_form(targets, path, target_kind)
        weight_shape = self._weight_form(kind, target_shape, weights, len(inputs), path)
        form = RowFormat(self._shape(self.input, inputs) or (1,), kind, target_shape, weight_shape)
        if not self._files:
            self.format = form
            self._fingerprint = {
                "input_shape": list(inputs.shape[1:]),
                "input_dtype": type_name(inputs.dtype),
                "target_shape": list(targets.shape[1:]),
                "target_dtype": type_name(targets.dtype),
                **({"channels_first": True} if self._channels_first else {}),
            }
        elif form != self.format:
            raise UserError(
                "the data files do not fit together",
                found=f"{self.format} in {self._files[0].path}, but {form} in {path}",
                allowed="the same shape and kind in all files",
            )
        datasets = (inputs, targets, *weights.values())
        row_bytes = sum(dataset.dtype.itemsize * math.prod(dataset.shape[1:]) for dataset in datasets)
        chunk_rows = max(inputs.chunks[0] if inputs.chunks else 1, 1)
        wanted = (np.float32, np.int64 if kind == "class" else np.float32, *[np.float32] * len(weights))
        names = (self.input, self.target, *self._weights.values())
        converted = max(
            dataset.dtype.itemsize * math.prod(dataset.shape[1:])
            if dataset.dtype != dtype or name in self._turned
            else 0
            for name, dataset, dtype in zip(names, datasets, wanted, strict=True)
        )
        is_chunked = any(dataset.chunks for dataset in datasets)
        self._files.append(_File(path, len(self), len(inputs), chunk_rows, row_bytes, converted, is_chunked))

    def _find_turned(
        self,
        inputs: h5py.Dataset,
        targets: h5py.Dataset,
        weights: dict[str, h5py.Dataset],
        path: str,
        target_kind: str | None,
    ) -> None:
        """Note which datasets of a file have channels in front; inputs without any are a `UserError`."""
        shape, target_shape = inputs.shape[1:], targets.shape[1:]
        if len(shape) < 2:
            raise UserError(
                "data.channels_first is true, but the inputs have no axis of channels and others behind it",
                found=f"{self.input!r} has shape {inputs.shape} in {path}",
                allowed="(rows, channels, length), (rows, channels, height, width), ...",
                hint="leave data.channels_first out: an example of one axis has no order of axes",
            )
        self._turned.add(self.input)
        if _kind_of(targets, target_kind) == "real" and len(target_shape) > 1 and target_shape[1:] == shape[1:]:
            self._turned.add(self.target)
            self._turned |= {self._weights[key] for key, data in weights.items() if data.shape[1:] == target_shape}

    def _shape(self, name: str, dataset: h5py.Dataset) -> tuple[int, ...]:
        """Return the shape of one example in memory."""
        shape = dataset.shape[1:]
        return channels_last(shape) if name in self._turned else shape

    def _target_form(self, targets: h5py.Dataset, path: str, wanted: str | None) -> tuple[str, tuple[int, ...]]:
        kind = _kind_of(targets, wanted)
        shape = self._shape(self.target, targets)
        if kind == "class" and targets.dtype.kind == "f":
            raise UserError(
                "class labels must be integers",
                found=f"{self.target!r} has shape {targets.shape} and type {type_name(targets.dtype)} in {path}",
                hint="store the labels as integers, or choose a loss for real targets (mse, mae, huber)",
            )
        if kind == "real":
            return kind, shape or (1,)
        return kind, () if shape == (1,) else shape

    def _weight_form(
        self, kind: str, target_shape: tuple[int, ...], weights: dict[str, h5py.Dataset], rows: int, path: str
    ) -> tuple[int, ...] | None:
        """Return `RowFormat.weight_shape` for the datasets of weights that there are."""
        if self._ignore_label is not None and kind == "real":
            raise UserError(
                "data.ignore_label is for class labels, but the targets are real numbers",
                found=f"data.ignore_label = {self._ignore_label}",
                hint="mark what does not count with data.mask or data.weight",
            )
        whole = target_shape if kind == "class" else None
        found: tuple[int, ...] | None = None if self._ignore_label is None else target_shape
        for key, dataset in weights.items():
            shape = () if dataset.shape[1:] == (1,) else self._shape(self._weights[key], dataset)
            fits = shape == () or (shape == whole if whole is not None else shape == target_shape[: len(shape)])
            if len(dataset) != rows or not fits or (found and shape and shape != found):
                allowed = f"({rows},)" + (f" or {(rows, *target_shape)}" if target_shape not in ((), (1,)) else "")
                raise UserError(
                    f"data.{key} does not fit the targets in {path}",
                    found=f"{dataset.name!r} has shape {dataset.shape}, {self.target!r} {(rows, *target_shape)}",
                    allowed=f"{allowed}: one number a row, or one a position",
                )
            found = shape or found or ()
        return found

    def __len__(self) -> int:
        return self._files[-1].stop if self._files else 0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example's input."""
        return self.format.input_shape

    @property
    def target_kind(self) -> str:
        """Return "class" (int64 labels) or "real" (float32 numbers)."""
        return self.format.target_kind

    @property
    def target_width(self) -> int:
        """Numbers in one example's target; 1 for a single class label."""
        return self.format.target_width

    @property
    def files(self) -> list[str]:
        """The paths, in the order of the rows."""
        return [file.path for file in self._files]

    def fingerprint(self) -> dict[str, object]:
        """Return what must be the same when a run is resumed: rows, and shapes and types as in the files."""
        return {"rows": len(self), **self._fingerprint, **self._weights}

    def locate(self, row: int) -> tuple[str, int]:
        """Return a row's file and its number in that file."""
        for file in self._files:
            if file.first <= row < file.stop:
                return file.path, row - file.first
        raise IndexError(f"row {row} of {len(self)}")

    def blocks(self, lo: int, hi: int, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Cut the rows lo..hi into pieces of at most `max_bytes` (but at least one row), each within one file.

        Pieces end where chunks end, so that a compressed chunk is decoded once.
        """
        for file in self._files:
            at, stop = max(lo, file.first), min(hi, file.stop)
            most = max(1, max_bytes // max(file.row_bytes, self.format.row_bytes))
            while at < stop:
                end = min(at + most, stop)
                if end < stop and file.chunk_rows <= most:
                    end -= (end - file.first) % file.chunk_rows
                yield at, end
                at = end

    def reading_bytes(self, rows: int) -> int:
        """Return the memory that reading blocks of `rows` rows takes beside the arrays that are filled."""
        caches = [_cache_bytes(file) for file in self._files if file.is_chunked]
        return max(caches, default=0) + rows * max(file.converted_bytes for file in self._files)

    def read(self, lo: int, hi: int) -> Arrays:
        """Return inputs, targets and weights of the rows lo..hi, as `RowFormat.empty` describes them."""
        arrays = self.format.empty(hi - lo)
        self.read_into(lo, *arrays)
        return arrays

    def read_into(
        self, lo: int, inputs: np.ndarray | None, targets: np.ndarray, weight: np.ndarray | None = None
    ) -> None:
        """Fill C-contiguous arrays as `read` makes them with the rows from `lo` on; inputs and weight may be None.

        Raises `UserError` for a weight or a mask with a value that it cannot have.
        """
        if inputs is not None:
            self._fill(self.input, lo, inputs)
        self._fill(self.target, lo, targets)
        if weight is None or self.format.weight_words == 0:
            return
        weight[...] = 1
        for key, name in self._weights.items():
            factor = np.empty((len(weight), self._width(name)), np.float32)
            self._fill(name, lo, factor)
            row = bad_weight(factor, key == "mask")
            if row >= 0:
                raise weight_error(factor[row], key == "mask", self._place(name, lo + row))
            weight *= factor
        if self._ignore_label is not None:
            weight[targets.reshape(weight.shape) == self._ignore_label] = 0

    def _fill(self, name: str, lo: int, out: np.ndarray) -> None:
        """Fill `out` with a dataset's rows from `lo` on."""
        for file in self._files:
            at, stop = max(lo, file.first), min(lo + len(out), file.stop)
            if at < stop:
                dataset = self._file(file)[name]
                rows = out[at - lo : stop - lo]
                _read(dataset, at - file.first, stop - file.first, rows, file.path, name in self._turned)

    def _width(self, name: str) -> int:
        return math.prod(self._file(self._files[0])[name].shape[1:])

    def check_values(self, inputs: np.ndarray, targets: np.ndarray, weight: np.ndarray, first_row: int) -> None:
        """Raise `UserError` for NaN or infinity, a negative label that counts or no token; names the first such row.

        `first_row` is the number, among all rows, of the arrays' first.
        """
        found = first_bad(self.format, inputs, targets, weight)
        if found:
            row, where = found
            name, values = (self.input, inputs) if where == "input" else (self.target, targets)
            place = self._place(name, first_row + row)
            if values is targets and self.target_kind == "class":
                labels, its_weight = targets[row : row + 1].reshape(1, -1), weight[row : row + 1]
                label = int(labels[counts(self.format, labels, its_weight)].min())
                raise bad_label(self.stored_label(first_row + row, label), place)
            raise bad_value(values[row], place)
        if self._tokens is not None and (row := first_bad_token(inputs, self._tokens)) >= 0:
            raise token_error(inputs[row], self._tokens, self._place(self.input, first_row + row))

    def stored_label(self, row: int, label: int) -> int:
        """Return a label of a row as the file has it: read as int64, one above int64's largest becomes negative."""
        file = next(file for file in self._files if file.first <= row < file.stop)
        return label % 2**64 if self._file(file)[self.target].dtype.kind == "u" else label

    def _place(self, name: str, row: int) -> str:
        path, row_in_file = self.locate(row)
        place = f"row {row_in_file} of {name!r} in {path}"
        return place + (f" (row {row} over all files)" if len(self._files) > 1 else "")

    def _file(self, file: _File) -> h5py.File:
        if self._open is None or self._open[0] != file.path:
            self.close()
            self._open = (file.path, open_file(file.path, _cache_bytes(file)))
        return self._open[1]

    def close(self) -> None:
        """Close the file that is open; reading opens it again."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def __enter__(self) -> Hdf5Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _kind_of(targets: h5py.Dataset, wanted: str | None) -> str:
    """Return the kind of targets: as the loss wants them, else by their type."""
    return wanted or ("real" if targets.dtype.kind == "f" else "class")


def _cache_bytes(file: _File) -> int:
    """Return the size of HDF5's cache of decoded chunks: one row of chunks."""
    least, most = _CACHE_BYTES
    return min(max(least, file.chunk_rows * file.row_bytes), most)


def _read(dataset: h5py.Dataset, lo: int, hi: int, out: np.ndarray, path: str, turned: bool) -> None:
    """Fill `out` with rows; where they are `turned`, stored channels first, its last axis is the dataset's first."""
    shape = dataset.shape[1:]
    out = out.reshape(hi - lo, *(channels_last(shape) if turned else shape))
    if turned:
        out = np.moveaxis(out, -1, 1)
    try:
        if dataset.dtype == out.dtype and not turned:
            dataset.read_direct(out, np.s_[lo:hi])
        else:
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows becomes infinite, and is found then
                out[...] = dataset[lo:hi]
    except OSError as error:
        raise UserError(
            f"HDF5 cannot read {dataset.name!r}, rows {lo} to {hi - 1}, in {path}",
            found=str(error).splitlines()[0],
            hint="the file may be damaged; h5dump shows how far it can be read",
        ) from None
