"""The verb `stage`: what a node needs is copied, checked and kept; what is damaged is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.manifest import Manifest, ShardedDataset, ShardFile
from hpctrain.errors import UserError
from hpctrain.tools import stage as tool

SIZES = (3000, 10_000_000, 1, 0, 5_000_001)


@pytest.fixture
def shards(tmp_path: Path) -> Manifest:
    """Shards that are any bytes: staging does not look into them."""
    folder, rng, made = tmp_path / "shared", np.random.default_rng(0), []
    folder.mkdir()
    for number, size in enumerate(SIZES):
        content = rng.bytes(size)
        (folder / f"{number}.h5").write_bytes(content)
        rows = range(10 * number, 10 * number + 10)
        made.append(ShardFile(f"{number}.h5", rows, size, hashlib.sha256(content).hexdigest()))
    manifest = Manifest(folder, tuple(made), {"x": ShardedDataset((50, 2), "float32")})
    manifest.save()
    return manifest


def on_node(node: int, nodes: int, local_rank: int = 0, local_size: int = 1) -> SingleGroup:
    """A rank that believes to be one of several; it has nobody to wait for."""
    group = SingleGroup()
    group.node, group.nodes, group.local_rank, group.local_size = node, nodes, local_rank, local_size
    return group


def same(manifest: Manifest, folder: Path, index: int) -> bool:
    return (folder / manifest.shards[index].file).read_bytes() == manifest.path(index).read_bytes()


def test_all_shards_and_the_manifest_are_copied_and_then_kept(shards: Manifest, tmp_path: Path) -> None:
    to = tmp_path / "deep" / "local"
    (staged,) = tool.stage(SingleGroup(), shards.folder, to)
    assert (staged.copied, staged.bytes, list(staged.shards)) == (5, sum(SIZES), list(range(5)))
    assert all(same(shards, to, index) for index in range(5))
    assert Manifest.load(to).text() == shards.text()
    times = [path.stat().st_mtime_ns for path in sorted(to.glob("*.h5"))]
    (staged,) = tool.stage(SingleGroup(), shards.folder, to)
    assert (staged.copied, staged.bytes) == (0, 0)
    assert times == [path.stat().st_mtime_ns for path in sorted(to.glob("*.h5"))]
    assert "5 shards" in tool.report([staged], to)
    assert "0 copied (0.0 MB), 5 there already" in tool.report([staged], to)


def test_each_node_gets_its_part_or_all(shards: Manifest, tmp_path: Path) -> None:
    for node in range(2):
        tool.stage(on_node(node, 2), shards.folder, tmp_path / f"node{node}")
    held = [Manifest.load(tmp_path / f"node{node}").here() for node in range(2)]
    assert sorted(held[0] + held[1]) == list(range(5))
    assert [len(part) for part in held] == [2, 3]
    tool.stage(on_node(0, 2), shards.folder, tmp_path / "node0", everything=True)
    assert Manifest.load(tmp_path / "node0").here() == list(range(5))


def test_ranks_of_a_node_share_the_copies(shards: Manifest, tmp_path: Path) -> None:
    to = tmp_path / "local"
    copied = [tool.stage(on_node(0, 1, rank, 3), shards.folder, to)[0].copied for rank in range(3)]
    assert copied == [2, 2, 1]
    assert all(same(shards, to, index) for index in range(5))


def test_what_is_damaged_here_is_copied_again(shards: Manifest, tmp_path: Path) -> None:
    to = tmp_path / "local"
    tool.stage(SingleGroup(), shards.folder, to)
    content = bytearray((to / "1.h5").read_bytes())
    content[7_000_000] ^= 1
    (to / "1.h5").write_bytes(content)
    (to / "4.h5").write_bytes(b"cut off")
    (to / ".1.h5.4711.tmp").write_bytes(b"left by a killed run")
    (staged,) = tool.stage(SingleGroup(), shards.folder, to)
    assert staged.copied == 2
    assert all(same(shards, to, index) for index in range(5))
    assert not list(to.glob(".*"))


def test_a_flipped_byte_at_the_source_is_named_and_not_kept(shards: Manifest, tmp_path: Path) -> None:
    content = bytearray(shards.path(4).read_bytes())
    content[-1] ^= 128
    shards.path(4).write_bytes(content)
    with pytest.raises(UserError, match=r"shard 4.h5 \(rows 40 to 49\) is damaged: .*/shared/4.h5"):
        tool.stage(SingleGroup(), shards.folder, tmp_path / "local")
    assert not (tmp_path / "local" / "4.h5").exists()
    assert not (tmp_path / "local" / "manifest.json").exists(), "the node does not have all that it needs"
    assert same(shards, tmp_path / "local", 1)


def test_a_missing_shard_is_named(shards: Manifest, tmp_path: Path) -> None:
    shards.path(2).unlink()
    with pytest.raises(UserError, match=r"shard 2.h5 \(rows 20 to 29\) is missing"):
        tool.stage(SingleGroup(), shards.folder, tmp_path / "local")


def test_another_data_set_there_is_refused(shards: Manifest, tmp_path: Path) -> None:
    to = tmp_path / "local"
    to.mkdir()
    other = Manifest(to, shards.shards[:1], {"z": ShardedDataset((10,), "int8")})
    other.save()
    with pytest.raises(UserError, match="holds shards of another data set"):
        tool.stage(SingleGroup(), shards.folder, to)
    with pytest.raises(UserError, match="--to is the folder of the shards itself"):
        tool.stage(SingleGroup(), shards.folder, shards.folder)
    with pytest.raises(UserError, match="there is no manifest.json"):
        tool.stage(SingleGroup(), tmp_path, to)


def test_no_space_is_said_before_anything_is_copied(
    shards: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool.shutil, "disk_usage", lambda _: type("Usage", (), {"free": sum(SIZES) - 1})())
    with pytest.raises(UserError, match=r"not enough space for the shards in .*/local on [\s\S]*0.02 GB needed"):
        tool.stage(SingleGroup(), shards.folder, tmp_path / "local")
    assert not list((tmp_path / "local").iterdir())


def test_a_shard_that_cannot_be_read_is_named(
    shards: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Manifest, "check_size", lambda *_: None)
    shards.path(3).unlink()
    shards.path(3).mkdir()
    with pytest.raises(UserError, match=r"cannot read .*/shared/3.h5\n  found:   Is a directory"):
        tool.stage(SingleGroup(), shards.folder, tmp_path / "local")


def test_a_folder_that_cannot_be_made_is_said(shards: Manifest, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write .*/file/local on"):
        tool.stage(SingleGroup(), shards.folder, tmp_path / "file" / "local")
