"""The group of one rank keeps every promise of `Group`."""

import subprocess
import sys

import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.errors import HpctrainError, UserError


@pytest.fixture
def group():
    return SingleGroup()


def test_it_is_rank_0_of_1(group):
    assert (group.rank, group.size, group.local_rank, group.local_size, group.node, group.nodes) == (0, 1, 0, 1, 0, 1)
    assert group.hostname
    assert group.library == "none"


def test_collective_operations_leave_the_one_rank_s_values(group):
    values = np.arange(5, dtype=np.float32)
    buffer, out = values.copy(), np.zeros(5, np.float32)
    group.barrier()
    group.barrier(patient=True)
    group.broadcast(buffer)
    group.all_reduce(buffer)
    group.all_gather(buffer, [5])
    group.reduce_scatter(buffer, [5], out)
    np.testing.assert_array_equal(buffer, values)
    np.testing.assert_array_equal(out, values)
    assert group.broadcast_object({"a": 1}, patient=True) == {"a": 1}
    assert group.all_gather_objects("x") == ["x"]


def test_messages_to_oneself_arrive_in_order_by_tag(group):
    sent = np.array([1.0, 2.0])
    group.send(sent, 0, tag=3).wait()
    sent[:] = 0  # the buffer is free again after wait
    group.send(np.array([3.0, 4.0]), 0, tag=3).wait()
    first, second, other = np.zeros(2), np.zeros(2), np.zeros(2)
    group.receive(first, 0, tag=3).wait()
    assert group.receive(second, 0, tag=3).test()
    np.testing.assert_array_equal([first, second], [[1, 2], [3, 4]])
    assert not group.receive(other, 0, tag=4).test()
    with pytest.raises(HpctrainError, match="has not sent"):
        group.receive(other, 0, tag=4).wait()


def test_all_to_all_copies_the_rows(group):
    rows = np.arange(6).reshape(3, 2)
    received = np.zeros_like(rows)
    request = group.all_to_all(rows, np.array([3]), received, np.array([3]))
    assert request.test()
    request.wait()
    np.testing.assert_array_equal(received, rows)


def test_allocate_is_zero_and_aligned(group):
    for count in (0, 1, 17, 1000):
        buffer = group.allocate(count)
        assert buffer.dtype == np.float32
        assert buffer.shape == (count,)
        assert not buffer.any()
        assert buffer.ctypes.data % 64 == 0 or count == 0
    assert group.allocate(3, np.float64).dtype == np.float64


def test_agreed_marks_the_error_as_every_rank_s(group):
    with pytest.raises(UserError, match="no such file") as caught, group.agreed():
        raise UserError("no such file")
    assert caught.value.agreed
    with group.agreed():
        pass


def test_abort_ends_the_process_with_the_code_and_loses_no_output():
    script = (
        "from hpctrain.comm.single_group import SingleGroup\n"
        "print('last words')\n"
        "try:\n    SingleGroup().abort(7)\nfinally:\n    print('never')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7
    assert done.stdout.split("\n") == ["last words", ""]
