"""The manifest of a folder of shards: what it says, how it is kept, and what is found damaged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import h5py
import pytest

from hpctrain.data.files import expand
from hpctrain.data.manifest import Manifest, ShardedDataset, ShardFile, SourceFile, checksum
from hpctrain.errors import UserError


def three(folder: Path) -> Manifest:
    """Three shards of 4, 3 and 0 rows, which are any bytes: a manifest knows nothing of HDF5."""
    shards, first = [], 0
    for name, rows in (("a.h5", 4), ("b.h5", 3), ("c.h5", 0)):
        content = name.encode() * (rows + 1)
        (folder / name).write_bytes(content)
        shards.append(ShardFile(name, range(first, first + rows), len(content), hashlib.sha256(content).hexdigest()))
        first += rows
    source = SourceFile("/data/x.h5", 10, 123456789, 7)
    datasets = {"g/x": ShardedDataset((7, 2), "float32", 5), "y": ShardedDataset((7,), "int8")}
    return Manifest(folder, tuple(shards), datasets, (source,), ("mean",), {"refs": "references"})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    manifest = three(tmp_path)
    manifest.save()
    assert Manifest.load(tmp_path) == manifest == Manifest.load(tmp_path / "manifest.json")
    assert manifest.rows == 7
    assert [len(shard.rows) for shard in manifest.shards] == [4, 3, 0]
    assert manifest.files == [str(tmp_path / name) for name in ("a.h5", "b.h5", "c.h5")]


def test_shards_are_dealt_out_once_and_evenly(tmp_path: Path) -> None:
    manifest = three(tmp_path)
    for parts in range(1, 6):
        dealt = [list(manifest.dealt(part, parts)) for part in range(parts)]
        assert sum(dealt, []) == [0, 1, 2]
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_a_flipped_byte_is_found_and_named(tmp_path: Path) -> None:
    manifest = three(tmp_path)
    seen: list[int] = []
    for index in range(3):
        manifest.verify(index, seen.append)
    assert sum(seen) == sum(shard.bytes for shard in manifest.shards)
    content = bytearray((tmp_path / "b.h5").read_bytes())
    content[5] ^= 1
    (tmp_path / "b.h5").write_bytes(content)
    manifest.check_size(1)
    with pytest.raises(UserError, match=r"shard b.h5 \(rows 4 to 6\) is damaged"):
        manifest.verify(1)
    manifest.verify(0)


def test_a_cut_or_missing_shard_is_named(tmp_path: Path) -> None:
    manifest = three(tmp_path)
    (tmp_path / "a.h5").write_bytes(b"a")
    with pytest.raises(UserError, match=r"shard a.h5 .* is damaged[\s\S]*1 bytes[\s\S]*20 bytes"):
        manifest.check_size(0)
    (tmp_path / "a.h5").unlink()
    assert manifest.here() == [1, 2]
    with pytest.raises(UserError, match=r"shard a.h5 \(rows 0 to 3\) is missing"):
        manifest.verify(0)


def test_a_folder_of_shards_stands_for_its_files(tmp_path: Path) -> None:
    for name in ("b.h5", "a.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = [1.0]
    paths = [tmp_path / "b.h5", tmp_path / "a.h5"]
    shards = [ShardFile(p.name, range(i, i + 1), p.stat().st_size, checksum(p)) for i, p in enumerate(paths)]
    Manifest(tmp_path, tuple(shards), {"x": ShardedDataset((2,), "float64")}).save()
    assert expand(tmp_path.name, tmp_path.parent) == [str(path) for path in paths], "in the order of the rows"
    with open(paths[0], "ab") as file:
        file.write(b"0")
    with pytest.raises(UserError, match=r"shard b.h5 .* is damaged"):
        expand([str(tmp_path)], "/")


def test_what_is_no_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no manifest.json in"):
        Manifest.load(tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path}/nosuch is no folder of shards\\n.*there is no such folder"):
        Manifest.load(tmp_path / "nosuch")
    path = tmp_path / "manifest.json"
    for text in ("", "[1]", "{}", '{"format": "another", "version": 1}'):
        path.write_text(text)
        with pytest.raises(UserError, match="is no manifest of shards"):
            Manifest.load(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot read"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "another version"),
        ({"shards": []}, "no shards"),
        ({"shards": None}, "damaged"),
        ({"datasets": {"x": {}}}, "damaged"),
    ],
)
def test_a_damaged_or_newer_manifest_is_refused(tmp_path: Path, change: dict, said: str) -> None:
    content = json.loads(three(tmp_path).text())
    (tmp_path / "manifest.json").write_text(json.dumps(content | change))
    with pytest.raises(UserError, match=said):
        Manifest.load(tmp_path)


def test_a_gap_or_a_name_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    content = json.loads(three(tmp_path).text())
    for key, value in (("rows", [5, 7]), ("file", "../b.h5")):
        changed = json.loads(json.dumps(content))
        changed["shards"][1][key] = value
        (tmp_path / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(UserError, match="is damaged"):
            Manifest.load(tmp_path)
