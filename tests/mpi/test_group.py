"""MPI's group keeps every promise of `Group`; expected values are closed forms."""

import time

import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.group import CountError
from hpctrain.errors import UserError

pytestmark = pytest.mark.mpi(min_size=1)


@pytest.fixture
def group():
    return join()


def in_pieces(length):
    """Run a test with arrays whole, and with those of more than `length` bytes in pieces, as above 2^30 bytes."""
    return pytest.mark.parametrize("most", [2**30, length], ids=["whole", "in pieces"])


@pytest.fixture(autouse=True)
def longest_piece(request, monkeypatch):
    if "most" in request.fixturenames:
        monkeypatch.setattr("hpctrain.comm.pieces.MOST_BYTES", request.getfixturevalue("most"))


def test_it_is_mpi_s_world_and_always_the_same(group):
    from mpi4py import MPI

    assert (group.rank, group.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    assert join() is group
    assert group.library.split()[0] in MPI.Get_library_version()


def test_nodes_are_numbered_by_their_first_rank(group):
    places = group.all_gather_objects((group.node, group.local_rank, group.local_size, group.nodes))
    nodes = [node for node, *_ in places]
    assert list(dict.fromkeys(nodes)) == list(range(group.nodes))
    for rank, (node, local_rank, local_size, count) in enumerate(places):
        assert local_rank == nodes[:rank].count(node)
        assert local_size == nodes.count(node)
        assert count == group.nodes


def test_a_patient_barrier_waits_for_the_last(group):
    group.barrier()
    start = time.monotonic()
    if group.rank == group.size - 1:
        time.sleep(0.3)
    cpu = time.process_time()
    group.barrier(patient=True)
    assert time.monotonic() - start > 0.29
    assert time.process_time() - cpu < 0.15, "a patient wait leaves the core to others"


def test_a_group_apart_has_messages_of_its_own_and_sleeps_while_it_waits(group):
    apart = group.apart()
    assert (apart.rank, apart.size, apart.node, apart.local().size) == (
        group.rank,
        group.size,
        group.node,
        group.local_size,
    )
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    from_group, from_apart = np.empty(1), np.empty(1)
    receiving = [apart.receive(from_apart, left), group.receive(from_group, left)]
    cpu, start = time.process_time(), time.monotonic()
    if group.rank == group.size - 1:
        time.sleep(0.3)
    sending = [group.send(np.array([1.0]), right), apart.send(np.array([2.0]), right)]
    for request in [*receiving, *sending]:
        request.wait()
    total = np.full(3, 1.0, np.float32)
    apart.all_reduce(total)
    assert (from_group, from_apart) == (1.0, 2.0)
    assert (total == group.size).all()
    assert time.monotonic() - start > 0.29  # the sum waits for the last
    assert time.process_time() - cpu < 0.15
    apart.hurry(True)
    apart.local().all_reduce(total)
    assert (total == group.size * group.local_size).all()


@in_pieces(50_000)
@pytest.mark.parametrize("patient", [False, True])
def test_objects_are_broadcast_from_any_root(group, patient, most):
    for root in range(group.size):
        value = {"from": group.rank, "long": [group.rank] * 50_000}
        assert group.broadcast_object(value, root, patient=patient) == {"from": root, "long": [root] * 50_000}
    assert group.broadcast_object(None, patient=patient) is None


def test_objects_are_gathered_in_rank_order(group):
    assert group.all_gather_objects("x" * group.rank) == ["x" * rank for rank in range(group.size)]


@in_pieces(20)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_, np.float16])
def test_arrays_of_any_dtype_are_broadcast(group, dtype, most):
    for root in {0, group.size - 1}:
        buffer = (np.arange(12).reshape(3, 4) * (group.rank + 1)).astype(dtype)
        group.broadcast(buffer, root)
        np.testing.assert_array_equal(buffer, (np.arange(12).reshape(3, 4) * (root + 1)).astype(dtype))


