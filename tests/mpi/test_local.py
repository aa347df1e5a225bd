"""Shards on each node: every rank reads what its node has, and the batches are those of data that all ranks see."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.mpi_group import MpiGroup
from hpctrain.data import load as load_module
from hpctrain.data import mapping
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.load import load
from hpctrain.data.loader import BatchLoader
from hpctrain.data.local import holders_of, staged_files
from hpctrain.data.manifest import Manifest, ShardFile
from hpctrain.data.needs import Demand
from hpctrain.data.sharding import Split
from hpctrain.data.ways import MEMORY, STREAMED, Ways
from hpctrain.errors import UserError

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.timeout(60)]

SIZES, NODES = (70, 0, 45, 33, 61), 2
ROWS = sum(SIZES)


@pytest.fixture(scope="module")
def group():
    """The ranks as a group of their own, of which the second half is as if on another node."""
    from mpi4py import MPI

    return MpiGroup(MPI.COMM_WORLD, ranks_a_node=(join().size + 1) // 2)


@pytest.fixture(scope="module")
def folder(group):
    """Shards, and for each of two nodes copies of those that it is dealt, but of one."""
    with tempfile.TemporaryDirectory() as own:
        folder = Path(group.broadcast_object(own))
        if group.rank == 0:
            places = [folder / "shards", folder / "node0", folder / "node1"]
            for place in places:
                place.mkdir()
            shards, start = [], 0
            for number, size in enumerate(SIZES):
                path = places[0] / f"{number}.h5"
                ids = np.arange(start, start + size)
                with h5py.File(path, "w") as file:
                    file.create_dataset("x", data=ids[:, None] * np.ones(3, "f4"), chunks=(5, 3) if size else None)
                    file["y"] = ids
                shards.append(ShardFile(path.name, range(start, start + size), path.stat().st_size, ""))
                start += size
            manifest = Manifest(places[0], tuple(shards), {})
            manifest.save()
            for node, place in enumerate(places[1:]):
                Manifest(place, tuple(shards), {}).save()
                for shard in manifest.dealt(node, NODES):
                    if shard != 3:  # which no node has
                        (place / f"{shard}.h5").write_bytes(manifest.path(shard).read_bytes())
        group.barrier()
        yield folder
        group.barrier()


@pytest.fixture
def placed(group, folder):
    files = Manifest.load(folder / "shards").files
    paths, here, manifest = staged_files(files, str(folder / f"node{group.node}"))
    return files, paths, holders_of(group, here, manifest)


def batches(group, shard, shuffle, epochs=2):
    loader = BatchLoader(group, shard, 16, 3, shuffle, window_bytes=1000, buffer_bytes=600)
    found = [(b.step, b.ids.tolist(), b.inputs.copy()) for epoch in range(epochs) for b in loader.epoch(epoch)]
    return found, loader


def test_each_node_reads_the_shards_that_it_has(group, folder, placed):
    files, paths, (holders, nowhere) = placed
    nodes = 1 if group.size == 1 else NODES
    # Of two nodes each has its half; of one node, the second half is nowhere.
    assert nowhere == (1 if nodes == NODES else len(files) - 2)
    for number, path in enumerate(paths):
        has_it = number in Manifest.load(folder / "shards").dealt(group.node, NODES) and number != 3
        assert Path(path).parent.name == (f"node{group.node}" if has_it else "shards")
    ranges = group.all_gather_objects(holders.ranges(group.rank))
    rows = [row for share in ranges for lo, hi in share for row in range(lo, hi)]
    assert sorted(rows) == list(range(ROWS))
    for share, node in zip(ranges, group.all_gather_objects(group.node), strict=True):
        for lo, hi in share:
            shards = {int(np.searchsorted(holders.starts, row, side="right")) - 1 for row in (lo, hi - 1)}
            assert nodes == 1 or shards <= set(Manifest.load(folder / "shards").dealt(node, NODES))


@pytest.mark.parametrize(("way", "shuffle"), [(MEMORY, "global"), (MEMORY, "none"), (STREAMED, "chunks")])
def test_batches_are_those_of_shared_files(group, placed, monkeypatch, way, shuffle):
    files, paths, (holders, _) = placed
    monkeypatch.setattr(mapping, "_CHUNK_BYTES", 200)
    monkeypatch.setattr(load_module, "choose", lambda *_: Ways({"train": way, "test": MEMORY}, shuffle, ()))
    demand, split = Demand(shuffle, batch=16, buffer_bytes=600), (0.0, 0.2)
    shared = load(group, Hdf5Source(files, "x", "y"), split=split, distribute="shared", demand=demand)
    local = load(group, Hdf5Source(paths, "x", "y"), split=split, distribute="local", demand=demand, holders=holders)
    expected, found = batches(group, shared.train, shuffle)[0], batches(group, local.train, shuffle)[0]
    rows = np.flatnonzero(Split(ROWS, 0, *split).part_of(0, ROWS) == 0)
    for one, other in zip(expected, found, strict=True):
        assert one[:2] == other[:2]
        assert np.array_equal(one[2], other[2])
        assert np.array_equal(other[2][:, 0], rows[other[1]])
    judged = [example for batch in local.test.batches(7) for example in batch.ids.tolist()]
    assert sorted(sum(group.all_gather_objects(judged), [])) == list(range(ROWS - len(rows)))
    shared.close()
    local.close()


def test_each_rank_may_mix_its_own_rows(group, placed):
    _, paths, (holders, _) = placed
    source, demand = Hdf5Source(paths, "x", "y"), Demand("local", batch=16)
    shard = load(group, source, distribute="local", demand=demand, holders=holders).train
    found, loader = batches(group, shard, "local")
    steps = loader.steps_per_epoch
    assert "depend on the number of ranks" in loader.describe()
    held = sorted(shard.targets.tolist())
    orders = []
    for epoch in (0, 1):
        mine = [example for _, ids, _ in found[epoch * steps : (epoch + 1) * steps] for example in ids]
        assert sorted(mine) == held
        orders.append(mine)
    assert len(held) < 5 or orders[0] != orders[1]
    assert all(np.array_equal(inputs[:, 0], ids) for _, ids, inputs in found)
    sizes = np.array(group.all_gather_objects([len(ids) for _, ids, _ in found[:steps]]))
    assert sizes.sum(axis=0).tolist() == [16] * (steps - 1) + [ROWS - 16 * (steps - 1)]
    again = [ids for _, ids, _ in ((b.step, b.ids.tolist(), None) for b in loader.epoch(1, 3))]
    assert again == [ids for _, ids, _ in found[steps + 3 :]]


def test_what_is_no_copy_of_the_shards_is_refused(folder, tmp_path):
    files = Manifest.load(folder / "shards").files
    with pytest.raises(UserError, match="is for shards"):
        staged_files(files[:2], None)
    other = Manifest(tmp_path, Manifest.load(folder / "shards").shards[:2], {})
    other.save()
    with pytest.raises(UserError, match="copies of other shards"):
        staged_files(files, str(tmp_path))
    with pytest.raises(UserError, match=r"data\.staged = '.*none' is no folder on \S+\n.*there is no \S+none\n"):
        staged_files(files, str(tmp_path / "none"))
    assert staged_files(files, None)[1] == [0, 1, 2, 3, 4]
