"""`Twin`: a source's rows once more, with files of its own to open: for a thread that reads chunks in any order."""

from __future__ import annotations

from collections import OrderedDict

from hpctrain.data.fields.opened import Opened, check_unchanged
from hpctrain.data.hdf5 import Hdf5Source

_MOST_FILES = 128  # open at a time
_CACHE_BYTES = (64 << 10, 32 << 20)  # of decoded chunks: least of a dataset, and of all files


class Twin(Hdf5Source):
    """A copy of a source that keeps several files open: chunks in random order go from file to file."""

    def __init__(self, source: Hdf5Source) -> None:
        self.__dict__.update(source.__dict__)
        self._open = None
        self._kept: OrderedDict[str, Opened] = OrderedDict()
        self._cache_bytes = max(_CACHE_BYTES[0], _CACHE_BYTES[1] // min(len(self.files), _MOST_FILES))

    def _opened(self, file: int) -> Opened:
        path = self.files[file]
        if path in self._kept:
            self._kept.move_to_end(path)
            return self._kept[path]
        if len(self._kept) >= _MOST_FILES:
            self._kept.popitem(last=False)[1].finish()
        # Chunks are read whole, and once: there is little to be had from a cache of them.
        cache = min(self._layout.cost_of(file).cache_bytes, self._cache_bytes)
        self._kept[path] = Opened(path, cache, self._layout.stamps.get(path))
        return self._kept[path]

    def check_files(self) -> None:
        """Raise a `UserError` where a file that is open has changed since the source was made."""
        for opened in self._kept.values():
            check_unchanged(opened.path, opened.stamp)

    def close(self) -> None:
        """Close all files."""
        while self._kept:
            self._kept.popitem()[1].close()
