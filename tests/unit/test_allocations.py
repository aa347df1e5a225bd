"""A running step allocates nothing: no numpy array, no array within a kernel, only small Python objects."""

import numba
import numpy as np
import pytest
from allocations import CNN, COUNTED, DENSE, MLP, count_allocations, layers
from numba.core.runtime import _nrt_python, rtsys

from hpctrain.comm.single_group import SingleGroup
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
