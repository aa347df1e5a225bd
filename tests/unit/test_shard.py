"""The verb `shard`: rows come through bit for bit with types, attributes, filters and chunks; what is there is kept."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from datasets import job_for, write_classes

from hpctrain import train
from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.manifest import Manifest
from hpctrain.errors import UserError
from hpctrain.tools import shard as tool
from hpctrain.tools.cutting import layout, plan, write

ROWS = (100, 100, 37)
RECORD = np.dtype([("px", ">f8"), ("n", "i2"), ("name", "S3")])
ENUM = h5py.enum_dtype({"cat": 0, "dog": 5}, "u1")
TEXT = h5py.string_dtype()


def columns(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Values of every kind of type: numbers of all widths and both byte orders, records, texts."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, 3))
    records = np.zeros(rows, RECORD)
    records["px"], records["n"], records["name"] = numbers[:, 0], rng.integers(-9, 9, rows), b"ab"
    odd = rng.integers(0, 2**32, (rows, 2), np.uint32).view("f4")  # any bits, NaN with payloads among them
    return {
        "x/big": numbers.astype(">f4"),
        "x/half": numbers.astype("f2"),
        "x/odd": odd,
        "y": rng.integers(0, 5, rows).astype("<i8"),
        "flag": rng.integers(0, 2, rows).astype(bool),
        "pet": rng.integers(0, 2, rows).astype("u1") * 5,
        "record": records,
        "text": np.array([f"row {i} é" for i in range(rows)], object),
    }


def write_file(path: Path, rows: int, seed: int) -> dict[str, np.ndarray]:
    values = columns(rows, seed)
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "a run"
        file.create_group("x").attrs["unit"] = np.array([1.5, 2.5], ">f8")
        big = file.create_dataset("x/big", data=values["x/big"], chunks=(8, 2), compression="gzip", shuffle=True)
        big.attrs["scale_factor"] = np.float32(0.5)
        file.create_dataset("x/half", data=values["x/half"], maxshape=(None, 3), chunks=(16, 3), compression="lzf")
        file.create_dataset("x/odd", data=values["x/odd"])
        file.create_dataset("y", data=values["y"], fletcher32=True, chunks=(10,))
        file.create_dataset("flag", data=values["flag"])
        file.create_dataset("pet", data=values["pet"], dtype=ENUM)
        file.create_dataset("record", data=values["record"], chunks=(36,), fillvalue=np.zeros((), RECORD))
        file.create_dataset("text", data=values["text"], dtype=TEXT)
        file["x/big"].attrs["of"] = file["y"].ref
        file["stats/mean"] = np.arange(3.0)
        file["stats"].attrs["note"] = "of all rows"
        file["where"] = str(path)
        file["link"] = h5py.SoftLink("/y")
        file["x/loop"] = file["/"]
        file.create_dataset("refs", data=[file["y"].ref] * rows, dtype=h5py.ref_dtype)
    return values


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], dict[str, np.ndarray]]:
    """Three files, and what their rows are one after another."""
    folder = tmp_path_factory.mktemp("source")
    paths = [folder / f"part-{i}.h5" for i in range(3)]
    parts = [write_file(path, rows, i) for i, (path, rows) in enumerate(zip(paths, ROWS, strict=True))]
    return paths, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def cut(paths: list[Path], shards: int, out: Path, along: str | None = None) -> tuple[Manifest, int]:
    return tool.shard(SingleGroup(), [str(path) for path in paths], shards, out, along)


def gathered(manifest: Manifest, name: str) -> np.ndarray:
    """Read a dataset from all shards by plain h5py."""
    parts = []
    for path in manifest.files:
        with h5py.File(path) as file:
            parts.append(file[name].asstr()[:] if h5py.check_string_dtype(file[name].dtype) else file[name][:])
    return np.concatenate(parts)


@pytest.mark.parametrize("shards", [1, 4, 7])
def test_every_row_comes_through_bit_for_bit(files, shards: int, tmp_path: Path) -> None:
    paths, wanted = files
    manifest, kept = cut(paths, shards, tmp_path / "out")
    assert (len(manifest.shards), manifest.rows, kept) == (shards, 237, 0)
    sizes = [len(part.rows) for part in manifest.shards]
    assert max(sizes) - min(sizes) <= 1
    for name, values in wanted.items():
        found = gathered(manifest, name)
        if name == "text":
            assert found.tolist() == values.tolist()
        else:
            assert found.dtype == values.dtype
            assert found.tobytes() == values.tobytes(), name


def test_types_attributes_filters_and_chunks_stay(files, tmp_path: Path) -> None:
    manifest, _ = cut(files[0], 3, tmp_path / "out")
    with h5py.File(files[0][0]) as source, h5py.File(manifest.files[2]) as target:
        for name in manifest.datasets:
            old, new = source[name], target[name]
            assert new.id.get_type().equal(old.id.get_type()), name
            assert (new.chunks, new.compression, new.shuffle, new.fletcher32) == (
                old.chunks, old.compression, old.shuffle, old.fletcher32,
            )  # fmt: skip
            assert (new.maxshape[0] is None) == (old.maxshape[0] is None)
        assert target["x/half"].shape == (len(manifest.shards[2].rows), 3)
        assert h5py.check_enum_dtype(target["pet"].dtype) == {"cat": 0, "dog": 5}
        assert target.attrs["title"] == "a run"
        assert target["x"].attrs["unit"].dtype == np.dtype(">f8")
        assert target["x/big"].attrs["scale_factor"] == 0.5
        assert "of" not in target["x/big"].attrs, "a reference means nothing in another file"
        assert target["stats/mean"][:].tolist() == [0, 1, 2]
        assert target["stats"].attrs["note"] == "of all rows"
    assert manifest.copied == ("stats/mean",)
    assert set(manifest.left_out) == {"link", "refs", "where"}
    assert "references" in manifest.left_out["refs"]
    assert str(files[0][1]) in manifest.left_out["where"], "says which file differs"
    assert manifest.datasets["x/big"].shape == (237, 3)
    assert manifest.datasets["x/half"].chunk_rows == 16


def test_hpctrain_reads_a_folder_of_shards_as_it_reads_the_files(files, tmp_path: Path) -> None:
    manifest, _ = cut(files[0], 4, tmp_path / "out")
    whole = Hdf5Source([str(path) for path in files[0]], "x/half", "y").read(0, 237)
    shards = Hdf5Source(manifest.files, "x/half", "y").read(0, 237)
    for one, other in zip(whole, shards, strict=True):
        assert np.array_equal(one, other)


def test_whole_chunks_are_copied_as_they_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 9, (1000, 6)).astype("i2")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", (1000, 6), "i2", chunks=(10, 4), compression="gzip", fillvalue=7)
        made[:300], made[500:] = values[:300], values[500:]  # chunks between were never written
    values[300:500] = 7
    decoded: list[int] = []
    read = write.read_rows
    monkeypatch.setattr(write, "read_rows", lambda data, lo, hi: decoded.append(hi - lo) or read(data, lo, hi))
    manifest, _ = cut([tmp_path / "a.h5"], 5, tmp_path / "out")
    assert decoded == []
    assert [len(part.rows) for part in manifest.shards] == [200] * 5
    assert np.array_equal(gathered(manifest, "x"), values)
    with h5py.File(tmp_path / "a.h5") as source, h5py.File(manifest.files[4]) as target:
        assert target["x"].id.read_direct_chunk((190, 4)) == source["x"].id.read_direct_chunk((990, 4))


def test_blocks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(4000.0).reshape(1000, 4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
    monkeypatch.setattr(write, "BLOCK_BYTES", 1 << 10)
    read, sizes = write.read_rows, []
    monkeypatch.setattr(write, "read_rows", lambda data, lo, hi: sizes.append(hi - lo) or read(data, lo, hi))
    manifest, _ = cut([tmp_path / "a.h5"], 2, tmp_path / "out")
    assert max(sizes) * 32 <= 1 << 10
    assert np.array_equal(gathered(manifest, "x"), values)


@pytest.mark.parametrize("shards", [2, 3])
def test_numbers_that_a_filter_has_rounded_are_not_rounded_again(shards: int, tmp_path: Path) -> None:
    """Two shards of 20 rows are whole chunks of 10; three are not, and are written without the filter that rounds."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=rng.normal(size=(40, 2)), chunks=(10, 2), scaleoffset=2, shuffle=True)
        file.create_dataset("n", data=rng.integers(0, 99, 40), chunks=(10,), scaleoffset=0)
        stored = file["x"][:]
    manifest, _ = cut([tmp_path / "a.h5"], shards, tmp_path / "out")
    assert gathered(manifest, "x").tobytes() == stored.tobytes()
    with h5py.File(manifest.files[1]) as file:
        assert (file["x"].scaleoffset is None) == (shards == 3)
        assert file["n"].scaleoffset is not None, "whole numbers are kept exactly"


