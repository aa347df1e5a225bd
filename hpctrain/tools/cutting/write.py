"""Writing one shard: its rows out of the source files, with their types, attributes, filters and chunks.

Where chunks of a source are chunks of the shard, they are copied as they are, compressed; else rows are read and
written in blocks.  The same rows always give the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py

from hpctrain.data.files import open_file
from hpctrain.files import atomic_write
from hpctrain.tools.cutting.layout import Layout
from hpctrain.tools.cutting.plan import Plan
from hpctrain.tools.cutting.raw import copy_attributes, read_rows, reading, write_rows

BLOCK_BYTES = 32 << 20
_LOSSY = frozenset([h5py.h5z.FILTER_SCALEOFFSET, 32013, 32017, 32018, 32022, 32023, 32024, 32028])  # zfp, sz, ...
_CACHE_BYTES = 64 << 20  # of decoded chunks, where blocks cut them


def write_shard(plan: Plan, index: int, progress: Callable[[int], None]) -> None:
    """Write a shard's file, whole or not at all; `progress` is told of the bytes (uncompressed) as they are done.

    Raises `UserError` where there is no space or no permission, or a source cannot be read.
    """

    def write(temporary: Path) -> None:
        with _wording_errors(), h5py.File(temporary, "w") as target:
            _write(plan.layout, plan.rows(index), target, progress)

    atomic_write(plan.folder / plan.file(index), write)


def _write(layout: Layout, rows: range, target: h5py.File, progress: Callable[[int], None]) -> None:
    starts = _starts(layout)
    with open_file(layout.sources[0].path) as source:
        copy_attributes(source, target)
        for path in layout.copied:
            _copy_groups(source, target, path)
            with reading(source.filename, path):
                source.copy(path, target, path)
    for cut in layout.cut:
        parts = []  # file, its first and last row, and where they go
        for number, source_file in enumerate(layout.sources):
            lo, hi = max(rows.start, starts[number]), min(rows.stop, starts[number] + source_file.rows)
            if lo < hi:
                parts.append((number, lo - starts[number], hi - starts[number], lo - rows.start))
        with open_file(layout.sources[cut.template].path) as source:
            _copy_groups(source, target, cut.path)
            counts = [(lo, hi, at, layout.sources[number].rows) for number, lo, hi, at in parts]
            keep = all(_is_whole(*part, len(rows), cut.chunk_rows) for part in counts)
            made = create_like(source[cut.path], target, cut.path, len(rows), keep)
            copy_attributes(source[cut.path], made)
        for number, lo, hi, at in parts:
            with open_file(layout.sources[number].path, _CACHE_BYTES) as source:
                _move(source[cut.path], lo, hi, made, at, progress)


def _is_whole(lo: int, hi: int, at: int, source_rows: int, target_rows: int, chunk: int | None) -> bool:
    """Return whether rows are whole chunks of source and target, the last one perhaps cut off in both."""
    if not chunk or lo % chunk or at % chunk:
        return False
    return hi % chunk == 0 or (hi == source_rows and at + hi - lo == target_rows)


def _starts(layout: Layout) -> list[int]:
    """Return the first row of each file."""
    starts = [0]
    for source in layout.sources:
        starts.append(starts[-1] + source.rows)
    return starts


def _copy_groups(source: h5py.File, target: h5py.File, path: str) -> None:
    """Make the groups above a dataset, with their attributes."""
    names = path.split("/")[:-1]
    for depth in range(1, len(names) + 1):
        group = "/".join(names[:depth])
        if group not in target:
            copy_attributes(source[group], target.create_group(group))


def create_like(dataset: h5py.Dataset, target: h5py.File, path: str, rows: int, lossy: bool = True) -> h5py.Dataset:
    """Make an empty dataset of so many rows, else like another: type, filters, chunks, fill value, what may grow.

    lossy  whether filters that round numbers stay: rows that are decoded and encoded again would be rounded again
    """
    properties = dataset.id.get_create_plist()
    if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count():
        properties = _plain(dataset)
    shape, most = (rows, *dataset.shape[1:]), list(dataset.maxshape)
    most[0] = None if most[0] is None else rows
    if properties.get_layout() == h5py.h5d.CHUNKED:
        chunks = properties.get_chunk()
        fitting = tuple(c if end is None else min(c, max(end, 1)) for c, end in zip(chunks, most, strict=True))
        if fitting != chunks:
            properties.set_chunk(fitting)
    if not lossy:
        codes = {properties.get_filter(index)[0] for index in range(properties.get_nfilters())}
        for code in codes & (_LOSSY if dataset.dtype.kind == "f" else _LOSSY - {h5py.h5z.FILTER_SCALEOFFSET}):
            properties.remove_filter(code)
    properties.set_obj_track_times(False)  # the same rows give the same bytes, whenever they are written
    unlimited = tuple(h5py.h5s.UNLIMITED if end is None else end for end in most)
    space = h5py.h5s.create_simple(shape, unlimited)
    made = h5py.h5d.create(target.id, path.encode(), dataset.id.get_type().copy(), space, properties)
    return h5py.Dataset(made)


def _plain(dataset: h5py.Dataset) -> h5py.h5p.PropDCID:
    """Return the properties of a contiguous dataset for one whose rows stand in other files (virtual, external)."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if None in dataset.maxshape:
        width = max(1, dataset.id.get_type().get_size())
        for extent in dataset.shape[1:]:
            width *= max(extent, 1)
        properties.set_chunk((max(1, (1 << 20) // width), *(max(extent, 1) for extent in dataset.shape[1:])))
    return properties


def _move(
    source: h5py.Dataset, lo: int, hi: int, target: h5py.Dataset, at: int, progress: Callable[[int], None]
) -> None:
    """Copy the rows lo..hi of a dataset to the rows from `at` on of another."""
    row_bytes = source.id.get_type().get_size()
    for extent in source.shape[1:]:
        row_bytes *= extent
    first, last = _whole_chunks(source, lo, hi, target, at)
    for start, stop in ((lo, first), (last, hi)):
        for begin, end in _blocks(source, start, stop, row_bytes):
            with reading(source.file.filename, source.name, begin, end):
                rows = read_rows(source, begin, end)
            write_rows(target, at + begin - lo, rows)
            progress((end - begin) * row_bytes)
        if start == lo and first < last:
            _copy_chunks(source, first, last, target, at + first - lo, row_bytes, progress)


def _blocks(source: h5py.Dataset, lo: int, hi: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut rows into blocks of bounded size that end where chunks end, so that a chunk is decoded once."""
    most = max(1, BLOCK_BYTES // max(row_bytes, 1))
    chunk = source.chunks[0] if source.chunks else 1
    while lo < hi:
        end = min(lo + most, hi)
        if end < hi and chunk <= most:
            end -= end % chunk
        yield lo, end
        lo = end


def _whole_chunks(source: h5py.Dataset, lo: int, hi: int, target: h5py.Dataset, at: int) -> tuple[int, int]:
    """Return the part of the rows lo..hi whose chunks are also chunks of the target; an empty one where none are."""
    if not source.chunks or not target.chunks or source.is_virtual:
        return lo, lo
    chunk = source.chunks[0]
    ours, theirs = target.id.get_create_plist(), source.id.get_create_plist()
    theirs.set_obj_track_times(False)
    alike = ours == theirs and not source.dtype.hasobject
    if not alike or (at - lo) % chunk:
        return lo, lo
    first, last = -(-lo // chunk) * chunk, hi // chunk * chunk
    if hi == len(source) and at + hi - lo == len(target):
        last = hi  # the last chunk is cut off at the same row in both
    return (first, last) if first < last else (lo, lo)


def _copy_chunks(
    source: h5py.Dataset, lo: int, hi: int, target: h5py.Dataset, at: int, row_bytes: int, progress: Callable
) -> None:
    """Copy whole chunks as they are stored."""
    chunks, shape = source.chunks, source.shape
    columns = [range(0, extent, step) for extent, step in zip(shape[1:], chunks[1:], strict=True)]
    for begin in range(lo, hi, chunks[0]):
        for place in _product(columns):
            with reading(source.file.filename, source.name, begin, min(begin + chunks[0], hi)):
                stored = source.id.get_chunk_info_by_coord((begin, *place))
                if stored.byte_offset is None:
                    continue  # never written: it holds the fill value, as the target's does
                mask, content = source.id.read_direct_chunk((begin, *place))
            target.id.write_direct_chunk((at + begin - lo, *place), content, mask)
        progress(min(chunks[0], hi - begin) * row_bytes)


def _product(axes: list[range]) -> Iterator[tuple[int, ...]]:
    if not axes:
        yield ()
        return
    for first in axes[0]:
        yield from ((first, *rest) for rest in _product(axes[1:]))


@contextlib.contextmanager
def _wording_errors() -> Iterator[None]:
    """Turn what HDF5 says when a disk is full into the system's own error."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.errno:
            raise
        number = re.search(r"errno = (\d+)", text)
        raise OSError(int(number[1]) if number else errno.EIO, text) from None
