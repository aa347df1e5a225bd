"""Handing out the data: every row once, in file order, scattered or shared; a bad value ends on all ranks."""

import tempfile
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.data import scatter
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.load import load
from hpctrain.data.sharding import TEST, TRAIN, VALIDATION, Split
from hpctrain.errors import UserError

pytestmark = pytest.mark.mpi(min_size=1)


@pytest.fixture
def group():
    return join()


@pytest.fixture
def folder(group):
    """One folder for all ranks, removed when all are done with it."""
    with tempfile.TemporaryDirectory() as own:
        yield Path(group.broadcast_object(own))
        group.barrier()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(scatter, "BLOCK_BYTES", 300)  # a dozen rows: many blocks a rank


def write(group, folder, name, inputs, targets, **options):
    path = folder / name
    if group.rank == 0:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=inputs, **options)
            file.create_dataset("y", data=targets)
    group.barrier()
    return str(path)


def data(rows, kind="class"):
    rng = np.random.default_rng(rows)
    inputs = rng.normal(size=(rows, 2, 2)).astype(np.float32)
    return inputs, rng.integers(0, 5, rows) if kind == "class" else rng.normal(size=(rows, 3)).astype(np.float32)


def gathered(group, shard):
    """All ranks' rows, put together in rank order."""
    pieces = group.all_gather_objects((shard.first, shard.inputs, shard.targets))
    assert [first for first, _, _ in pieces] == shard.starts[:-1].tolist()
    return np.concatenate([p[1] for p in pieces]), np.concatenate([p[2] for p in pieces])