def test_scales_external_files_and_compact_datasets(tmp_path: Path) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["time"], file["lat"] = np.arange(9.0), np.arange(4.0)
        file["v"] = np.arange(36.0).reshape(9, 4)
        for axis, name in enumerate(("time", "lat")):
            file[name].make_scale(name)
            file["v"].dims[axis].attach_scale(file[name])
        file.create_dataset("outside", (9,), "f8", external=[(str(tmp_path / "x.bin"), 0, h5py.h5f.UNLIMITED)])
        h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((9,)), properties)
        file["outside"][:], file["compact"][:] = np.arange(9.0), np.arange(9)
        file["type"] = np.dtype([("a", "f4")])
        file.create_dataset("record", (9,), dtype=file["type"])
    manifest, _ = cut([tmp_path / "a.h5"], 2, tmp_path / "out")
    assert set(manifest.datasets) == {"time", "v", "outside", "compact", "record"}
    assert manifest.copied == ("lat",)
    for name in ("time", "outside", "compact"):
        assert gathered(manifest, name).tolist() == list(range(9))
    with h5py.File(manifest.files[0]) as file:
        assert file["v"].attrs.get("DIMENSION_LIST") is None
        assert file["time"].attrs["CLASS"] == b"DIMENSION_SCALE"


def test_what_is_there_is_kept_and_what_is_damaged_is_replaced(files, tmp_path: Path) -> None:
    first, _ = cut(files[0], 5, tmp_path / "out")
    assert cut(files[0], 5, tmp_path / "out") == (first, 5)
    content = bytearray(first.path(1).read_bytes())
    content[len(content) // 2] ^= 64
    first.path(1).write_bytes(content)
    first.path(3).unlink()
    again, kept = cut(files[0], 5, tmp_path / "out")
    assert kept == 3
    assert again == first, "the same rows give the same bytes"
    for index in range(5):
        again.verify(index)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        [part.file for part in again.shards] + ["manifest.json"]
    )


