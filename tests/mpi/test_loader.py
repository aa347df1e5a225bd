"""The batch loader: each example once an epoch, batches that do not depend on the world size, no rank left waiting."""

import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.data.format import RowFormat
from hpctrain.data.loader import BatchLoader
from hpctrain.data.order import EpochOrder
from hpctrain.data.shard import MemoryShard
from hpctrain.data.sharding import row_range, worker_range

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.timeout(60)]

CASES = [(101, 16), (101, 101), (101, 1000), (7, 2), (2, 2), (1, 1)]


@pytest.fixture
def group():
    return join()


def shard_of(group, total, kind="class", uneven=False):
    """This rank's rows of made-up data, in which each row tells its id."""
    ids = np.arange(total)
    inputs = (ids[:, None, None] + np.array([[0.25, 0.5, 0.75]])).astype(np.float32)
    targets = ids * 10**9 if kind == "class" else np.stack([ids * 2.0, ids * 3.0], 1).astype(np.float32)
    starts = np.array([row_range(total, r, group.size)[0] for r in range(group.size)] + [total])
    if uneven:
        starts[1:-1] = total  # rank 0 holds everything
    own = slice(starts[group.rank], starts[group.rank + 1])
    form = RowFormat((1, 3), kind, () if kind == "class" else (2,))
    shard = MemoryShard(form, inputs[own], targets[own], starts, int(starts[group.rank]))
    return shard, inputs, targets


@pytest.mark.parametrize(("total", "batch"), CASES)
@pytest.mark.parametrize("shuffle", ["global", "none"])
@pytest.mark.parametrize("kind", ["class", "real"])
@pytest.mark.parametrize("window_bytes", [1, 1500, 1 << 20])
def test_each_step_is_the_same_global_batch_at_every_world_size(group, total, batch, shuffle, kind, window_bytes):
    shard, inputs, targets = shard_of(group, total, kind, uneven=window_bytes == 1500)
    unit = 4 if window_bytes == 1 else 1
    loader = BatchLoader(group, shard, batch, 5, shuffle, window_bytes, unit)
    assert loader.steps_per_epoch == -(-total // batch)
    for epoch in (0, 1):
        order = EpochOrder(total, 5, epoch, shuffle).ids(0, total)
        steps = 0
        for step, mine in enumerate(loader.epoch(epoch)):
            whole = order[step * batch : (step + 1) * batch]
            lo, hi = worker_range(len(whole), group.rank, group.size, unit)
            assert mine.ids.tolist() == whole[lo:hi].tolist()
            assert mine.inputs.dtype == np.float32
            assert np.array_equal(mine.inputs, inputs[mine.ids])
            assert mine.targets.dtype == targets.dtype
            assert np.array_equal(mine.targets, targets[mine.ids])
            assert mine.weight.tolist() == [1.0] * mine.rows
            assert (mine.step, mine.epoch) == (epoch * loader.steps_per_epoch + step, epoch)
            steps += 1
        assert steps == loader.steps_per_epoch


@pytest.mark.parametrize("weight_shape", [None, (), (3,)])
def test_positions_and_weights_go_with_their_rows(group, weight_shape):
    total, positions = 53, 3
    ids = np.arange(total)
    targets = ids[:, None] * 10**9 + np.arange(positions)
    stored = np.empty((total, 0), np.float32)
    if weight_shape is not None:
        stored = (ids[:, None] + np.linspace(0, 0.5, max(1, sum(weight_shape)))).astype(np.float32)
    starts = np.array([row_range(total, r, group.size)[0] for r in range(group.size)] + [total])
    own = slice(starts[group.rank], starts[group.rank + 1])
    form = RowFormat((1,), "class", (positions,), weight_shape)
    inputs = ids[:, None].astype(np.float32)
    shard = MemoryShard(form, inputs[own], targets[own], starts, int(starts[group.rank]), stored[own])
    expected = np.broadcast_to(stored if stored.size else np.ones((total, 1)), (total, positions))
    loader = BatchLoader(group, shard, 8, 1, window_bytes=2000)
    loader.warm_up()
    for batches in (loader.epoch(0), loader.epoch(1), shard.batches(4)):
        for batch in batches:
            assert batch.weight.shape == batch.targets.shape == (batch.rows, positions)
            assert np.array_equal(batch.targets, targets[batch.ids])
            assert np.array_equal(batch.weight, expected[batch.ids].astype(np.float32))
            part = batch.slice(1, 3)
            assert np.array_equal(part.weight, expected[part.ids].astype(np.float32))


@pytest.mark.parametrize("batch", [4, 10])
def test_every_example_is_worked_on_once_an_epoch(group, batch):
    shard, _, _ = shard_of(group, 53)
    loader = BatchLoader(group, shard, batch, 1, window_bytes=1000)
    mine = [example for b in loader.epoch(3) for example in b.ids.tolist()]
    everything = [example for ids in group.all_gather_objects(mine) for example in ids]
    assert sorted(everything) == list(range(53))


@pytest.mark.parametrize("first", [0, 1, 5, 13, 14])
def test_an_epoch_can_be_entered_anywhere(group, first):
    shard, _, _ = shard_of(group, 53)
    loader = BatchLoader(group, shard, 4, 1, window_bytes=1000)
    whole = [(b.step, b.ids.tolist(), b.inputs.copy()) for b in loader.epoch(2)]
    again = [(b.step, b.ids.tolist(), b.inputs.copy()) for b in loader.epoch(2, first)]
    assert len(again) == loader.steps_per_epoch - first
    for (step, ids, inputs), (step2, ids2, inputs2) in zip(whole[first:], again, strict=True):
        assert (step, ids) == (step2, ids2)
        assert np.array_equal(inputs, inputs2)


@pytest.mark.parametrize("stop_after", [0, 1, 6])
def test_stopping_early_leaves_nothing_behind(group, stop_after):
    shard, inputs, _ = shard_of(group, 53)
    loader = BatchLoader(group, shard, 4, 1, window_bytes=1000)
    batches = loader.epoch(0)
    for _ in range(stop_after):
        next(batches)
    batches.close()
    group.barrier()
    for batch in loader.epoch(1):
        assert np.array_equal(batch.inputs, inputs[batch.ids])


def test_warm_up_compiles_all_that_an_epoch_needs(group):
    from hpctrain.kernels import rows

    kernels = (rows.permute_range, rows.plan_window, rows.pack_rows, rows.assemble_rows)
    for kind in ("class", "real"):
        shard, _, _ = shard_of(group, 20, kind)
        loader = BatchLoader(group, shard, 6, 1)
        loader.warm_up()
        before = [len(kernel.signatures) for kernel in kernels]
        list(loader.epoch(0))
        assert [len(kernel.signatures) for kernel in kernels] == before


def test_buffers_are_made_once(group):
    shard, _, _ = shard_of(group, 53)
    loader = BatchLoader(group, shard, 7, 1, window_bytes=1000)
    places = {batch.inputs.ctypes.data for epoch in (0, 1) for batch in loader.epoch(epoch) if batch.rows}
    assert len(places) == 1
