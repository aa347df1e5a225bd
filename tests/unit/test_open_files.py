"""Files that are read from while training goes on: few of them open at a time, and none that changes meanwhile."""

import contextlib
import itertools
import os

import h5py
import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data import load, mapping, twin
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.loader import BatchLoader
from hpctrain.data.mapped import MappedShard
from hpctrain.data.needs import Demand
from hpctrain.data.ways import MAPPED, STREAMED, Ways
from hpctrain.errors import UserError

FILES, ROWS = 7, 40


@pytest.fixture
def paths(tmp_path):
    for number in range(FILES):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            ids = np.arange(number * ROWS, (number + 1) * ROWS)
            file["x"] = np.repeat(ids[:, None], 4, axis=1).astype("f4")
            file["y"] = ids.astype("i4")  # converted on the way
    return [str(tmp_path / f"{number}.h5") for number in range(FILES)]


@pytest.fixture(params=[(MAPPED, "global"), (STREAMED, "chunks")], ids=str)
def loader(request, paths, monkeypatch):
    way, shuffle = request.param
    monkeypatch.setattr(load, "choose", lambda *_: Ways({"train": way}, shuffle, ()))
    monkeypatch.setattr(mapping, "_CHUNK_BYTES", 200)
    monkeypatch.setattr(twin, "_MOST_FILES", 2)
    data = load.load(SingleGroup(), Hdf5Source(paths, "x", "y"), demand=Demand(shuffle, batch=20, buffer_bytes=1000))
    yield BatchLoader(SingleGroup(), data.train, 20, 1, shuffle, window_bytes=1000, buffer_bytes=1000)
    data.close()


def handles(folder):
    """Paths of the folder that this process has open, once for every time that they are."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the other thread has just closed it
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(str(folder))]


def test_many_files_are_read_with_few_open(loader, tmp_path):
    seen = []
    # A map has its file open; of others two are, for HDF5 and for reading past it.
    most = FILES if isinstance(loader.shard, MappedShard) else 4
    for batch in loader.epoch(0):
        assert np.array_equal(batch.inputs[:, 2], batch.targets)
        assert np.array_equal(batch.targets, batch.ids)
        assert len(handles(tmp_path)) <= most
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(FILES * ROWS))
    loader.shard.close()
    assert len(handles(tmp_path)) == (FILES if isinstance(loader.shard, MappedShard) else 0)


def test_a_file_that_changes_is_told(loader, paths):
    for _ in loader.epoch(0):
        pass
    with h5py.File(paths[3], "r+") as file:
        file["x"][:] = 0
    status = os.stat(paths[3])
    os.utime(paths[3], ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    with pytest.raises(UserError, match=r"a data file has changed while it was read: .*3\.h5"):
        list(itertools.chain(loader.epoch(1), loader.epoch(2)))