def test_an_interrupted_run_goes_on(files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = cut(files[0], 4, tmp_path / "whole")
    real = write.write_shard

    def fails_at_2(planned: plan.Plan, index: int, progress) -> None:
        if index == 2:
            raise KeyboardInterrupt
        real(planned, index, progress)

    monkeypatch.setattr(write, "write_shard", fails_at_2)
    with pytest.raises(KeyboardInterrupt):
        cut(files[0], 4, tmp_path / "out")
    with pytest.raises(UserError, match=r"no manifest.json[\s\S]*start it again"):
        Manifest.load(tmp_path / "out")
    monkeypatch.setattr(write, "write_shard", real)
    manifest, kept = cut(files[0], 4, tmp_path / "out")
    assert kept == 2
    assert manifest.shards == whole.shards


def test_another_data_set_in_the_folder_is_refused(files, tmp_path: Path) -> None:
    cut(files[0], 4, tmp_path / "out")
    for paths, shards, said in ((files[0], 5, "row ranges"), (files[0][:2], 4, "row ranges"), (files[0][::-1], 4, "")):
        with pytest.raises(UserError, match=f"holds the shards of another data set[\\s\\S]*{said}"):
            cut(paths, shards, tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.h5").write_bytes(b"0")
    with pytest.raises(UserError, match=r"holds other HDF5 files[\s\S]*mine.h5"):
        cut(files[0], 4, tmp_path / "other")
    with pytest.raises(UserError, match="--out is the folder of a file"):
        cut(files[0], 4, files[0][0].parent)


def test_empty_files_give_no_rows(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.ones((3, 2), "f4"), [1, 2, 0]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"], file["y"] = h5py.Empty("f8"), h5py.Empty("i4")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["x"], file["y"] = np.ones((0, 2)), np.ones(0)
    manifest, _ = cut([tmp_path / name for name in ("b.h5", "a.h5", "c.h5")], 3, tmp_path / "out")
    assert manifest.rows == 3
    assert gathered(manifest, "y").tolist() == [1, 2, 0]
    assert gathered(manifest, "x").dtype == np.float32


def test_virtual_datasets_become_real_ones(tmp_path: Path) -> None:
    values = np.arange(24.0).reshape(12, 2)
    view = h5py.VirtualLayout((12, 2), "f8")
    for i in range(3):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["x"] = values[4 * i : 4 * i + 4]
        view[4 * i : 4 * i + 4] = h5py.VirtualSource(str(tmp_path / f"{i}.h5"), "x", (4, 2))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("x", view)
    manifest, _ = cut([tmp_path / "all.h5"], 2, tmp_path / "out")
    assert np.array_equal(gathered(manifest, "x"), values)
    with h5py.File(manifest.files[0]) as file:
        assert not file["x"].is_virtual
    (tmp_path / "1.h5").unlink()
    with pytest.raises(UserError, match="a file that it takes its rows from is missing"):
        cut([tmp_path / "all.h5"], 3, tmp_path / "again")


def test_the_rows_that_count_can_be_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["large"], file["small"], file["y"] = np.zeros((4, 100)), np.arange(6.0), np.arange(6)
    manifest, _ = cut([tmp_path / "a.h5"], 2, tmp_path / "out", along="small")
    assert list(manifest.datasets) == ["small", "y"]
    assert manifest.copied == ("large",)
    assert gathered(manifest, "y").tolist() == list(range(6))
    assert cut([tmp_path / "a.h5"], 2, tmp_path / "b")[0].rows == 4
    with pytest.raises(UserError, match=r"--along 'smal'[\s\S]*did you mean 'small'"):
        cut([tmp_path / "a.h5"], 2, tmp_path / "c", along="smal")


@pytest.mark.parametrize("shuffle", ["global", "none"])
def test_training_on_shards_is_training_on_the_file(shuffle: str, tmp_path: Path) -> None:
    cut([write_classes(tmp_path / "whole.h5", rows=200)], 7, tmp_path / "shards")
    weights = []
    for files in ("whole.h5", "shards"):
        job = job_for(tmp_path / files, data={"shuffle": shuffle, "split": {"test": 0.2}}, run={"progress": "none"})
        result = train(job, run_dir=tmp_path / f"run-{files}", group=SingleGroup())
        assert result.summary["examples_per_epoch"] == 160
        weights.append(result.summary["weights_sha256"])
    assert weights[0] == weights[1]


@pytest.mark.parametrize("rows", [10, 101, 5000, 12_345])
@pytest.mark.parametrize("chunk", [None, 1, 7, 100])
@pytest.mark.parametrize("shards", [1, 3, 8])
def test_cuts_are_even_and_at_chunks_where_there_are_enough(rows: int, chunk: int | None, shards: int) -> None:
    data = layout.CutDataset("x", (rows,), (2,), "float32", 0, 8, chunk)
    source = layout.SourceFile("/a.h5", 0, 0, rows)
    found = plan.plan(layout.Layout((source,), (data,), (), {}), shards, Path("/out"))
    sizes = np.diff(found.cuts)
    assert (found.cuts[0], found.cuts[-1], len(sizes)) == (0, rows, shards)
    assert sizes.max() - sizes.min() <= max(1, 0.1 * rows / shards)
    if chunk and rows >= 10 * shards * chunk:
        assert all(at % chunk == 0 for at in found.cuts[:-1])


def test_no_space_is_said_beforehand(files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100})())
    with pytest.raises(UserError, match=r"not enough space for the shards[\s\S]*0.00 GB free"):
        cut(files[0], 4, tmp_path / "out")


def test_the_report_says_what_became_of_each_dataset(files, tmp_path: Path) -> None:
    manifest, kept = cut(files[0], 4, tmp_path / "out")
    text = tool.report(manifest, kept)
    assert text.startswith(f"4 shards of 59 to 60 rows in {tmp_path / 'out'}: 237 rows, ")
    assert "x/big (237, 3) >f4" in text
    assert "copied whole  stats/mean" in text
    assert "refs: references" in text
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"] == 237