@in_pieces(20)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_all_reduce_sums_in_place(group, dtype, most):
    buffer = np.arange(10, dtype=dtype) * (group.rank + 1)
    group.all_reduce(buffer)
    np.testing.assert_array_equal(buffer, np.arange(10) * (group.size * (group.size + 1) // 2))


@in_pieces(20)
def test_unequal_parts_are_scattered_and_gathered(group, most):
    counts = [3 * rank for rank in range(group.size)]  # the first is empty
    lo, hi = sum(counts[: group.rank]), sum(counts[: group.rank + 1])
    buffer = np.arange(sum(counts), dtype=np.float32)
    out = np.zeros(hi - lo, np.float32)
    group.reduce_scatter(buffer, counts, out)
    np.testing.assert_array_equal(out, np.arange(lo, hi) * group.size)
    gathered = np.full(sum(counts), -1, np.float32)
    gathered[lo:hi] = out
    group.all_gather(gathered, counts)
    np.testing.assert_array_equal(gathered, np.arange(sum(counts)) * group.size)


@in_pieces(10_000)
def test_messages_go_round_the_ring_in_order(group, most):
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for length in (0, 1, 100_000):  # the longest does not fit into MPI's own buffers
        got = [np.zeros(length, np.int32), np.zeros(length, np.int32)]
        receives = [group.receive(buffer, before, tag=5) for buffer in got]
        sends = [group.send(np.full(length, 10 * group.rank + i, np.int32), after, tag=5) for i in range(2)]
        for request in receives + sends:
            request.wait()
        for i in range(2):
            np.testing.assert_array_equal(got[i], np.full(length, 10 * before + i))


@in_pieces(20)
def test_a_request_can_be_polled(group, most):
    got = np.zeros(3)
    receive = group.receive(got, (group.rank - 1) % group.size, tag=9)
    send = group.send(np.full(3, float(group.rank)), (group.rank + 1) % group.size, tag=9)
    while not receive.test():
        time.sleep(0.0005)
    send.wait()
    np.testing.assert_array_equal(got, np.full(3, float((group.rank - 1) % group.size)))


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_rows_are_exchanged(group, shape):
    # Rank a sends a + b rows to rank b, each filled with 100 a + b.
    send_rows = np.array([group.rank + other for other in range(group.size)])
    send = np.concatenate([np.full((n, *shape), 100.0 * group.rank + b) for b, n in enumerate(send_rows)])
    expected = np.concatenate([np.full((group.rank + a, *shape), 100.0 * a + group.rank) for a in range(group.size)])
    received = np.full_like(expected, -1)
    group.all_to_all(send, send_rows, received, send_rows).wait()
    np.testing.assert_array_equal(received, expected)


def test_rows_that_do_not_fit_are_refused(group):
    with pytest.raises(ValueError, match="do not fit"):
        group.all_to_all(np.zeros(3), np.full(group.size, 9), np.zeros(3), np.full(group.size, 9))


def fail_on(rank, group):
    if group.rank == rank:
        raise UserError(f"file of rank {rank}")


def test_an_error_of_one_rank_is_raised_on_all(group):
    with pytest.raises(UserError, match=f"file of rank {group.size - 1}") as caught, group.agreed():
        fail_on(group.size - 1, group)
    assert caught.value.agreed
    with pytest.raises(UserError, match="file of rank 0"), group.agreed():
        fail_on(group.rank, group)


def test_more_rows_than_mpi_counts_are_refused_and_not_cut(group):
    rows = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (2**31,), (0,))
    counts = np.array([2**31] + [0] * (group.size - 1))
    with pytest.raises(CountError, match="2147483648 rows"):
        group.all_to_all(rows, counts, rows, counts)


def test_what_is_not_contiguous_is_refused(group):
    strided = np.zeros((4, 4), np.float32)[:, :2]
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        group.broadcast(strided)
