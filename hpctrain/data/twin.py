"""`Twin`: a source's rows once more, with files of its own to open: for a thread that reads chunks in any order.

What is stored plainly is read past the HDF5 library (see `direct`), so that the step goes on meanwhile.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import numpy as np

from hpctrain.data.direct import DirectRows, rows_of
from hpctrain.data.fields.examples import RowExamples
from hpctrain.data.fields.field import Field
from hpctrain.data.fields.opened import Opened
from hpctrain.data.hdf5 import Hdf5Source

_MOST_FILES = 128  # open at a time
_CACHE_BYTES = (64 << 10, 32 << 20)  # of decoded chunks: least of a dataset, and of all files


class Twin(Hdf5Source):
    """A copy of a source that keeps several files open: chunks in random order go from file to file."""

    def __init__(self, source: Hdf5Source) -> None:
        self.__dict__.update(source.__dict__)
        self._open = None
        self._kept: OrderedDict[str, Opened] = OrderedDict()
        self._handles: dict[str, int] = {}
        self._direct: dict[tuple[str, str], DirectRows | None] = {}
        self._cache_bytes = max(_CACHE_BYTES[0], _CACHE_BYTES[1] // min(len(self.files), _MOST_FILES))
        self._has_plain_rows = type(self._examples) is RowExamples

    def _opened(self, file: int) -> Opened:
        path = self.files[file]
        if path in self._kept:
            self._kept.move_to_end(path)
            return self._kept[path]
        if len(self._kept) >= _MOST_FILES:
            oldest, opened = self._kept.popitem(last=False)
            self._forget(oldest)
            opened.finish()
        # Chunks are read whole, and once: there is little to be had from a cache of them.
        cache = min(self._layout.cost_of(file).cache_bytes, self._cache_bytes)
        self._kept[path] = Opened(path, cache, self._layout.stamps.get(path))
        return self._kept[path]

    def _fill(self, field: Field, file: int, a: int, b: int, out: np.ndarray, *more: Any) -> None:
        """Fill `out` with a field of the examples a..b of a file; see `Hdf5Source`."""
        rows = self._direct_rows(field, file) if self._has_plain_rows and not any(more) else None
        if rows is None:
            super()._fill(field, file, a, b, out, *more)
        else:
            rows.read(a, b, out)

    def _direct_rows(self, field: Field, file: int) -> DirectRows | None:
        """Return where a field's rows are read directly; None where that cannot be."""
        path = self.files[file]
        opened = self._opened(file)
        if (path, field.key) not in self._direct:
            self._direct[path, field.key] = self._find_direct(field, opened)
        return self._direct[path, field.key]

    def _find_direct(self, field: Field, opened: Opened) -> DirectRows | None:
        if len(field.forms) != 1 or field.turned or field.one_hot:
            return None
        (member,) = self._layout.members_of(field.find(opened.file, several=True))
        if member.form.text or not member.is_plain(member.dataset.dtype):
            return None
        if member.dataset.file.filename != opened.path:  # where a link leads to
            return None
        if opened.path not in self._handles:
            self._handles[opened.path] = os.open(opened.path, os.O_RDONLY)
        return rows_of(member.dataset, self._handles[opened.path])

    def check_files(self) -> None:
        """Raise a `UserError` where a file that is open has changed since the source was made."""
        for opened in self._kept.values():
            opened.stamp.check()

    def _forget(self, path: str) -> None:
        self._direct = {key: rows for key, rows in self._direct.items() if key[0] != path}
        if path in self._handles:
            os.close(self._handles.pop(path))

    def close(self) -> None:
        """Close all files."""
        while self._kept:
            path, opened = self._kept.popitem()
            self._forget(path)
            opened.close()
