"""The verb `inspect`: its numbers are numpy's, what is large is sampled and said to be, and pipes get plain text."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from rich.console import Console
from wild import NAMES, files_of

from hpctrain.errors import UserError
from hpctrain.tools import inspect as tool
from hpctrain.tools.inspecting import contents, report, values
from hpctrain.tools.inspecting.contents import look
from hpctrain.tools.inspecting.values import Limits, Summary, summarise


def entry_of(path: Path, name: str, *others: Path) -> contents.Entry:
    (files,) = look([str(path), *map(str, others)])
    found = files.entry(name)
    assert found is not None
    return found


def shown(paths: list[Path], **options: object) -> str:
    stream = io.StringIO()
    tool.inspect([str(path) for path in paths], console=report.open_console(stream, {}), **options)
    return stream.getvalue()


def as_json(paths: list[Path], capsys: pytest.CaptureFixture, **options: object) -> dict:
    tool.inspect([str(path) for path in paths], json=True, **options)
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A table with a mean far from zero, missing and infinite values."""
    rng = np.random.default_rng(0)
    table = 1e6 + rng.normal(size=(5000, 4)) * [1, 2, 3, 4]
    table[17, 1], table[4000, 1], table[5, 3] = np.nan, np.nan, np.inf
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=table, chunks=(100, 4), compression="gzip", compression_opts=3, shuffle=True)
    return tmp_path / "a.h5", table


