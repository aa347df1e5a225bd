"""Every registered collective on several ranks, against MPI's own all-reduce and closed forms."""

import functools
import tracemalloc

import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.mpi_group import MpiGroup
from hpctrain.comm.schedule import part_bounds
from hpctrain.comm.schedules import SUMMING

pytestmark = pytest.mark.mpi(min_size=1)


@pytest.fixture(params=list(COLLECTIVES))
def collective(request):
    return COLLECTIVES.get(request.param)(join())


@functools.cache
def nodes_of_two():
    """The world as nodes of two ranks, the last one of one where their number is odd."""
    from mpi4py import MPI

    join()
    return MpiGroup(MPI.COMM_WORLD, ranks_a_node=2)


def lengths(size):
    return sorted({0, 1, 2, size - 1, size, size + 1, 1000, 100_003})


def mine(rank, length, seed=0):
    return np.random.default_rng([seed, rank, length]).normal(size=length).astype(np.float32)


def test_all_reduce_is_mpi_s_sum(collective):
    group = collective.group
    for length in lengths(group.size):
        buffer = mine(group.rank, length)
        exact = buffer.astype(np.float64)
        magnitude = np.abs(exact)
        group.all_reduce(exact)  # MPI's own, in float64
        group.all_reduce(magnitude)
        collective.all_reduce(buffer)
        # At most size - 1 roundings of partial sums that are no larger than the sum of the magnitudes.
        bound = (group.size - 1) * np.finfo(np.float32).eps * magnitude
        assert np.all(np.abs(buffer - exact) <= bound)


def test_all_reduce_of_integers_is_exact(collective):
    group = collective.group
    for length in lengths(group.size):
        pattern = np.arange(length, dtype=np.float32) % 1000
        buffer = pattern * (group.rank + 1)
        collective.all_reduce(buffer)
        np.testing.assert_array_equal(buffer, pattern * (group.size * (group.size + 1) // 2))


def test_all_reduce_of_whole_numbers_wraps_around(collective):
    group = collective.group
    for length in lengths(group.size):
        given = [np.random.default_rng([rank, length]).integers(-(2**31), 2**31, length) for rank in range(group.size)]
        buffer = given[group.rank].astype(np.int32)
        collective.all_reduce(buffer)
        np.testing.assert_array_equal(buffer, np.sum(given, axis=0).astype(np.int32))
        floats = np.full(length, 0.5, np.float32)
        collective.all_reduce(floats)  # the type may differ from call to call
        np.testing.assert_array_equal(floats, np.full(length, 0.5 * group.size))


def test_every_rank_has_the_same_bits_and_has_them_again(collective):
    group = collective.group
    results = []
    for _ in range(3):
        buffer = mine(group.rank, 5003)
        collective.all_reduce(buffer)
        results += group.all_gather_objects(buffer.tobytes())
    assert len(set(results)) == 1


def test_reduce_scatter_gives_the_own_part_and_all_gather_the_rest(collective):
    group = collective.group
    for length in lengths(group.size):
        values = [np.arange(length, dtype=np.float32) % 97 + rank for rank in range(group.size)]
        buffer = values[group.rank].copy()
        lo, hi = collective.reduce_scatter(buffer)
        bounds = part_bounds(length, group.size)
        assert (lo, hi) == collective.owned(length) == (bounds[group.rank], bounds[group.rank + 1])
        np.testing.assert_array_equal(buffer[lo:hi], np.sum(values, axis=0)[lo:hi])
        buffer[:lo] = buffer[hi:] = np.nan  # undefined: must not matter
        collective.all_gather(buffer)
        np.testing.assert_array_equal(buffer, np.sum(values, axis=0))


def test_broadcast_copies_the_root_s(collective):
    group = collective.group
    for root in range(group.size):
        buffer = mine(group.rank, 100)
        collective.broadcast(buffer, root)
        np.testing.assert_array_equal(buffer, mine(root, 100))


def test_nan_and_infinity_reach_everybody(collective):
    group = collective.group
    buffer = np.ones(50, np.float32)
    if group.rank == group.size - 1:
        buffer[[3, 49]] = np.nan, np.inf
    collective.all_reduce(buffer)
    assert np.isnan(buffer[3])
    assert buffer[49] == np.inf
    assert np.all(np.delete(buffer, [3, 49]) == group.size)


def test_warm_up_does_not_communicate(collective):
    # Were it collective, the ranks that do not call it would leave the last one waiting until the test's time limit.
    if collective.group.rank == collective.group.size - 1:
        collective.warm_up()


def test_a_second_call_allocates_no_buffer(collective):
    buffer = mine(collective.group.rank, 100_000)
    collective.all_reduce(buffer)
    tracemalloc.start()
    try:
        collective.all_reduce(buffer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < buffer.nbytes / collective.group.size / 4, "less than a quarter of one part: views and requests alone"


@pytest.mark.parametrize("chunk_bytes", [1, 640, 10_000])
@pytest.mark.parametrize("name", [*SUMMING, "window"])
def test_chunks_of_any_length_give_the_same_bits(name, chunk_bytes):
    group = nodes_of_two()
    whole, cut = (COLLECTIVES.get(name)(group, chunk_bytes=size) for size in (1 << 30, chunk_bytes))
    for length in (3, 20_011):
        expected, buffer = mine(group.rank, length), mine(group.rank, length)
        whole.all_reduce(expected)
        cut.all_reduce(buffer)
        assert buffer.tobytes() == expected.tobytes()
