"""What is said of a job's memory before it starts: each rule against the arrays that a run then makes."""

import tracemalloc

import h5py
import numpy as np
import pytest

from hpctrain.batch import Batch
from hpctrain.comm.collectives.window import WindowCollective
from hpctrain.comm.single_group import SingleGroup
from hpctrain.data import load as loading
from hpctrain.data import scatter
from hpctrain.data.format import RowFormat
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.loader import BatchLoader, exchange_bytes
from hpctrain.data.needs import Demand, needs_of
from hpctrain.data.prepare import fit as fitting
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.prepare.scale import Scale
from hpctrain.data.prepare.standardise import Standardise
from hpctrain.data.shard import MemoryShard
from hpctrain.data.sharding import Split
from hpctrain.data.stream import JUDGING_BYTES
from hpctrain.data.ways import STREAMED, Ways
from hpctrain.nn.layers.activations import Relu
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.losses import SoftmaxCrossEntropy
from hpctrain.nn.model import Model
from hpctrain.run.memory_estimate import MemoryEstimate, Part, workspace_bytes
from hpctrain.tools.job import memory_table

PAGE = 4096


def model():
    layers = [Dense(units=16), Relu(), Dense(units=8)]
    return Model(layers, (16,), SoftmaxCrossEntropy(), "class")


def changed_pages(array, before):
    changed = np.flatnonzero(array.view(np.uint32) != before.view(np.uint32)) * 4 // PAGE
    return set(changed.tolist())


