"""Row arithmetic: every row once, exact part sizes, fair permutations, and nothing that depends on the world size."""

import itertools
import math

import numpy as np
import pytest

from hpctrain.data.order import EpochOrder
from hpctrain.data.sharding import TEST, TRAIN, VALIDATION, Split, own_shares, row_range, worker_range
from hpctrain.errors import UserError
from hpctrain.kernels import rows as kernels


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 1000])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 13])
def test_ranges_cover_all_rows_once_and_evenly(rows, size):
    ranges = [row_range(rows, rank, size) for rank in range(size)]
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(rows))
    lengths = [hi - lo for lo, hi in ranges]
    assert max(lengths) - min(lengths) <= 1
    assert ranges == [worker_range(rows, rank, size) for rank in range(size)]
    starts = [kernels.share_start(rows, rank, size, 1) for rank in range(size + 1)]
    assert starts == [lo for lo, _ in ranges] + [rows]


@pytest.mark.parametrize(("rows", "unit"), [(0, 4), (3, 4), (8, 4), (17, 4), (40, 16)])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_shares_are_whole_units_the_same_at_every_world_size(rows, unit, size):
    ranges = [worker_range(rows, rank, size, unit) for rank in range(size)]
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(rows))
    assert all(lo % unit == 0 or lo == rows for lo, _ in ranges)
    lengths = [-(-(hi - lo) // unit) for lo, hi in ranges]
    assert max(lengths) - min(lengths) <= 1
    assert [kernels.share_start(rows, rank, size, unit) for rank in range(size)] == [lo for lo, _ in ranges]


@pytest.mark.parametrize(
    "held", [[7], [5, 5, 5], [60, 2, 2, 2], [3, 0, 41, 17], [9, 9, 8, 8, 8], [1] * 12, [50] * 4 + [3] * 9]
)
@pytest.mark.parametrize("batch", [1, 2, 5, 16, 1000])
def test_own_rows_are_spread_over_the_steps_of_all_ranks(held, batch):
    total, steps = sum(held), -(-sum(held) // batch)
    used = np.array([own_shares(held, rank, batch) for rank in range(len(held))])
    shares = np.diff(used, axis=1)
    assert used.shape[1] == steps + 1
    assert shares.min() >= 0
    assert not used[:, 0].any()
    assert used[:, -1].tolist() == held, "every row once"
    assert shares.sum(axis=0).tolist() == [min(batch, total - batch * step) for step in range(steps)]
    # Of the rows that all ranks have used, each has its share, but for a row or two.
    even = np.outer(held, used.sum(axis=0)) / total
    assert np.abs(used - even).max() < 1.5


def test_a_rank_with_few_rows_spreads_them_over_the_epoch():
    used = own_shares([1000, 10], 1, 20)
    steps = np.flatnonzero(np.diff(used))
    assert len(steps) == 10
    assert np.diff(steps).min() >= 4  # of 51 steps
    assert np.diff(steps).max() <= 6


def test_empty_segments_are_skipped():
    starts = np.array([0, 0, 3, 3, 5, 5])
    assert [kernels.segment_of(i, starts) for i in range(5)] == [1, 1, 1, 3, 3]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31, 32, 33, 1797, 65536, 100_003])
def test_an_epoch_is_a_permutation(count):
    ids = EpochOrder(count, seed=3, epoch=5).ids(0, count)
    assert ids.dtype == np.int64
    assert np.array_equal(np.sort(ids), np.arange(count))


def test_any_piece_of_an_epoch_equals_the_whole():
    order = EpochOrder(1000, seed=1, epoch=2)
    whole = order.ids(0, 1000)
    for lo, hi in [(0, 0), (0, 1), (17, 400), (999, 1000)]:
        assert np.array_equal(order.ids(lo, hi), whole[lo:hi])
    with pytest.raises(ValueError, match="positions"):
        order.ids(990, 1001)


def test_epochs_and_seeds_differ_and_seeds_may_be_any_integer():
    orders = [
        tuple(EpochOrder(100, seed, epoch).ids(0, 100))
        for seed, epoch in itertools.product([0, 1, -1, 2**63, 2**64 - 2], [0, 1])
    ]
    assert len(set(orders)) == len(orders)


def test_shuffle_none_is_the_order_of_the_file():
    assert EpochOrder(10, 1, 1, "none").ids(3, 6).tolist() == [3, 4, 5]
    with pytest.raises(UserError, match="data.shuffle"):
        EpochOrder(10, 1, 1, "globl")


@pytest.mark.parametrize("count", [3, 4, 5])
def test_all_permutations_of_few_rows_are_equally_likely(count):
    trials = 400 * math.factorial(count)
    seen = dict.fromkeys(itertools.permutations(range(count)), 0)
    for epoch in range(trials):
        seen[tuple(EpochOrder(count, 9, epoch).ids(0, count).tolist())] += 1
    freedom = len(seen) - 1
    chi2 = sum((n - 400) ** 2 / 400 for n in seen.values())
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


def test_a_large_shuffle_has_no_correlation_with_the_order():
    count = 50_000
    ids = EpochOrder(count, 7, 0).ids(0, count).astype(np.float64)
    bound = 5 / math.sqrt(count)
    assert abs(np.corrcoef(ids, np.arange(count))[0, 1]) < bound
    assert abs(np.corrcoef(ids[1:], ids[:-1])[0, 1]) < bound
    following = EpochOrder(count, 7, 1).ids(0, count)
    assert abs(np.corrcoef(ids, following)[0, 1]) < bound
    # A random permutation has 1 fixed point on average (Poisson): 8 or more have a chance of 1e-5.
    assert np.count_nonzero(ids == np.arange(count)) < 8


@pytest.mark.parametrize("rows", [10, 11, 1797, 40_000])
@pytest.mark.parametrize(("validation", "test"), [(0.1, 0.2), (0.0, 0.5), (0.25, 0.0), (0.0, 0.0)])
def test_a_split_has_exact_sizes_and_is_piecewise(rows, validation, test):
    split = Split(rows, 5, validation, test)
    part = split.part_of(0, rows)
    assert part.dtype == np.uint8
    assert np.count_nonzero(part == TEST) == round(rows * test)
    assert np.count_nonzero(part == VALIDATION) == round(rows * validation)
    assert np.bincount(part, minlength=3).tolist() == list(split.counts)
    third = rows // 3
    assert np.array_equal(np.concatenate([split.part_of(0, third), split.part_of(third, rows)]), part)


def test_a_split_is_random_over_the_file_and_differs_by_seed():
    part = Split(10_000, 1, 0.0, 0.2).part_of(0, 10_000)
    per_tenth = (part == TEST).reshape(10, -1).sum(axis=1)
    # Hypergeometric: mean 200, deviation about 12.
    assert np.abs(per_tenth - 200).max() < 5 * 12
    assert not np.array_equal(part, Split(10_000, 2, 0.0, 0.2).part_of(0, 10_000))
    assert part[np.flatnonzero(part == TRAIN)].size == 8000


@pytest.mark.parametrize(
    ("rows", "validation", "test", "message"),
    [
        (100, 0.5, 0.5, "no rows for training"),
        (100, 0.0, 0.9999, "0 validate and 100 test(.|\n)*leave a row or more"),
        (100, -0.1, 0.0, "data.split.validation is out of range"),
        (100, 0.0, 1.0, "data.split.test is out of range"),
        (3, 0.1, 0.0, "without a row"),
    ],
)
def test_a_split_that_cannot_be_is_refused(rows, validation, test, message):
    with pytest.raises(UserError, match=message):
        Split(rows, 0, validation, test)
