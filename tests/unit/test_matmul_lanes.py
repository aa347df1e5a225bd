"""Weight gradients by lanes beside numpy: products of whole numbers are exact in float32, and so the sums equal."""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain.kernels.matmul_lanes import DEEPEST, matmul_tn_lanes

SCALE = 0.25  # a power of two under which some sums end in a half


@pytest.mark.parametrize("lines", [1, 3])
@pytest.mark.parametrize(
    ("rows", "lane"),
    [(1, 1), (5, 2), (16, 16), (64, 16), (70, 16), (100, 33), (9, 20), (300, 7), (150, DEEPEST + 5)],
)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 1), (7, 3), (13, 16), (12, 32), (50, 47), (540, 130)])
def test_each_lane_is_rounded_and_added(rows: int, lane: int, lines: int, m: int, n: int) -> None:
    random = np.random.default_rng(rows + m)
    a, b = (random.integers(-9, 10, (rows * lines, width)).astype(np.float32) for width in (m, n))
    parts = [
        a[lo : lo + lane * lines].astype("f8").T @ b[lo : lo + lane * lines].astype("f8")
        for lo in range(0, rows * lines, lane * lines)
    ]
    expected = sum(np.rint(SCALE * part) for part in parts)
    sums, largest = np.full((m, n), 123, np.int32), np.full(1, np.float32(2).view(np.int32))
    arguments = (a, b, np.empty((m, n), np.float32), sums, np.full(1, SCALE, np.float32), largest, rows, lane)
    matmul_tn_lanes(*arguments, 0.0)
    np.testing.assert_array_equal(sums, expected)
    assert largest.view(np.float32)[0] == max(2, *(abs(part).max() for part in parts))
    matmul_tn_lanes(*arguments, 1.0)
    np.testing.assert_array_equal(sums, 2 * expected)


def test_nothing_but_the_result_is_written_and_nan_is_seen() -> None:
    a, b = np.ones((8, 6), np.float32), np.ones((8, 35), np.float32)
    b[3, 34] = np.nan
    room, largest = np.full((8, 35), 7, np.int32), np.zeros(1, np.int32)
    own = np.empty((6, 35), np.float32)
    matmul_tn_lanes(a, b, own, room[1:7], np.ones(1, np.float32), largest, 8, 4, 0.0)
    np.testing.assert_array_equal(room[[0, 7]], 7)
    np.testing.assert_array_equal(room[1:7, :34], 8)
    assert np.isnan(largest.view(np.float32)[0])
