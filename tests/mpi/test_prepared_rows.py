"""Prepared rows of parts that are no arithmetic, on every way to the ranks: each comes once, as numpy has it."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.data import load as load_module
from hpctrain.data import mapping, scatter
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.load import PARTS, load
from hpctrain.data.loader import BatchLoader
from hpctrain.data.needs import Demand
from hpctrain.data.prepare.fit import fit
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.prepare.standardise import Standardise
from hpctrain.data.splits import CodedSplit
from hpctrain.data.ways import MAPPED, MEMORY, STREAMED, Ways

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.timeout(60)]

ROWS = 403


@pytest.fixture(scope="module")
def group():
    return join()


@pytest.fixture(scope="module")
def data(group):
    """A contiguous table with a target for each row, and the parts: 3 is none."""
    with tempfile.TemporaryDirectory() as own:
        path = Path(group.broadcast_object(own)) / "a.h5"
        random = np.random.default_rng(8)
        x, y = random.normal(3, 2, (ROWS, 3)).astype("f4"), random.normal(50, 9, (ROWS, 1))
        codes = random.choice(4, ROWS, p=[0.6, 0.1, 0.1, 0.2]).astype(np.uint8)
        if group.rank == 0:
            with h5py.File(path, "w") as file:
                file["x"], file["y"] = x, y
        group.barrier()
        yield str(path), x, y, codes
        group.barrier()


@pytest.mark.parametrize(
    ("way", "distribute", "shuffle"),
    [
        (MEMORY, "scatter", "global"),
        (MEMORY, "shared", "global"),
        (STREAMED, "scatter", "chunks"),
        (STREAMED, "shared", "chunks"),
        (MAPPED, "shared", "global"),
    ],
)
def test_every_row_of_a_part_comes_once_and_prepared(group, data, monkeypatch, way, distribute, shuffle):
    monkeypatch.setattr(mapping, "_CHUNK_BYTES", 200)
    monkeypatch.setattr(scatter, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(load_module, "choose", lambda *_: Ways(dict.fromkeys(PARTS, way), shuffle, ()))
    path, x, y, codes = data
    shared = distribute == "shared"
    # What is mapped is used as it stands in the file: inputs are not prepared then.
    preparation = Preparation.of(None if way == MAPPED else [Standardise()], [Standardise()], (3,), (1,))
    source = Hdf5Source([path], "x", "y", preparation=preparation) if shared or group.rank == 0 else None
    split = CodedSplit(codes)
    fit(group, source, split, preparation, shared)
    demand = Demand(shuffle, batch=16, buffer_bytes=600)
    dataset = load(group, source, split=split, distribute=distribute, demand=demand)
    of_train = codes == 0
    targets = (y - y[of_train].mean()) / y[of_train].std()
    inputs = x if way == MAPPED else (x - x[of_train].mean(axis=0, dtype="f8")) / x[of_train].std(axis=0, dtype="f8")
    loader = BatchLoader(group, dataset.train, 16, 1, shuffle, buffer_bytes=600)
    loader.warm_up()
    for part, batches in (
        (0, loader.epoch(0)),
        (1, dataset.validation.batches(5)),
        (2, dataset.test.batches(5)),
    ):
        rows, mine = np.flatnonzero(codes == part), []
        for batch in batches:
            np.testing.assert_allclose(batch.inputs, inputs[rows[batch.ids]], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(batch.targets, targets[rows[batch.ids]], rtol=1e-5, atol=1e-6)
            mine += batch.ids.tolist()
        assert sorted(sum(group.all_gather_objects(mine), [])) == list(range(len(rows)))
    dataset.close()
