"""Rows read past the HDF5 library: what h5py reads, for every way of storing that is read so; the others are left."""

import os

import h5py
import hdf5plugin
import numpy as np
import pytest

from hpctrain.data.direct import rows_of
from hpctrain.errors import UserError

ROWS = 103
TYPES = ["<f4", ">f4", "<f8", "<f2", "<i8", ">i2", "u1"]
LAYOUTS = [
    {},
    {"chunks": (10, 3, 2)},
    {"chunks": (10, 3, 2), "compression": "gzip"},
    {"chunks": (7, 3, 2), "compression": "gzip", "shuffle": True},
    {"chunks": (200, 3, 2), "maxshape": (None, 3, 2), "shuffle": True},
]
OTHERS = [
    {"chunks": (10, 2, 2)},  # chunks that are no whole rows
    {"chunks": (10, 3, 2), "compression": "lzf"},
    {"chunks": (10, 3, 2), "fletcher32": True},
    {"chunks": (10, 3, 2), **hdf5plugin.Zstd()},
]


def write(path, dtype, options, **file_options):
    values = np.random.default_rng(0).integers(0, 100, (ROWS, 3, 2)).astype(dtype)
    with h5py.File(path, "w", **file_options) as file:
        file.create_dataset("x", data=values, **options)
    return values


@pytest.fixture
def opened(tmp_path):
    """Open a file of the folder twice: for HDF5, and as a file descriptor."""
    files, handles = [], []

    def both(name="a.h5"):
        files.append(h5py.File(tmp_path / name))
        handles.append(os.open(tmp_path / name, os.O_RDONLY))
        return files[-1]["x"], handles[-1]

    yield both
    for file, handle in zip(files, handles, strict=True):
        file.close()
        os.close(handle)


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_are_what_was_written(tmp_path, opened, dtype, options):
    values = write(tmp_path / "a.h5", dtype, options)
    rows = rows_of(*opened())
    for wanted in (np.float32, np.int64):
        for lo, hi in [(0, ROWS), (0, 1), (9, 31), (ROWS - 1, ROWS), (20, 30)]:
            out = np.empty((hi - lo, 6), wanted)
            rows.read(lo, hi, out)
            assert np.array_equal(out, values[lo:hi].reshape(-1, 6).astype(wanted))


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_what_only_hdf5_can_read_is_left_to_it(tmp_path, opened, options):
    write(tmp_path / "a.h5", "f4", options)
    assert rows_of(*opened()) is None


def test_chunks_that_were_never_written_and_user_blocks_are_left_to_hdf5(tmp_path, opened):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (50, 2), "f4", chunks=(10, 2), fillvalue=3)[:10] = 1
    assert rows_of(*opened()) is None
    write(tmp_path / "b.h5", "f4", {}, userblock_size=512)
    assert rows_of(*opened("b.h5")) is None
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("x", (50, 2), "f4")  # no space is given to it before anything is written
    assert rows_of(*opened("c.h5")) is None


def test_too_large_numbers_become_infinite(tmp_path, opened):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.array([1.0, 1e300])
    out = np.empty(2, np.float32)
    rows_of(*opened()).read(0, 2, out)
    assert out.tolist() == [1.0, np.inf]


@pytest.mark.parametrize("options", [LAYOUTS[0], LAYOUTS[3]], ids=str)
def test_a_damaged_file_is_named(tmp_path, opened, options):
    write(tmp_path / "a.h5", "f4", options)
    dataset, handle = opened()
    rows = rows_of(dataset, handle)
    place = int(rows._places[0, 0])
    with open(tmp_path / "a.h5", "r+b") as file:
        if options:
            file.seek(place)
            file.write(b"no gzip")
        else:
            file.truncate(place + 100)
    with pytest.raises(UserError, match=r"cannot read '/x' in .*a\.h5"):
        rows.read(0, 20, np.empty((20, 6), np.float32))
