"""A running step allocates nothing: no numpy array, no array within a kernel, only small Python objects."""

import h5py
import numba
import numpy as np
import pytest
from allocations import CNN, COUNTED, DENSE, MLP, count_allocations, layers
from numba.core.runtime import _nrt_python, rtsys

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data import load
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.needs import Demand
from hpctrain.data.ways import MAPPED, STREAMED, Ways
from hpctrain.training.trainer import Trainer

ROWS = 4096
SMALLEST = 4 * ROWS  # bytes of the smallest array with something for each row of a batch: the weights
VIEWS = 12  # arrays that the network's pass is given: numba counts each of them, as if it were made
CASES = [(MLP, (20,), {}, "global", "native"), (MLP, (20,), {"micro_batch": 512}, "none", "ring")]
CASES += [(CNN, (8, 8, 2), {"micro_batch": 1024}, "global", "ring")]


def count(network, shape, shuffle="global", collective="native", **options):
    return count_allocations(SingleGroup(), network, shape, ROWS, shuffle, collective, **options)


@pytest.mark.parametrize(("network", "shape", "options", "shuffle", "collective"), CASES)
def test_a_step_makes_no_array(network, shape, options, shuffle, collective):
    found = count(network, shape, shuffle, collective, **options)
    assert len(found.steps) == COUNTED
    assert sorted(found.steps)[COUNTED // 2] < SMALLEST / 8  # a batch and its views
    assert max(found.steps) < SMALLEST / 2  # and the views of the next steps' rows, at the begin of a window
    assert found.kept < SMALLEST


@pytest.mark.parametrize(("way", "shuffle"), [(MAPPED, "global"), (STREAMED, "chunks")])
def test_a_step_makes_no_array_of_rows_that_are_read_meanwhile(tmp_path, monkeypatch, way, shuffle):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.random.default_rng(0).normal(size=(8 * ROWS, 20)).astype("f4")
        file["y"] = np.arange(8 * ROWS) % 3
    monkeypatch.setattr(load, "choose", lambda *_: Ways({"train": way}, shuffle, ()))
    data = load.load(SingleGroup(), Hdf5Source([str(tmp_path / "a.h5")], "x", "y"), demand=Demand(shuffle, batch=ROWS))
    found = count(MLP, (20,), shuffle, shard=data.train)
    data.close()
    assert sorted(found.steps)[COUNTED // 2] < SMALLEST / 2  # what the other thread makes counts, too
    assert max(found.steps) < 4 * 20 * ROWS / 2  # half of a batch
    assert found.kept < 4 * 20 * ROWS / 8  # open files and tables of chunks


def test_kernels_make_no_array():
    shallow = count(MLP, (20,)).numba
    deep = count(layers(*DENSE * 6, *MLP), (20,)).numba
    assert deep == shallow  # no layer adds to what is counted
    assert count(MLP, (20,), micro_batch=512).numba - shallow == COUNTED * (ROWS // 512 - 1) * VIEWS
    running_statistics = 3  # arrays of the kernel that moves them
    network = count(CNN, (8, 8, 2), micro_batch=ROWS).numba
    assert network - shallow == COUNTED * running_statistics


def test_an_array_would_be_seen(monkeypatch):
    monkeypatch.setattr(Trainer, "_total", lambda _, weight: float(weight.sum(dtype="f8")))  # has a buffer
    assert min(count(MLP, (20,)).steps) > SMALLEST


def test_an_array_within_a_kernel_would_be_seen():
    @numba.njit
    def honest(values):
        return values[0]

    @numba.njit
    def greedy(values):
        return np.zeros(values.size)[0]

    counts = {}
    for kernel in (honest, greedy):
        kernel(np.zeros(3))
        _nrt_python.memsys_enable_stats()
        before = rtsys.get_allocation_stats().mi_alloc
        kernel(np.zeros(3))
        counts[kernel] = rtsys.get_allocation_stats().mi_alloc - before
        _nrt_python.memsys_disable_stats()
    assert (counts[honest], counts[greedy]) == (1, 2)
