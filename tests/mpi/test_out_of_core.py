"""Rows that do not fit in memory, streamed or mapped: the batches that rows in memory make, at every world size."""

import tempfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.data import load as load_module
from hpctrain.data import mapping, scatter, stream
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.load import load
from hpctrain.data.loader import BatchLoader
from hpctrain.data.mapped import MappedShard
from hpctrain.data.needs import Demand
from hpctrain.data.shard import MemoryShard
from hpctrain.data.sharding import Split
from hpctrain.data.stream import StreamedShard
from hpctrain.data.ways import MAPPED, MEMORY, STREAMED, Ways

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.timeout(60)]

ROWS, SPLIT = 611, (0.1, 0.2)
BUFFER = 1500  # bytes: some sixty rows
PARTS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def group():
    return join()


@pytest.fixture(scope="module")
def files(group):
    """Two files with weights, in a folder that all ranks see: contiguous, and in chunks of 7 rows."""
    with tempfile.TemporaryDirectory() as own:
        folder = Path(group.broadcast_object(own))
        random = np.random.default_rng(3)
        arrays = {
            "x": random.normal(size=(ROWS, 2, 2)).astype("f4"),
            "y": random.integers(0, 5, ROWS),
            "w": random.uniform(0.5, 2, ROWS).astype("f4"),
        }
        if group.rank == 0:
            for layout, options in (("contiguous", {}), ("chunked", {"chunks": True, "compression": "gzip"})):
                for name, rows in (("a", slice(0, 200)), ("b", slice(200, ROWS))):
                    with h5py.File(folder / f"{layout}-{name}.h5", "w") as file:
                        for key, values in arrays.items():
                            chunks = {"chunks": (7, *values.shape[1:])} if options else {}
                            file.create_dataset(key, data=values[rows], **(options | chunks))
        group.barrier()
        yield folder, arrays
        group.barrier()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(mapping, "_CHUNK_BYTES", 300)
    monkeypatch.setattr(scatter, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(stream, "JUDGING_BYTES", 600)


def source_of(files, layout):
    return Hdf5Source([str(files[0] / f"{layout}-{name}.h5") for name in "ab"], "x", "y", weight="w")


def open_data(group, files, layout, distribute, way, shuffle, batch=16):
    source = source_of(files, layout) if group.rank == 0 or distribute == "shared" else None
    demand = Demand(shuffle, batch=batch, buffer_bytes=BUFFER)
    with pytest.MonkeyPatch.context() as patch:
        # The files are far too small for anybody to choose this way.
        patch.setattr(load_module, "choose", lambda *_: Ways(dict.fromkeys(PARTS, way), shuffle, ()))
        return load(group, source, split=SPLIT, distribute=distribute, seed=2, demand=demand)


def loader_of(group, shard, shuffle, batch=16, window_bytes=2000):
    return BatchLoader(group, shard, batch, 2, shuffle, window_bytes, buffer_bytes=BUFFER)


def seen(loader, epoch, first=0):
    return [
        (b.step, b.ids.tolist(), b.inputs.copy(), b.targets.tolist(), b.weight.tolist())
        for b in loader.epoch(epoch, first)
    ]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one[:2] == other[:2]
        assert np.array_equal(one[2], other[2])
        assert one[3:] == other[3:]


@pytest.mark.parametrize(
    ("layout", "distribute", "shuffle", "way"),
    [
        ("contiguous", "shared", "global", MAPPED),
        ("contiguous", "shared", "chunks", STREAMED),
        ("chunked", "shared", "chunks", STREAMED),
        ("chunked", "scatter", "chunks", STREAMED),
        ("chunked", "scatter", "none", STREAMED),
        ("contiguous", "shared", "none", STREAMED),
    ],
)
@pytest.mark.parametrize("batch", [16, 100])
def test_batches_are_those_of_rows_in_memory(group, files, layout, distribute, shuffle, way, batch):
    arrays = files[1]
    whole = open_data(group, files, layout, distribute, MEMORY, shuffle, batch)
    pieces = open_data(group, files, layout, distribute, way, shuffle, batch)
    assert isinstance(whole.train, MemoryShard)
    assert isinstance(pieces.train, MappedShard if way == MAPPED else StreamedShard)
    loaders = [loader_of(group, data.train, shuffle, batch) for data in (whole, pieces)]
    for loader in loaders:
        loader.warm_up()
    rows = np.flatnonzero(Split(ROWS, 2, *SPLIT).part_of(0, ROWS) == 0)
    everything = []
    for epoch in (0, 1, 2):
        expected, found = (seen(loader, epoch) for loader in loaders)
        assert_same(found, expected)
        mine = []
        for _, ids, inputs, targets, weight in found:
            assert np.array_equal(inputs, arrays["x"][rows[ids]])
            assert targets == arrays["y"][rows[ids]].tolist()
            assert weight == arrays["w"][rows[ids]].tolist()
            mine += ids
        used = sorted(sum(group.all_gather_objects(mine), []))
        assert used == list(range(len(rows)))
        everything.append([ids for _, ids, *_ in found])
    if shuffle != "none" and group.size == 1:
        assert everything[0] != everything[1]
    # An epoch can be entered anywhere, also when another was left in the middle.
    batches = loaders[1].epoch(7)
    next(batches)
    batches.close()
    last = loaders[1].steps_per_epoch - 1
    for first in (0, 1, last // 2, last):
        assert_same(seen(loaders[1], 5, first), seen(loaders[0], 5, first))
    pieces.close()


@pytest.mark.parametrize(
    ("layout", "distribute", "shuffle", "way"),
    [
        ("contiguous", "shared", "global", MAPPED),
        ("chunked", "scatter", "chunks", STREAMED),
        ("chunked", "shared", "none", STREAMED),
    ],
)
def test_rows_that_are_judged_come_once_whichever_way(group, files, layout, distribute, shuffle, way):
    pieces = open_data(group, files, layout, distribute, way, shuffle)
    part = Split(ROWS, 2, *SPLIT).part_of(0, ROWS)
    doubled = replace(pieces, train=pieces.train.weighed(lambda targets, weight: weight * (targets + 1)))
    loader = loader_of(group, doubled.train, shuffle)
    next(loader.epoch(0))  # judging goes on beside training
    for shard, code in ((doubled.train, 0), (pieces.validation, 1), (pieces.test, 2)):
        rows = np.flatnonzero(part == code)
        mine = []
        for batch in shard.batches(5):
            assert 0 < batch.rows <= 5
            assert np.array_equal(batch.inputs, files[1]["x"][rows[batch.ids]])
            assert np.array_equal(batch.targets, files[1]["y"][rows[batch.ids]])
            factor = batch.targets + 1 if code == 0 else 1
            assert np.array_equal(batch.weight, (files[1]["w"][rows[batch.ids]] * factor).astype("f4"))
            mine += batch.ids.tolist()
        assert sorted(sum(group.all_gather_objects(mine), [])) == list(range(len(rows)))
    for batch in loader.epoch(0):
        assert np.array_equal(batch.inputs, files[1]["x"][np.flatnonzero(part == 0)[batch.ids]])
    doubled.close()
