"""What every registered collective promises that needs no second rank; `tests/mpi/test_collectives.py` has the rest."""

import numpy as np
import pytest

from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.single_group import SingleGroup


@pytest.fixture(params=list(COLLECTIVES))
def collective(request):
    return COLLECTIVES.get(request.param)(SingleGroup())


def test_it_keeps_the_contract(collective):
    assert isinstance(collective, Collective)
    assert type(collective).__doc__


@pytest.mark.parametrize("length", [0, 1, 17])
def test_on_one_rank_every_operation_leaves_the_buffer(collective, length):
    collective.warm_up()
    values = np.random.default_rng(1).normal(size=length).astype(np.float32)
    buffer = values.copy()
    collective.all_reduce(buffer)
    assert collective.reduce_scatter(buffer) == collective.owned(length) == (0, length)
    collective.all_gather(buffer)
    collective.broadcast(buffer)
    np.testing.assert_array_equal(buffer, values)


@pytest.mark.parametrize(
    "buffer",
    [np.zeros(4), np.zeros((2, 2), np.float32), np.zeros(8, np.float32)[::2]],
    ids=["float64", "two dimensions", "strided"],
)
def test_it_refuses_what_is_not_a_flat_float32_buffer(collective, buffer):
    for operation in (collective.all_reduce, collective.reduce_scatter, collective.all_gather):
        with pytest.raises(TypeError, match="1-D contiguous float32"):
            operation(buffer)
