"""`shard` and `stage` at every world size: the same bytes, each shard written once, the same error on every rank."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.manifest import Manifest
from hpctrain.errors import UserError
from hpctrain.tools.shard import shard
from hpctrain.tools.stage import stage

pytestmark = pytest.mark.mpi(min_size=1)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all ranks see, with two files in it."""
    group = join()
    path = Path(group.broadcast_object(tempfile.mkdtemp() if group.rank == 0 else None))
    if group.rank == 0:
        for number, rows in enumerate((53, 40)):
            with h5py.File(path / f"{number}.h5", "w") as file:
                file.create_dataset("x", data=np.arange(4.0 * rows).reshape(rows, 4), chunks=(5, 4), compression="gzip")
                file["y"] = np.arange(rows)
    group.barrier()
    yield path
    group.barrier()
    if group.rank == 0:
        shutil.rmtree(path)


def test_shards_are_the_same_at_every_world_size(folder: Path) -> None:
    group = join()
    files = [str(folder / "0.h5"), str(folder / "1.h5")]
    manifest, kept = shard(group, files, 7, folder / "all")
    alone = folder / f"alone-{group.rank}"
    assert (kept, shard(SingleGroup(), files, 7, alone)[0].shards) == (0, manifest.shards)
    assert shard(group, files, 7, folder / "all") == (manifest, 7)
    staged = stage(group, folder / "all", folder / "local")
    assert sum(node.copied for node in staged) == 7
    assert sum(node.copied for node in stage(group, folder / "all", folder / "local")) == 0
    for index in range(group.rank, 7, group.size):
        Manifest.load(folder / "local").verify(index)


def test_a_damaged_shard_is_the_same_error_on_every_rank(folder: Path) -> None:
    group = join()
    manifest, _ = shard(group, [str(folder / "0.h5")], 5, folder / "all")
    if group.rank == 0:
        content = bytearray(manifest.path(3).read_bytes())
        content[-1] ^= 1
        manifest.path(3).write_bytes(content)
    group.barrier()
    with pytest.raises(UserError, match=f"shard {manifest.shards[3].file} .* is damaged") as caught:
        stage(group, folder / "all", folder / "local")
    assert caught.value.agreed
    with pytest.raises(UserError, match="more shards than rows") as caught:
        shard(group, [str(folder / "0.h5")], 54, folder / "other")
    assert caught.value.agreed
