"""Where large arrays are placed."""

import numpy as np
import pytest

from hpctrain.memory import aligned_zeros

HUGE = 1 << 21


@pytest.mark.parametrize("count", [0, 1, 17, HUGE // 4 - 1, HUGE // 4, HUGE // 4 + 3, HUGE])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_arrays_are_zero_writable_and_start_on_a_line(count, dtype):
    array = aligned_zeros(count, dtype)

    assert (array.shape, array.dtype) == ((count,), dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert count == 0 or array.ctypes.data % 64 == 0
    assert not array.any()
    array[:] = 1  # all of it is there
    assert array.sum() == count


def test_large_arrays_start_on_a_huge_page():
    assert aligned_zeros(HUGE // 4).ctypes.data % HUGE == 0


def test_arrays_do_not_share_memory():
    first, second = aligned_zeros(HUGE), aligned_zeros(HUGE)

    first[:] = 1

    assert not second.any()
