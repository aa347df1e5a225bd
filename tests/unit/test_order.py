"""The order "chunks": every example once, chunks in a new order each epoch, mixed within pools and not beyond."""

import numpy as np
import pytest

from hpctrain.data.order import Chunks, EpochOrder
from hpctrain.kernels.chunks import place_chunks

FIRSTS = np.cumsum([0, 10, 10, 0, 3, 10, 10, 7, 10, 1])


def order_of(epoch=0, pool_rows=25, shuffle="chunks", firsts=FIRSTS):
    return EpochOrder(int(firsts[-1]), 5, epoch, shuffle, Chunks(firsts, pool_rows))


@pytest.mark.parametrize("pool_rows", [1, 7, 25, 60, 1000])
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_every_example_has_one_position(pool_rows, epoch):
    order = order_of(epoch, pool_rows)
    ids = order.ids(0, order.count)
    assert sorted(ids.tolist()) == list(range(order.count))
    for lo, hi in [(0, 0), (3, 4), (5, 40), (24, 26), (60, 61)]:
        assert np.array_equal(order.ids(lo, hi), ids[lo:hi])


@pytest.mark.parametrize("pool_rows", [1, 25])
def test_a_pool_has_whole_chunks_and_the_size_asked_for(pool_rows):
    order = order_of(pool_rows=pool_rows)
    pools = order.pools
    seen = []
    for pool in range(len(pools)):
        chunks = pools.chunks(pool)
        expected = [example for c in chunks for example in range(FIRSTS[c], FIRSTS[c + 1])]
        found = order.ids(pools.end(pool) - len(expected), pools.end(pool))
        assert sorted(found.tolist()) == sorted(expected)
        assert len(expected) <= order.chunks.most
        assert len(expected) >= pool_rows or pool == len(pools) - 1
        seen += chunks.tolist()
    assert sorted(seen) == list(range(len(FIRSTS) - 1))


def test_chunks_and_rows_change_their_order_every_epoch():
    firsts = np.arange(0, 10_001, 100)
    orders = [order_of(epoch, 1000, firsts=firsts) for epoch in (0, 1)]
    assert orders[0].pools.order.tolist() != orders[1].pools.order.tolist()
    ids = [order.ids(0, order.count) for order in orders]
    assert np.count_nonzero(ids[0] == ids[1]) < 20
    # Mixed among 1000: the neighbours of a batch come from many chunks, and stand in no order there.
    first_pool = ids[0][:1000]
    chunks, counts = np.unique(first_pool[:100] // 100, return_counts=True)
    assert len(chunks) == 10
    assert counts.max() < 30
    assert abs(np.corrcoef(np.arange(1000), first_pool % 100)[0, 1]) < 5 / np.sqrt(1000)


def test_none_is_the_order_of_the_file_in_chunks_too():
    order = order_of(shuffle="none")
    assert order.pools.order.tolist() == list(range(len(FIRSTS) - 1))
    assert order.ids(3, 30).tolist() == list(range(3, 30))
    with pytest.raises(ValueError, match="needs to know the chunks"):
        EpochOrder(10, 1, 0, "chunks")


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_pool_is_read_by_all_its_readers_evenly(ranks):
    random = np.random.default_rng(0)
    firsts = np.cumsum([0, *random.integers(0, 30, 200)])
    chunks = Chunks(firsts, 300)
    pools = EpochOrder(int(firsts[-1]), 1, 3, "chunks", chunks).pools
    readers = np.full((200, 2), (0, ranks))
    owners, bases, load = np.zeros(200, np.int64), np.zeros(200, np.int64), np.zeros(ranks, np.int64)
    room = -(-chunks.most // ranks) + chunks.largest
    place_chunks(pools.order, firsts, pools.cuts, len(pools), 1, room, readers, load, owners, bases)
    for pool in range(len(pools)):
        taken = {rank: [] for rank in range(ranks)}
        for chunk in pools.chunks(pool):
            half = (pool + 1) % 2
            rows = range(bases[chunk], bases[chunk] + firsts[chunk + 1] - firsts[chunk])
            assert all(half * room <= row < (half + 1) * room for row in rows)
            taken[owners[chunk]] += rows
        for rows in taken.values():
            assert len(set(rows)) == len(rows)
        sizes = [len(rows) for rows in taken.values()]
        assert max(sizes) - min(sizes) <= chunks.largest