def test_statistics_are_those_of_numpy(table: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_BLOCK_BYTES", 10_000)  # many blocks to merge
    path, wanted = table
    found = summarise(entry_of(path, "x"), Limits(), by_column=True)
    for name, column in [("", wanted), *((f"[:, {i}]", wanted[:, i]) for i in range(4))]:
        good = column[np.isfinite(column)]
        one = found[name]
        assert (one.read, one.total) == (column.size, column.size)
        assert (one.missing, one.infinite) == (np.isnan(column).sum(), np.isinf(column).sum())
        assert (one.minimum, one.maximum) == (good.min(), good.max())
        assert one.mean == pytest.approx(good.mean(), rel=1e-14)
        assert one.deviation == pytest.approx(good.std(), rel=1e-9)
        assert not one.whole
        assert one.classes is None
    one = found["[:, 2]"]
    assert one.histogram == tuple(np.histogram(wanted[:, 2], 16)[0])


@pytest.mark.parametrize("dtype", ["u1", ">i4", "?", "f4"])
def test_classes_are_counted(tmp_path: Path, dtype: str) -> None:
    labels = np.random.default_rng(1).integers(0, 2 if dtype == "?" else 5, 1000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"] = labels.astype(dtype)
    one = summarise(entry_of(tmp_path / "a.h5", "y"), Limits())[""]
    assert one.classes == dict(enumerate(np.bincount(labels).tolist()))
    assert one.whole


def test_whole_numbers_with_many_values_are_no_classes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["ids"], file["real"] = np.arange(1000), np.arange(100) / 8
    assert summarise(entry_of(tmp_path / "a.h5", "ids"), Limits())[""].classes is None
    assert summarise(entry_of(tmp_path / "a.h5", "ids"), Limits())[""].whole
    assert not summarise(entry_of(tmp_path / "a.h5", "real"), Limits())[""].whole


def test_packed_values_are_unpacked_and_fill_values_are_missing(tmp_path: Path) -> None:
    stored = np.array([[1, 2], [-999, 4], [5, -1]], "i2")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"] = stored
        file["t"].attrs["scale_factor"], file["t"].attrs["add_offset"] = 0.5, 10.0
        file["t"].attrs["_FillValue"], file["t"].attrs["missing_value"] = np.int16(-999), np.int16(-1)
    one = summarise(entry_of(tmp_path / "a.h5", "t"), Limits())[""]
    good = np.array([1, 2, 4, 5]) * 0.5 + 10
    assert (one.missing, one.minimum, one.maximum) == (2, good.min(), good.max())
    assert (one.mean, one.deviation) == (good.mean(), pytest.approx(good.std()))


def test_texts_records_and_enumerations(tmp_path: Path) -> None:
    record = np.zeros(10, [("a", "f4"), ("b", "i2"), ("name", "S2")])
    record["a"], record["b"] = np.arange(10), [0, 1] * 5
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["record"] = record
        file["text"] = np.array(["x", "y", "x", "x"], object)
        file.create_dataset("pet", data=[0, 5, 5], dtype=h5py.enum_dtype({"cat": 0, "dog": 5}, "i1"))
        file.create_dataset("none", data=h5py.Empty("f4"))
        file["refs"] = file["record"].ref
    path = tmp_path / "a.h5"
    found = summarise(entry_of(path, "record"), Limits())
    assert list(found) == [".a", ".b", ".name"]
    assert (found[".name"].distinct, found[".name"].classes) == (1, {"": 10})
    assert (found[".a"].mean, found[".b"].classes) == (4.5, {0: 5, 1: 5})
    text = summarise(entry_of(path, "text"), Limits())[""]
    assert (text.distinct, text.classes) == (2, {"x": 3, "y": 1})
    assert summarise(entry_of(path, "refs"), Limits())[""].problem == "no numbers"
    assert summarise(entry_of(path, "none"), Limits())[""].read == 0
    out = shown([path])
    assert "cat: 33.3%, dog: 66.7%" in out
    assert "'x': 75.0%, 'y': 25.0%" in out
    assert "empty dataspace" in out
    assert "records (a, b, name)" in out


def test_what_is_large_is_sampled_evenly_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.repeat(np.arange(1000, dtype="f8"), 10).reshape(1000, 10)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = rows
    monkeypatch.setattr(values, "_BLOCK_BYTES", 800)  # ten rows
    one = summarise(entry_of(tmp_path / "a.h5", "x"), Limits(budget_bytes=8000))[""]
    assert (one.read, one.total, one.sampled) == (1000, 10_000, True)
    assert one.mean == pytest.approx(rows.mean(), rel=0.1), "from all over the file, not its beginning"
    assert one.maximum > 900
    whole = summarise(entry_of(tmp_path / "a.h5", "x"), Limits(None))[""]
    assert (whole.read, whole.mean) == (10_000, rows.mean())
    over = summarise(entry_of(tmp_path / "a.h5", "x"), Limits(end_s=0.0))[""]
    assert over.read == 100, "when the time is up, one block is looked at all the same"
    text = "\n".join(shown([tmp_path / "a.h5"], time_s=-1.0).splitlines())
    assert "~ of a sample" in text
    assert "~ of a sample" not in shown([tmp_path / "a.h5"], everything=True)


def test_only_blocks_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape=(100_000, 10), dtype="f4", chunks=(1000, 10))
    sizes: list[int] = []
    real = values._Accumulator.add
    monkeypatch.setattr(values._Accumulator, "add", lambda self, block: sizes.append(block.nbytes) or real(self, block))
    monkeypatch.setattr(values, "_BLOCK_BYTES", 100_000)
    summarise(entry_of(tmp_path / "a.h5", "x"), Limits(None))
    assert max(sizes) <= 100_000
    assert sum(sizes) == 4_000_000


@pytest.mark.parametrize("chunks", [None, (2, 3, 20)])
def test_rows_larger_than_a_block_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: tuple | None
) -> None:
    volume = np.random.default_rng(0).normal(size=(5, 20, 40))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=volume, chunks=chunks)
    monkeypatch.setattr(values, "_BLOCK_BYTES", 2000)
    entry, sizes = entry_of(tmp_path / "a.h5", "x"), []
    whole = summarise(entry, Limits(None, progress=sizes.append))[""]
    assert max(sizes) <= 2000
    assert (whole.read, whole.minimum, whole.maximum) == (4000, volume.min(), volume.max())
    assert whole.mean == pytest.approx(volume.mean(), rel=1e-12)
    assert len(values.sample(entry, 2048)) == 1, "a sample is of whole rows, and small"


