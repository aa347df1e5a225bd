"""Sums in shared memory: in one node and over several (as if), with gradients that live there and with others."""

import errno
import gc
from pathlib import Path

import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.collectives import choice
from hpctrain.comm.collectives.between import BetweenNodes
from hpctrain.comm.collectives.window import WindowCollective
from hpctrain.comm.executor import CHUNK_BYTES
from hpctrain.comm.mpi_group import MpiGroup
from hpctrain.comm.shared_memory import share, shared_rows
from hpctrain.errors import UserError
from hpctrain.memory import taken_bytes

pytestmark = pytest.mark.mpi(min_size=1)
LENGTHS = (0, 1, 5, 1000, 70_001)


@pytest.fixture(params=[1, 2, 3])
def group(request):
    """The world cut into nodes of so many ranks: of one size, or with a last one that is smaller."""
    from mpi4py import MPI

    join()
    return MpiGroup(MPI.COMM_WORLD, ranks_a_node=request.param)


def mine(rank, length):
    return np.arange(length, dtype=np.float32) % 97 + 1000 * rank


def total(size, length):
    return np.sum([mine(rank, length) for rank in range(size)], axis=0, dtype="f8").astype("f4")


@pytest.mark.parametrize(("is_shared", "leader"), [(False, False), (True, False), (True, True)])
def test_the_sum_over_nodes_of_any_size(group, is_shared, leader):
    collective = WindowCollective(group, leader=leader)
    for length in LENGTHS:
        buffer = collective.allocate(group, length) if is_shared else np.empty(length, np.float32)
        for _ in range(2):
            buffer[:] = mine(group.rank, length)
            collective.all_reduce(buffer)
            np.testing.assert_array_equal(buffer, total(group.size, length))


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_ranks_on_several_numa_nodes_sum_in_two_levels(monkeypatch, dtype):
    """As if ranks 0, 2, ... were bound to one NUMA node and 1, 3, ... to another."""
    from mpi4py import MPI

    world = join()
    even = world.size // 2 * 2
    part = MPI.COMM_WORLD.Split(int(world.rank < even), world.rank)
    group = MpiGroup(part)
    monkeypatch.setattr("hpctrain.comm.collectives.window.own_place", lambda: group.rank % 2)
    collective = WindowCollective(group)
    assert (collective._hoods is None) == (world.rank >= even)
    for length in (1000, 70_001, 20_000):  # short ones in one level
        for buffer in (collective.allocate(group, length), np.empty(length, np.float32)):
            numbers = buffer.view(dtype)
            for _ in range(2):
                numbers[:] = mine(group.rank, length)
                collective.all_reduce(numbers)
                np.testing.assert_array_equal(numbers, total(group.size, length))