def test_between_nodes_the_chunks_of_the_transfer_are_counted_and_the_others_buffers_within_a_node():
    length, line = 3_000_000, 64
    assert WindowCollective.scratch_bytes(length, 4) == 4 * 3 * length // 4
    # One rank a node: eight chunks of at most 256 KB, near-even pieces of a part in whole cache lines.
    pieces = -(-4 * length // 4 // (256 * 1024))
    chunk = -(-length // pieces // line) * line  # bytes: 4 of each number, a quarter of the numbers
    assert WindowCollective.scratch_bytes(length, 4, 4) == pytest.approx(8 * chunk, rel=0.01)
    both = WindowCollective.scratch_bytes(length, 4, 2)
    assert both == pytest.approx(4 * length // 2 + 8 * chunk, rel=0.01)
    assert WindowCollective.scratch_bytes(1000, 4, 4) == 0, "MPI's own sums what is short"


@pytest.mark.parametrize(("train", "judged"), [(400, 0), (200, 3000), (16, 2000)])
def test_the_workspace_is_counted_by_the_pages_that_passes_write(train, judged):
    made = model()
    made.initialize()
    made.reserve(max(train, judged))
    workspace = made._workspace
    workspace[:] = np.nan  # no result is this
    before = workspace.copy()
    inputs = np.random.default_rng(0).normal(size=(max(train, judged), 16)).astype(np.float32)
    ids = np.arange(train)
    made.loss_and_grad(Batch(inputs[:train], ids % 8, np.ones(train, np.float32), ids, 0, 0))
    written = changed_pages(workspace, before)
    if judged:
        made.predict(inputs[:judged], np.empty((judged, 8), np.float32))
        written |= changed_pages(workspace, before)
    assert workspace.nbytes < 1 << 21  # small pages
    values = 12  # each may begin and end within a page
    assert abs(workspace_bytes(made.plan, train, judged) / PAGE - len(written)) <= values


def shard(rows, form):
    inputs, targets, weight = form.empty(rows)
    return MemoryShard(form, inputs, targets, np.array([0, rows]), 0, weight)


@pytest.mark.parametrize(("rows", "batch"), [(1000, 10), (1000, 5000), (7, 3)])
@pytest.mark.parametrize("window", [1 << 12, 1 << 25])
def test_the_exchange_is_counted_by_the_loader_s_arrays(rows, batch, window):
    form = RowFormat((3, 5), "class", (5,), (5,))
    loader = BatchLoader(SingleGroup(), shard(rows, form), batch, 0, window_bytes=window)
    windows = loader._feed.windows
    used = windows if loader.steps.window < loader.steps_per_epoch else windows[:1]
    arrays = [*windows[0]._out, loader._weight]
    arrays += [array for each in used for array in (each._ids, each._place, each._source, each._send, each._received)]
    expected = sum(array.nbytes for array in arrays)
    assert exchange_bytes(form, rows, batch, 1, window_bytes=window) == expected


def test_the_exchange_grows_with_what_stands_elsewhere():
    form = RowFormat((100,), "class")
    alone = exchange_bytes(form, 10_000, 100, 1)
    shared = exchange_bytes(form, 10_000, 100, 4)
    # Each rank works on a quarter of the rows, of which three quarters come from others, and sends as many.
    assert shared - alone == pytest.approx(2 * 10_000 * 3 / 16 * form.row_bytes, rel=0.1)
    # In the order of the file one rank holds all the rows of a window, and sends three quarters of them.
    in_order, shuffled = (exchange_bytes(form, 10_000, 100, 4, how, window_bytes=1 << 20) for how in ("none", "global"))
    in_a_window = 100 * ((1 << 20) // (100 * (form.row_bytes + 32)))
    assert in_order - shuffled == pytest.approx(2 * in_a_window * (3 / 4 - 3 / 16) * form.row_bytes, rel=0.1)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("rows", [900, 5000])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_reading_is_counted_by_what_it_allocates(tmp_path, monkeypatch, dtype, rows, is_prepared):
    monkeypatch.setattr(scatter, "BLOCK_BYTES", 1 << 20)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros((rows, 250), dtype), np.zeros(rows, int)
    preparation = Preparation.of([Scale(factor=2)], None, (250,), ()) if is_prepared else None
    source = Hdf5Source([str(tmp_path / "a.h5")], "x", "y", preparation=preparation)
    split = (0.1, 0.0)
    loading.load(SingleGroup(), source, split=split)  # loads the kernels
    tracemalloc.start()
    try:
        dataset = loading.load(SingleGroup(), source, split=split)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    shards = (dataset.train, dataset.validation)
    arrays = [array for shard in shards for array in (shard.inputs, shard.targets)]
    held = sum(array.nbytes for array in arrays if array.nbytes < 1 << 21)  # larger ones are no memory of Python's
    unused = 0 if rows == 5000 else 1 << 20  # with so few rows the second block is made, but hardly written to
    counted = scatter.loading_bytes(source, 1, 0, "scatter", split)
    # What preparation takes is counted for the worst of steps and types.
    assert peak - held - 1.1 * unused < 1.05 * counted < (1.2 * (peak - held) + (3 << 20 if is_prepared else 0))


def test_streams_are_counted_by_the_arrays_that_they_make(tmp_path, monkeypatch):
    rows, split = 40_000, Split(40_000, 0, 0.25)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((rows, 100), "f4"), chunks=(500, 100), compression="gzip")
        file["y"] = np.zeros(rows, int)
    source = Hdf5Source([str(tmp_path / "a.h5")], "x", "y")
    demand = Demand("chunks", batch=64, buffer_bytes=4 << 20)
    counted = needs_of(source, split, {"train": 0, "validation": 1}, "shared", demand, 1, is_close=True)
    chosen = Ways({"train": STREAMED, "validation": STREAMED}, "chunks", ())
    monkeypatch.setattr(loading, "choose", lambda *_: chosen)
    dataset = loading.load(SingleGroup(), source, split=split, demand=demand)

    def made(shard, batch, buffer_bytes):
        loader = BatchLoader(SingleGroup(), shard, batch, 0, "chunks", buffer_bytes=buffer_bytes)
        held, window = loader._feed.held, loader._feed.windows[0]
        return sum(array.nbytes for array in (*held._arrays, *(held._raw or ()), *window._out))

    # What HDF5 has in its cache of chunks, and the indices of windows, are counted beside these arrays.
    arrays = made(dataset.train, 64, 4 << 20)
    assert arrays < counted.streamed < arrays + source.reading_bytes(500) + (1 << 20)
    arrays = made(dataset.validation, 256, JUDGING_BYTES)
    assert arrays < counted.judged
    assert counted.passed_on < counted.streamed / 4
    dataset.close()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("columns", [None, [0, 3, 7]])
def test_taking_statistics_is_counted_by_what_it_allocates(tmp_path, monkeypatch, dtype, columns):
    monkeypatch.setattr(fitting, "_BLOCK_BYTES", 2 << 20)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.random.default_rng(0).normal(size=(5000, 250)).astype(dtype), np.zeros(5000, int)
    preparation = Preparation.of([Standardise(columns=columns)], None, (250,), ())
    source, split = Hdf5Source([str(tmp_path / "a.h5")], "x", "y"), Split(5000, 0, 0.1)
    counted = fitting.fitting_bytes(preparation.inputs, 5000)
    first = Preparation.of([Standardise(columns=columns)], None, (250,), ())
    fitting.fit(SingleGroup(), source, split, first, shared=False)  # loads the kernels
    tracemalloc.start()
    try:
        fitting.fit(SingleGroup(), source, split, preparation, shared=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.5 * counted < peak < 1.05 * counted


def test_parts_add_up_and_are_shown():
    found = MemoryEstimate(3, (Part("data", 2_000_000, 1_500_000), Part("code", 3_000_000, 3_000_000)), 7_000_000)
    assert (found.first, found.other, found.total) == (5_000_000, 4_500_000, 14_000_000)
    lines = memory_table("digits", found).splitlines()
    assert lines[0] == "memory of digits on 3 ranks, in MB"
    assert lines[2].split() == ["data", "2.0", "1.5"]
    assert lines[4].split()[-2:] == ["5.0", "4.5"]
    assert lines[5].split()[-1] == "14.0"
    assert "about 7 MB more" in lines[6]
    alone = memory_table("digits", MemoryEstimate(1, found.parts, 0)).splitlines()
    assert alone[-1].split()[-1] == "5.0"
    assert len(alone) == 5