def test_a_sample_is_of_rows_from_all_over(tmp_path: Path) -> None:
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(10_000.0)[:, None] + [0, 0.5]
    entry = entry_of(tmp_path / "a.h5", "x", tmp_path / "b.h5")
    found = values.sample(entry, 100)
    assert 50 <= len(found) <= 100
    assert np.all(found[:, 1] == found[:, 0] + 0.5)
    assert found.min() == 0
    assert found[:, 0].max() == 9999
    assert len(values.sample(entry, 10**6)) == 20_000


def test_a_chunk_too_large_to_decode_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.ones((100, 10)), chunks=(100, 10))
    monkeypatch.setattr(values, "_LARGEST_CHUNK", 4000)
    one = summarise(entry_of(tmp_path / "a.h5", "x"), Limits())[""]
    assert (one.read, one.total) == (0, 1000)
    assert "too large" in one.problem


def test_storage_is_told(table: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture) -> None:
    path, wanted = table
    content = as_json([path], capsys)
    (data,) = content["files"][0]["datasets"]
    with h5py.File(path) as file:
        assert data["stored_bytes"] == file["x"].id.get_storage_size()
    assert data["raw_bytes"] == wanted.nbytes
    assert (data["shapes"], data["type"], data["chunks"]) == ([[5000, 4]], "float64", [100, 4])
    assert [(step["name"], step["level"], step["installed"]) for step in data["filters"]] == [
        ("shuffle", None, True),
        ("gzip", 3, True),
    ]
    assert data["values"]["all"]["mean"] == pytest.approx(np.nanmean(wanted[np.isfinite(wanted)]))
    out = shown([path])
    for word in ("x", "(5000, 4)", "float64", "100x4", "shuffle, gzip 3", "0.01%", "1 infinite"):
        assert word in out, word


def test_a_missing_filter_is_told_and_the_rest_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.ones((10, 2)), chunks=(5, 2), compression="gzip")
        file["y"] = np.arange(10) % 2
    monkeypatch.setattr(contents, "is_available", lambda code: code != 1)
    out = shown([tmp_path / "a.h5"])
    assert "not read: gzip 4 (not installed)" in out
    assert "0: 50.0%, 1: 50.0%" in out
    assert "no inputs with targets" in out


def test_a_virtual_dataset_without_its_source_is_not_shown_as_zeros(tmp_path: Path) -> None:
    paths = files_of("virtual", tmp_path)
    (tmp_path / "part-1.h5").unlink()
    out = shown(paths)
    assert "not read: 'part-1.h5' is not there" in out
    assert "no inputs with targets" in out


def test_files_and_groups_that_are_alike_are_taken_together(tmp_path: Path) -> None:
    def files(name: str) -> list[str]:
        (tmp_path / name).mkdir()
        return [str(path) for path in files_of(name, tmp_path / name)]

    (jets,) = look(files("jets"))
    assert jets.entry("jets").rows == (100, 100, 37)
    assert report.shape(jets.entry("jets")) == "(100 + 100 + 37, 59)"
    (groups,) = look(files("group_each"))
    names = [entry.name for entry in groups.entries]
    assert names == ["sample_*/angle", "sample_*/energy", "sample_*/image", "sample_*/label"]
    assert groups.entry("sample_*/image").count == 24
    assert [len(one.files) for one in look(files("file_each"))] == [8, 1]
    (empty,) = look(files("empty_shards"))
    assert empty.entry("x").rows == (0, 20, 0, 13)


def test_of_very_many_files_some_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    for number in range(20):
        paths.append(str(tmp_path / f"{number:02d}.h5"))
        with h5py.File(paths[-1], "w") as file:
            file["x"] = np.full((4, 4), float(number))
    monkeypatch.setattr(contents, "LOOKED_AT", 5)
    (files,) = look(paths)
    assert (list(files.files), files.looked, files.entry("x").count) == (paths, 5, 20)
    assert "5 of them looked at" in report.title(files)
    one = summarise(files.entry("x"), Limits())[""]
    assert (one.minimum, one.maximum, one.read, one.total) == (0, 19, 80, 320)
    (files,) = look(paths, everything=True)
    assert (files.looked, summarise(files.entry("x"), Limits(None))[""].read) == (20, 320)


