"""`Access`: what a source tells of how its rows lie in the files, for those who do not read them front to back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import h5py
import numpy as np

from hpctrain.data.fields.examples import RowExamples
from hpctrain.data.fields.opened import Opened, Stamp
from hpctrain.data.values import first_bad

_CHUNK_BYTES = 256 << 10
_MOST_CHUNKS = 1 << 17  # a table of the chunks has a few numbers for each: never more than megabytes
_MOST_MAPPED_FILES = 256  # a system allows a process only so many maps
_CACHE_BYTES = 1 << 20


@dataclass(frozen=True)
class MappedRows:
    """Where the inputs of a file stand in it: rows `first` .. `first + rows` of the source, float32 as in memory."""

    path: str
    offset: int  # bytes
    first: int
    rows: int

    def open(self, width: int) -> np.ndarray:
        """Return the rows as the file has them, (rows, width) uint32 words that are read when they are looked at."""
        return np.memmap(self.path, np.uint32, "r", self.offset, (self.rows, width))


class Access:
    """What `Hdf5Source` has beside reading rows from front to back."""

    def rows_of_files(self) -> list[int]:
        """Return the number of examples of each file, in order."""
        return np.diff(self._examples.starts).tolist()

    def stored_rows(self) -> list[int]:
        """Return how many numbers a dataset with one for each row has in each file, in order.

        Of windows there are as many as rows; where an example is a file or a group, as many as examples.
        """
        return self._examples.stored_rows()

    def of_rows(self, file: int, values: np.ndarray, mixed: int) -> np.ndarray:
        """Return each example's value, given the values of all rows of a file; `mixed` where its rows have several."""
        return self._examples.of_rows(file, values, mixed)

    def stretches(self) -> np.ndarray:
        """Return the numbers of windows, int64, in each run of each file: of two runs none have a row in common."""
        return self._examples.stretches()

    @property
    def stamps(self) -> dict[str, Stamp]:
        """What each file was when the source was made, by its path."""
        return self._layout.stamps

    def pieces(self) -> np.ndarray:
        """Return the rows at which chunks begin, int64, and the number of rows behind them.

        Chunks are what is read in one go and in any order: they end where files end, are whole numbers of the file's
        own chunks, and have about 256 KB; more where a source would have more than 131,072 of them.
        """
        wanted = max(_CHUNK_BYTES // max(1, self.format.row_bytes), -(-len(self) // _MOST_CHUNKS), 1)
        starts = [0, len(self)] if not self._examples.has_rows else self._examples.starts
        bounds = [np.zeros(1, np.int64)]
        for file, (first, stop) in enumerate(zip(starts, starts[1:], strict=False)):
            rows = self._layout.cost_of(file).chunk_rows
            step = max(1, round(wanted / rows)) * rows
            bounds.append(np.minimum(np.arange(first + step, stop + step, step), stop))
        return np.concatenate(bounds)

    def mapped_rows(self) -> list[MappedRows] | None:
        """Return where the inputs stand in the files, where they stand there as they do in memory; else None.

        That is: rows of one dataset, contiguous, without a filter, float32 in this machine's order of bytes, and
        nothing to compute.
        """
        examples, field = self._examples, self._input
        is_plain = type(examples) is RowExamples and len(field.forms) == 1 and not field.turned
        if not is_plain or self._tokens is not None or self._missing != "error" or "inputs" in self.chains:
            return None
        if len(self.files) > _MOST_MAPPED_FILES:
            return None
        found = []
        for path, first, stop in zip(self.files, examples.starts, examples.starts[1:], strict=False):
            if first == stop:
                continue
            opened = Opened(path, _CACHE_BYTES, self._layout.stamps.get(path))
            try:
                (member,) = self._layout.members_of(field.find(opened.file, several=True))
                is_here = member.dataset.file.filename == opened.path  # and not where a link leads to
                offset = offset_of(member.dataset) if is_here and member.is_plain(np.float32) else None
            finally:
                opened.close()
            if offset is None:
                return None
            found.append(MappedRows(path, offset, first, stop - first))
        return found

    def check_targets(self, targets: np.ndarray, weight: np.ndarray, first_row: int) -> None:
        """Raise `UserError` as `check_values` does, for rows whose inputs are not looked at."""
        blank = replace(self.format, input_shape=(0,))
        found = first_bad(blank, blank.empty(len(targets))[0], targets, weight)
        if found:
            row = found[0]
            inputs = np.zeros((1, *self.format.input_shape), np.float32)
            self.check_values(inputs, targets[row : row + 1], weight[row : row + 1], first_row + row)
        self.check_range(targets, weight, first_row)


def offset_of(dataset: h5py.Dataset) -> int | None:
    """Return at which byte of its file a dataset's values begin, if they stand there as float32 in one piece."""
    if dataset.chunks or dataset.is_virtual or dataset.external or dataset.dtype != np.dtype("=f4"):
        return None
    offset = dataset.id.get_offset()  # None: compact, or never written
    return offset if offset is not None and offset % 4 == 0 else None
