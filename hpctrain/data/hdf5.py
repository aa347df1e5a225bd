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
from hpctrain.errors import UserError
from hpctrain.kernels.rows import first_nonfinite_row

_CACHE_BYTES = (1 << 20, 96 << 20)  # least and most for one dataset's cache of decoded chunks


@dataclass(frozen=True)
class RowFormat:
    """What a row looks like in memory: float32 inputs of `input_shape`, and a target.

    target_kind "class": one int64 label; "real": `target_width` float32 numbers.
    """

    input_shape: tuple[int, ...]
    target_kind: str
    target_width: int

    @property
    def input_size(self) -> int:
        """Numbers in one row of the inputs (float32: as many 32-bit words)."""
        return math.prod(self.input_shape)

    @property
    def target_words(self) -> int:
        """32-bit words in one row of the targets."""
        return 2 if self.target_kind == "class" else self.target_width

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, target included."""
        return 4 * (self.input_size + self.target_words)

    def empty(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return uninitialised arrays for inputs (rows, *input_shape) and targets (rows,) or (rows, target_width)."""
        inputs = np.empty((rows, *self.input_shape), np.float32)
        if self.target_kind == "class":
            return inputs, np.empty(rows, np.int64)
        return inputs, np.empty((rows, self.target_width), np.float32)

    def words(self, inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return views of both arrays as uint32 (rows, words)."""
        rows = len(inputs)
        flat = inputs.reshape(rows, self.input_size).view(np.uint32)
        return flat, targets.view(np.uint32).reshape(rows, self.target_words)


@dataclass(frozen=True)
class _File:
    path: str
    first: int  # its first row among all rows
    rows: int
    chunk_rows: int  # 1 where the inputs are contiguous
    row_bytes: int  # in the file's own types, uncompressed

    @property
    def stop(self) -> int:
        return self.first + self.rows


class Hdf5Source:
    """The rows of several HDF5 files, one after another in the order given.

    files        paths (see `files.expand`)
    input        path of the inputs' dataset: (rows, ...) numbers, read as float32; (rows,) counts as (rows, 1)
    target       path of the targets' dataset: integers or booleans are class labels, (rows,) or (rows, 1); floating
                 point numbers are real targets, (rows,) or (rows, width)
    target_kind  "class" or "real" where the loss wants it so; "real" also takes integers

    Raises `UserError` for all that a user can have got wrong in the files; for values there is `check_values`.  One
    file at a time is kept open; `close` it when done.
    """

    def __init__(self, files: list[str], input: str, target: str, target_kind: str | None = None) -> None:
        self.input, self.target = input, target
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
        if len(inputs) != len(targets):
            less = "targets" if len(targets) < len(inputs) else "inputs"
            raise UserError(
                f"there are fewer {less} than {'inputs' if less == 'targets' else 'targets'} in {path}",
                found=f"{self.input!r} has {len(inputs)} rows, {self.target!r} has {len(targets)}",
                allowed="as many targets as inputs",
            )
        form = RowFormat(inputs.shape[1:] or (1,), *self._target_form(targets, path, target_kind))
        if not self._files:
            self.format = form
            self._fingerprint = {
                "input_shape": list(inputs.shape[1:]),
                "input_dtype": type_name(inputs.dtype),
                "target_shape": list(targets.shape[1:]),
                "target_dtype": type_name(targets.dtype),
            }
        elif form != self.format:
            raise UserError(
                "the data files do not fit together",
                found=f"{_describe(self.format)} in {self._files[0].path}, but {_describe(form)} in {path}",
                allowed="the same shape and kind in all files",
            )
        row_bytes = [dataset.dtype.itemsize * math.prod(dataset.shape[1:]) for dataset in (inputs, targets)]
        chunk_rows = max(inputs.chunks[0] if inputs.chunks else 1, 1)
        self._files.append(_File(path, len(self), len(inputs), chunk_rows, sum(row_bytes)))

    def _target_form(self, targets: h5py.Dataset, path: str, wanted: str | None) -> tuple[str, int]:
        kind = wanted or ("real" if targets.dtype.kind == "f" else "class")
        shape = f"{self.target!r} has shape {targets.shape} and type {type_name(targets.dtype)} in {path}"
        if kind == "class" and targets.dtype.kind == "f":
            raise UserError(
                "class labels must be integers",
                found=shape,
                hint="store the labels as integers, or choose a loss for real targets (mse, mae, huber)",
            )
        if targets.ndim > 2:
            raise UserError("targets must be one number or one row of numbers an example", found=shape)
        width = targets.shape[1] if targets.ndim == 2 else 1
        if kind == "class" and width > 1:
            raise UserError(
                "a class label must be one integer an example",
                found=shape,
                hint="if these are one-hot rows, store their argmax(axis=1); "
                "if they are real targets, store floating point numbers",
            )
        return kind, width

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
        """Numbers in one example's target; 1 for class labels."""
        return self.format.target_width

    @property
    def files(self) -> list[str]:
        """The paths, in the order of the rows."""
        return [file.path for file in self._files]

    def fingerprint(self) -> dict[str, object]:
        """Return what must be the same when a run is resumed: rows, and shapes and types as in the files."""
        return {"rows": len(self), **self._fingerprint}

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

    def read(self, lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows lo..hi: inputs (n, *input_shape) float32; targets (n,) int64 or (n, target_width) float32."""
        inputs, targets = self.format.empty(hi - lo)
        self.read_into(lo, inputs, targets)
        return inputs, targets

    def read_into(self, lo: int, inputs: np.ndarray | None, targets: np.ndarray | None) -> None:
        """Fill C-contiguous arrays as `read` makes them with the rows from `lo` on; either may be None."""
        for name, out in ((self.input, inputs), (self.target, targets)):
            if out is None:
                continue
            for file in self._files:
                at, stop = max(lo, file.first), min(lo + len(out), file.stop)
                if at < stop:
                    dataset = self._file(file)[name]
                    _read(dataset, at - file.first, stop - file.first, out[at - lo : stop - lo], file.path)

    def check_values(self, inputs: np.ndarray, targets: np.ndarray, first_row: int) -> None:
        """Raise `UserError` for NaN or infinity, or a negative label; names the first such row.

        `first_row` is the number, among all rows, of the arrays' first.
        """
        input_words, target_words = self.format.words(inputs, targets)
        found = [(first_nonfinite_row(input_words), self.input, inputs)]
        if self.target_kind == "real":
            found.append((first_nonfinite_row(target_words), self.target, targets))
        elif len(targets) and targets.min() < 0:
            found.append((int(np.argmax(targets < 0)), self.target, targets))
        bad = [item for item in found if item[0] >= 0]
        if bad:
            row, name, values = min(bad, key=lambda item: item[0])
            raise self._bad_value(name, values[row], first_row + row)

    def _bad_value(self, name: str, values: np.ndarray, row: int) -> UserError:
        path, row_in_file = self.locate(row)
        place = f"row {row_in_file} of {name!r} in {path}"
        if len(self._files) > 1:
            place += f" (row {row} over all files)"
        if values.dtype == np.int64:
            return UserError(
                f"a class label is negative: {place}",
                found=int(values),
                allowed="labels 0, 1, 2, ...",
                hint="number the classes from 0, and leave out rows without a label",
            )
        what = "NaN" if np.isnan(values).any() else "an infinite number (after the conversion to float32)"
        return UserError(
            f"{what} in the data: {place}",
            found=f"the first such row; {np.count_nonzero(~np.isfinite(values))} of its {values.size} values",
            allowed="finite numbers",
            hint="fill or remove missing values before training",
        )

    def _file(self, file: _File) -> h5py.File:
        if self._open is None or self._open[0] != file.path:
            self.close()
            least, most = _CACHE_BYTES
            self._open = (file.path, open_file(file.path, min(max(least, file.chunk_rows * file.row_bytes), most)))
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


def _describe(form: RowFormat) -> str:
    target = "class labels" if form.target_kind == "class" else f"{form.target_width} real target(s)"
    return f"inputs of shape {form.input_shape} and {target}"


def _read(dataset: h5py.Dataset, lo: int, hi: int, out: np.ndarray, path: str) -> None:
    out = out.reshape(hi - lo, *dataset.shape[1:])
    try:
        if dataset.dtype == out.dtype:
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