def test_of_very_many_groups_some_are_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(50):
            file[f"s_{number}/x"] = np.full(3, float(number))
        file["other"] = np.arange(4.0)
        for number in range(12):
            file[f"set_{number}"] = h5py.SoftLink("/other")
    monkeypatch.setattr(contents, "LOOKED_AT", 10)
    (files,) = look([str(tmp_path / "a.h5")])
    assert [(entry.name, entry.count, len(entry.places)) for entry in files.entries] == [
        ("other", 1, 1),
        ("s_*/x", 50, 10),
    ]
    assert len(files.links) == 12
    (files,) = look([str(tmp_path / "a.h5")], everything=True)
    assert len(files.entry("s_*/x").places) == 50


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 100])
def test_blocks_come_in_an_order_that_is_spread_from_the_beginning(count: int) -> None:
    order = list(values._scattered(count))
    assert sorted(order) == list(range(count))
    for taken in range(2, count):
        gaps = np.diff([-1, *sorted(order[:taken]), count])
        assert gaps.max() <= 4 * count / taken + 1


def test_links_are_named_and_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = [1.0]
        file["soft"], file["outside"] = h5py.SoftLink("/x"), h5py.ExternalLink("no.h5", "/y")
        file["loop"] = file["/"]
    out = shown([tmp_path / "a.h5"])
    assert "soft is a link to /x" in out
    assert "outside is a link to /y in no.h5" in out
    assert "loop" not in out


@pytest.mark.parametrize("layout", NAMES)
def test_every_layout_is_shown_with_a_data_section(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    paths = files_of(layout, tmp_path)
    out = shown(paths)
    assert "\n[data]\nfiles = " in out
    assert max(map(len, out.partition("[data]")[0].splitlines())) <= max(report.PLAIN_WIDTH, len(str(tmp_path)) + 80)
    content = as_json(paths, capsys)
    assert content["data_section"].startswith("[data]\n")
    assert all(math.isfinite(number) for number in _numbers(content))


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
    elif isinstance(value, float):
        yield value


def test_colours_are_for_terminals_alone(tmp_path: Path) -> None:
    path = files_of("half_precision", tmp_path)[0]
    assert "\x1b" not in shown([path])
    stream = io.StringIO()
    tool.inspect([str(path)], console=Console(file=stream, force_terminal=True, color_system="truecolor", width=100))
    assert "\x1b[" in stream.getvalue()


def test_what_is_no_hdf5_is_refused_with_code_2(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "text.h5").write_text("hello world")
    (tmp_path / "empty.h5").write_bytes(b"")
    for name, said in (("text.h5", "not an HDF5 file"), ("empty.h5", "empty"), ("gone.h5", "not found")):
        assert tool.command([str(tmp_path / name)], False, False, False) == 2
        assert said in capsys.readouterr().err
    with h5py.File(tmp_path / "nothing.h5", "w"):
        pass
    out = shown([tmp_path / "nothing.h5"])
    assert "no datasets" in out
    assert "no inputs with targets were found" in out


def test_bars_and_numbers() -> None:
    assert report.bars(Summary(histogram=(0, 1, 4, 8))) == " ▁▄█"
    assert report.number(float("nan")) == "-"
    assert report.number(1234567.0, whole=True) == "1234567"
    assert report.number(0.000123456) == "0.0001235"
    assert [report.file_size(size) for size in (999, 1500, 2.5e9)] == ["999 bytes", "1.5 kB", "2.5 GB"]


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = files_of("large_chunks", tmp_path)[0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match="cut off"):
        tool.inspect([str(path)])


def test_a_damaged_chunk_is_told_after_what_could_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "x", data=np.random.default_rng(0).normal(size=(900, 4)), chunks=(100, 4), compression="gzip"
        )
        file["y"] = np.arange(900) % 3
        place = file["x"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place : place + 400] = bytes(400)
    path.write_bytes(content)

    text = shown([path])

    assert "(900, 4)" in text
    assert "HDF5 cannot read" in text
