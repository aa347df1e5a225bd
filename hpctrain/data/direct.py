"""`DirectRows`: rows of a dataset read past the HDF5 library, which keeps all other threads of Python waiting.

For data that are stored plainly: in one piece, or in chunks of whole rows without a filter, or with gzip and shuffle.
Where the bytes stand is HDF5's to say; reading and decompressing them then lets the training step run.
"""

from __future__ import annotations

import math
import os
import zlib

import h5py
import numpy as np

from hpctrain.errors import UserError
from hpctrain.kernels.unshuffle import unshuffle

_MOST_CHUNKS = 1 << 20  # where each chunk stands is kept: two numbers a chunk
_GZIP, _SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE


class DirectRows:
    """Rows of one dataset; `rows_of` makes it.

    places  (chunks, 2) int64: where the chunk in each place begins in the file, and its bytes there; contiguous data
            are one chunk
    """

    def __init__(self, dataset: h5py.Dataset, handle: int, chunk_rows: int, filters: list[int], places: np.ndarray):
        self._name, self._path = dataset.name, dataset.file.filename
        self._handle, self._rows, self._dtype = handle, len(dataset), dataset.dtype
        self._shape = dataset.shape[1:]
        self._row_bytes = dataset.dtype.itemsize * math.prod(self._shape)
        self._chunk_rows, self._places = chunk_rows, places
        self._is_packed, self._is_shuffled = _GZIP in filters, _SHUFFLE in filters
        self._raw = np.empty(0, np.uint8)

    def read(self, lo: int, hi: int, out: np.ndarray) -> None:
        """Fill a C-contiguous array with the rows lo..hi, in its type; what overflows becomes infinite."""
        out = out.reshape(hi - lo, *self._shape)
        chunk, at = lo // self._chunk_rows, lo
        while at < hi:
            first = chunk * self._chunk_rows
            end = min(first + self._chunk_rows, hi)
            part = out[at - lo : end - lo]
            if self._dtype == out.dtype and not (self._is_packed or self._is_shuffled):
                self._fetch(
                    part.reshape(-1).view(np.uint8), int(self._places[chunk, 0]), (at - first) * self._row_bytes
                )
            else:
                stored = self._stored(chunk, at - first, end - first)
                with np.errstate(over="ignore", invalid="ignore"):
                    np.copyto(part, stored.view(self._dtype).reshape(part.shape), casting="unsafe")
            at, chunk = end, chunk + 1

    def _stored(self, chunk: int, lo: int, hi: int) -> np.ndarray:
        """Return the bytes of the rows lo..hi of a chunk; valid until the next call."""
        offset, size = (int(value) for value in self._places[chunk])
        if not (self._is_packed or self._is_shuffled):
            raw = self._room((hi - lo) * self._row_bytes)
            self._fetch(raw, offset, lo * self._row_bytes)
            return raw
        packed = os.pread(self._handle, size, offset)
        whole = self._chunk_rows * self._row_bytes
        try:
            plain = np.frombuffer(zlib.decompress(packed, bufsize=whole) if self._is_packed else packed, np.uint8)
        except zlib.error as error:
            raise self._damaged(str(error)) from None
        if len(plain) != whole:
            raise self._damaged(f"a chunk of {len(plain)} bytes in place of {whole}")
        if self._is_shuffled:
            raw = self._room(whole)
            unshuffle(plain, self._dtype.itemsize, raw)
            plain = raw
        return plain[lo * self._row_bytes : hi * self._row_bytes]

    def _room(self, size: int) -> np.ndarray:
        if len(self._raw) < size:
            self._raw = np.empty(size, np.uint8)
        return self._raw[:size]

    def _fetch(self, out: np.ndarray, offset: int, skipped: int) -> None:
        """Fill an array of bytes from a place in the file."""
        done = 0
        while done < len(out):
            count = os.preadv(self._handle, [out[done:]], offset + skipped + done)
            if not count:
                raise self._damaged("the file ends before its data do")
            done += count

    def _damaged(self, why: str) -> UserError:
        return UserError(
            f"cannot read {self._name!r} in {self._path}",
            found=why,
            hint="the file may be damaged; h5dump shows how far it can be read",
        )


def rows_of(dataset: h5py.Dataset, handle: int) -> DirectRows | None:
    """Return the rows of a dataset to be read from an open file descriptor; None where HDF5 has to read them."""
    if dataset.dtype.kind not in "iuf" or dataset.is_virtual or dataset.external or dataset.file.userblock_size:
        return None
    row_bytes = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        size = len(dataset) * row_bytes
        return None if offset is None else DirectRows(dataset, handle, len(dataset), [], np.array([[offset, size]]))
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    rows = dataset.chunks[0]
    count = -(-len(dataset) // rows)
    # Filters are applied in their order: shuffle first, then gzip.
    if filters not in ([], [_GZIP], [_SHUFFLE], [_SHUFFLE, _GZIP]) or dataset.chunks[1:] != dataset.shape[1:]:
        return None
    if count > _MOST_CHUNKS or not hasattr(dataset.id, "chunk_iter"):  # HDF5 tells since 1.12.3 where chunks are
        return None
    places = np.full((count, 2), -1, np.int64)
    is_plain = True

    def note(info: h5py.h5d.StoreInfo) -> None:
        nonlocal is_plain
        is_plain &= info.filter_mask == 0 and info.byte_offset is not None
        if info.chunk_offset[0] < len(dataset):
            places[info.chunk_offset[0] // rows] = info.byte_offset, info.size

    dataset.id.chunk_iter(note)
    # A chunk that was never written has no place: HDF5 makes it up.
    return DirectRows(dataset, handle, rows, filters, places) if is_plain and (places >= 0).all() else None