@pytest.mark.parametrize("distribute", ["scatter", "shared"])
@pytest.mark.parametrize("kind", ["class", "real"])
@pytest.mark.parametrize("rows", [2, 3, 101])
def test_all_rows_arrive_once_in_file_order(group, folder, distribute, kind, rows):
    inputs, targets = data(rows, kind)
    paths = [
        write(
            group, folder, "a.h5", inputs[: rows // 2], targets[: rows // 2], chunks=(5, 2, 2), maxshape=(None, 2, 2)
        ),
        write(group, folder, "b.h5", inputs[rows // 2 :], targets[rows // 2 :]),
    ]
    seen = []
    dataset = load(group, Hdf5Source(paths, "x", "y"), distribute=distribute, progress=seen.append)
    assert dataset.validation is None
    assert dataset.test is None
    shard = dataset.train
    assert shard.total == rows
    assert abs(len(shard) - rows / group.size) < 1
    for found, expected in zip(gathered(group, shard), (inputs, targets), strict=True):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    if group.rank == 0:
        assert seen == sorted(seen)
        assert seen[-1] == 1.0


@pytest.mark.parametrize("distribute", ["scatter", "shared"])
@pytest.mark.parametrize("rows", [96, 101, 110])
def test_blocks_that_begin_within_a_chunk_may_be_longer_than_all_others(group, folder, distribute, rows):
    inputs, targets = data(rows)
    # A block has room for 12 rows, and so for one chunk; from within a chunk it may have up to 12 that end with one.
    path = write(group, folder, "a.h5", inputs, targets, chunks=(8, 2, 2))
    found = gathered(group, load(group, Hdf5Source([path], "x", "y"), distribute=distribute).train)
    assert np.array_equal(found[0], inputs)
    assert np.array_equal(found[1], targets)


@pytest.mark.parametrize("distribute", ["scatter", "shared"])
def test_weights_travel_with_their_rows(group, folder, distribute):
    rng = np.random.default_rng(0)
    tokens, mask, weight = rng.integers(-1, 4, (60, 5)), rng.integers(0, 2, (60, 5)), rng.uniform(0, 2, 60)
    path = folder / "a.h5"
    if group.rank == 0:
        with h5py.File(path, "w") as file:
            for name, values in {"x": rng.normal(size=(60, 2)), "y": tokens, "m": mask, "w": weight}.items():
                file.create_dataset(name, data=values)
    group.barrier()
    source = Hdf5Source([str(path)], "x", "y", weight="w", mask="m", ignore_label=-1)
    dataset = load(group, source, split=(0.3, 0.0), distribute=distribute, seed=4)
    expected = (weight[:, None].astype(np.float32) * mask * (tokens != -1)).astype(np.float32)
    part = Split(60, 4, 0.3, 0.0).part_of(0, 60)
    for code, shard in ((TRAIN, dataset.train), (VALIDATION, dataset.validation)):
        found = group.all_gather_objects((shard.targets, shard.weight))
        assert np.array_equal(np.concatenate([targets for targets, _ in found]), tokens[part == code])
        assert np.array_equal(np.concatenate([weights for _, weights in found]), expected[part == code])


@pytest.mark.parametrize("distribute", ["scatter", "shared"])
def test_channels_in_front_are_turned_on_the_way(group, folder, distribute):
    rng = np.random.default_rng(0)
    stored, targets = rng.normal(size=(101, 3, 2, 4)), rng.integers(0, 5, 101)
    path = write(group, folder, "a.h5", stored, targets, chunks=(7, 3, 2, 4))
    source = Hdf5Source([path], "x", "y", channels_first=True)
    dataset = load(group, source, split=(0.2, 0.0), distribute=distribute, seed=4)
    part = Split(101, 4, 0.2, 0.0).part_of(0, 101)
    for code, shard in ((TRAIN, dataset.train), (VALIDATION, dataset.validation)):
        found = gathered(group, shard)[0]
        assert found.shape[1:] == (2, 4, 3)
        for channel in range(3):
            assert np.array_equal(found[..., channel], stored[part == code, channel].astype("f4"))


@pytest.mark.parametrize("distribute", ["scatter", "shared"])
@pytest.mark.parametrize("rows", [6, 101])
def test_a_split_gives_each_part_its_rows(group, folder, distribute, rows):
    inputs, targets = data(rows)
    path = write(group, folder, "a.h5", inputs, targets)
    dataset = load(group, Hdf5Source([path], "x", "y"), None, None, (0.2, 0.3), distribute, seed=4)
    part = Split(rows, 4, 0.2, 0.3).part_of(0, rows)
    for code, shard in ((TRAIN, dataset.train), (VALIDATION, dataset.validation), (TEST, dataset.test)):
        found = gathered(group, shard)
        assert np.array_equal(found[0], inputs[part == code])
        assert np.array_equal(found[1], targets[part == code])


def test_with_scatter_only_rank_0_needs_the_files(group, folder):
    inputs, targets = data(40)
    path = write(group, folder, "a.h5", inputs, targets)
    source = Hdf5Source([path], "x", "y") if group.rank == 0 else None
    dataset = load(group, source, source)
    assert np.array_equal(gathered(group, dataset.train)[0], inputs)
    assert np.array_equal(gathered(group, dataset.validation)[1], targets)
    assert dataset.test is None


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("distribute", ["scatter", "shared"])
def test_memory_above_the_own_shard_is_a_few_blocks(group, folder, monkeypatch, distribute, channels_first):
    block = 1 << 20
    monkeypatch.setattr(scatter, "BLOCK_BYTES", block)
    rows = 20_000  # 32 blocks of float64, which is converted on the way
    inputs = np.zeros((rows, 2, 100))
    path = write(group, folder, "a.h5", inputs, np.zeros(rows, int))
    source = Hdf5Source([path], "x", "y", channels_first=channels_first)
    del inputs
    tracemalloc.start()
    try:
        dataset = load(group, source, split=(0.0, 0.1), distribute=distribute)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    arrays = [array for shard in (dataset.train, dataset.test) for array in (shard.inputs, shard.targets)]
    held = sum(array.nbytes for array in arrays if array.nbytes < 1 << 21)  # larger ones are no memory of Python's
    # Two blocks on their way, one in the file's own type, and small change: so 32 MB blocks stay below 256 MB.
    assert peak - held < 4 * block


def test_batches_go_through_the_own_rows_in_order(group, folder):
    inputs, targets = data(31)
    path = write(group, folder, "a.h5", inputs, targets)
    shard = load(group, Hdf5Source([path], "x", "y")).train
    batches = list(shard.batches(4))
    assert all(batch.rows <= 4 for batch in batches)
    ids = np.concatenate([batch.ids for batch in batches] or [np.empty(0, np.int64)])
    assert ids.tolist() == list(range(shard.starts[group.rank], shard.starts[group.rank + 1]))
    for batch in batches:
        assert np.array_equal(batch.inputs, inputs[batch.ids])
        assert np.array_equal(batch.targets, targets[batch.ids])
        assert batch.weight.tolist() == [1.0] * batch.rows


@pytest.mark.timeout(60)
@pytest.mark.parametrize("distribute", ["scatter", "shared"])
@pytest.mark.parametrize("bad_rows", [(0,), (50, 97), (100,), (13, 14, 60)])
def test_a_bad_value_is_the_same_error_on_every_rank(group, folder, distribute, bad_rows):
    inputs, targets = data(101)
    inputs[list(bad_rows), 1, 1] = np.nan
    path = write(group, folder, "a.h5", inputs, targets)
    with pytest.raises(UserError, match=f"NaN in the data: row {bad_rows[0]} of 'x'") as caught:
        load(group, Hdf5Source([path], "x", "y"), split=(0.1, 0.1), distribute=distribute)
    assert caught.value.agreed
    assert len(set(group.all_gather_objects(caught.value.message))) == 1


@pytest.mark.timeout(60)
def test_mistakes_found_by_one_rank_end_on_all(group, folder):
    inputs, targets = data(20)
    path = write(group, folder, "a.h5", inputs, targets)
    with pytest.raises(UserError, match="no rows for training"):
        load(group, Hdf5Source([path], "x", "y") if group.rank == 0 else None, split=(0.5, 0.5))
    with pytest.raises(UserError, match=r"data\.distribute"):
        load(group, Hdf5Source([path], "x", "y"), distribute="scater")
    if group.size > 1:
        other = write(group, folder, "b.h5", inputs[:19], targets[:19])
        source = Hdf5Source([other if group.rank == 1 else path], "x", "y")
        with pytest.raises(UserError, match="the ranks see different train files"):
            load(group, source, distribute="shared")