def test_the_scratch_between_nodes_is_what_was_said_of_it(group):
    collective, length = WindowCollective(group), 300_000
    buffer = collective.allocate(group, length)
    collective.all_reduce(buffer)
    if group.across() is None or group.nodes == 1:
        return
    part = -(-length // group.local_size)
    (executor,) = collective._between._executors.values()
    if executor._chunk * 4 == CHUNK_BYTES:  # it depends on the MPI library; no larger ones are taken
        assert BetweenNodes.scratch_bytes(part, group.nodes) == taken_bytes(executor._scratch.nbytes)
    assert BetweenNodes.scratch_bytes(part, group.nodes) >= executor._scratch.nbytes


def test_parts_and_wholes_over_nodes(group):
    collective = WindowCollective(group)
    for length in LENGTHS:
        buffer = mine(group.rank, length)
        lo, hi = collective.reduce_scatter(buffer)
        assert (lo, hi) == collective.owned(length)
        np.testing.assert_array_equal(buffer[lo:hi], total(group.size, length)[lo:hi])
        buffer[:lo] = buffer[hi:] = np.nan
        collective.all_gather(buffer)
        np.testing.assert_array_equal(buffer, total(group.size, length))


def test_nodes_as_they_were_cut(group):
    local, across, leaders = group.local(), group.across(), group.leaders()
    sizes = group.all_gather_objects(local.size)
    assert local.size == group.local_size
    assert local.rank == group.local_rank
    assert (across is None) == (len(set(sizes)) > 1)
    assert (leaders is None) == (group.local_rank > 0)
    if leaders is not None:
        assert leaders.size == group.nodes


def test_shared_memory_leaves_no_file_and_is_given_back():
    group = join().local()
    before = set(Path("/dev/shm").glob("hpctrain-*"))
    group.barrier()
    own = share(group, 1_000_000)
    group.barrier()  # the first rank takes the file's name away when all have it
    assert own.shape == (1_000_000,)
    assert own.ctypes.data % 64 == 0
    assert shared_rows(own) is not None
    names = set(Path("/dev/shm").glob("hpctrain-*"))
    group.barrier()
    assert names <= before
    own[:] = group.rank + 1
    group.barrier()
    assert [row[999_999] for row in shared_rows(own).rows] == [rank + 1 for rank in range(group.size)]
    group.barrier()
    address = own.ctypes.data
    assert shared_rows(np.empty(3, np.float32)) is None
    del own
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    starts = [int(line.split("-")[0], 16) for line in maps if "hpctrain-" in line]
    assert not any(start <= address < start + 5_000_000 for start in starts)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("allocated", [True, False])
def test_who_waits_in_the_window_moves_messages_on(allocated):
    """Rank 0 comes to the sum only when what it sends is there, and the others wait for it in the sum by then."""
    group = join()
    collective = WindowCollective(group)
    buffer = collective.allocate(group, 1000) if allocated else np.zeros(1000, np.float32)
    collective.all_reduce(buffer)
    message = np.full(4_000_000, float(group.rank))  # too long to be put aside by MPI
    if group.rank == 0:
        for request in [group.send(message, other) for other in range(1, group.size)]:
            request.wait()
    else:
        receiving = group.receive(message, 0)
    buffer[:] = group.rank + 1
    collective.all_reduce(buffer)
    assert (buffer == group.size * (group.size + 1) / 2).all()
    if group.rank:
        receiving.wait()
        assert (message == 0).all()


def test_many_meetings_in_a_row_mix_nothing_up():
    group = join()
    collective = WindowCollective(group)
    buffer = collective.allocate(group, 257)
    for turn in range(300):
        buffer[:] = turn + group.rank
        collective.all_reduce(buffer)
        expected = group.size * turn + group.size * (group.size - 1) // 2
        assert (buffer == expected).all(), turn


def test_slices_of_a_shared_buffer_are_summed_where_they_are(group):
    buffer = WindowCollective.allocate(group, 1000)
    collective = WindowCollective(group.apart())
    buffer[:] = mine(group.rank, 1000)
    expected = mine(group.rank, 1000)
    for lo, hi in [(640, 1000), (48, 640), (48, 49), (0, 0)]:
        expected[lo:hi] = total(group.size, 1000)[lo:hi] if (lo, hi) != (48, 49) else group.size * expected[lo:hi]
        collective.all_reduce(buffer[lo:hi])
        np.testing.assert_array_equal(buffer, expected)
    assert collective._copied_into is None


def test_auto_shares_memory_where_ranks_share_a_node(group):
    buffer = choice.allocate("auto", group, 1000)
    name, collective = choice.collective_for("auto", group, buffer)
    assert name == ("window" if group.nodes < group.size else "native")
    assert (shared_rows(buffer) is not None) == (group.local_size > 1)
    buffer[:] = mine(group.rank, 1000)
    collective.all_reduce(buffer)
    np.testing.assert_array_equal(buffer, total(group.size, 1000))


def test_without_enough_shared_memory_auto_does_without_and_window_says_so(group, monkeypatch):
    def full(number, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    if group.rank == 0:  # one node has too little, the others do not know of it
        monkeypatch.setattr("os.posix_fallocate", full)
    first_node_shares = group.broadcast_object(group.local_size) > 1
    buffer = choice.allocate("auto", group, 1000)
    name, collective = choice.collective_for("auto", group, buffer)
    if first_node_shares:
        assert name == "native"
        assert shared_rows(buffer) is None
        with pytest.raises(UserError, match="not enough shared memory"):
            choice.allocate("window", group, 1000)
    buffer[:] = mine(group.rank, 1000)
    collective.all_reduce(buffer)
    np.testing.assert_array_equal(buffer, total(group.size, 1000))
