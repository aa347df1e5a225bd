"""Values of fields: numbers of all kinds, text as categories, scale attributes, missing values."""

import h5py
import numpy as np
import pytest
from sources import refused, write

from hpctrain import train
from hpctrain.data.facts import DataFacts
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.job import Job
from hpctrain.run.master import resolve

ROWS = 7


@pytest.fixture
def random():
    return np.random.default_rng(0)


class TestTypes:
    @pytest.mark.parametrize(
        "dtype", ["i1", "u1", "<i2", ">i2", "u4", ">i8", "u8", "f2", ">f2", ">f4", "<f8", ">f8", "?", "g"]
    )
    def test_numbers_of_all_kinds(self, tmp_path, dtype):
        values = (np.arange(2 * ROWS).reshape(ROWS, 2) % 2).astype(dtype)
        path = write(tmp_path / "a.h5", x=values, y=np.arange(ROWS))
        assert np.array_equal(Hdf5Source([path], "x", "y").read(1, 6)[0], values[1:6].astype("f4"))
        if np.dtype(dtype).kind in "iub":
            target = Hdf5Source([path], "y", "x")
            assert target.target_kind == "class"
            assert np.array_equal(target.read(1, 6)[1], values[1:6])

    @pytest.mark.parametrize("base", ["i1", "i8"])
    def test_enumerations_are_their_numbers(self, tmp_path, base):
        kind = h5py.enum_dtype({"cat": 0, "dog": 1, "fox": 4}, base)
        path = write(tmp_path / "a.h5", x=np.zeros(4), y={"data": np.array([4, 0, 1, 4], base), "dtype": kind})
        source = Hdf5Source([path], "x", "y")
        assert source.read(0, 4)[1].tolist() == [4, 0, 1, 4]
        assert np.array_equal(Hdf5Source([path], "y", "y").read(0, 4)[0].ravel(), [4, 0, 1, 4])

    @pytest.mark.parametrize("kind", ["S", "variable", "utf8"])
    def test_text_is_categories(self, tmp_path, kind):
        values = ["green", "blå" if kind == "utf8" else "blue", "red", "green"]
        stored = {"data": values, "dtype": h5py.string_dtype()} if kind != "S" else np.array(values, "S")
        a = write(tmp_path / "a.h5", x=np.zeros(4), y=stored)
        b = write(tmp_path / "b.h5", x=np.zeros(2), y=np.array(["amber", values[1]], h5py.string_dtype()))
        source = Hdf5Source([a, b], "x", "y")
        assert source.categories == {"target": {"y": ["amber", values[1], "green", "red"]}}
        assert source.read(0, 6)[1].tolist() == [2, 1, 3, 2, 0, 1]
        facts = DataFacts.collect(source)
        assert (facts.classes, facts.categories) == (4, source.categories)
        inputs = Hdf5Source([a, b], ["y", "x"], "x")
        assert inputs.read(0, 6)[0].tolist() == [[2, 0], [1, 0], [3, 0], [2, 0], [0, 0], [1, 0]]
        assert inputs.categories == {"input": {"y": ["amber", values[1], "green", "red"]}}
        assert source.fingerprint() != Hdf5Source([a], "x", "y").fingerprint()

    def test_another_file_takes_the_categories_of_the_training(self, tmp_path):
        a = Hdf5Source([write(tmp_path / "a.h5", x=np.zeros(3), y=np.array([b"b", b"c", b"a"]))], "x", "y")
        path = write(tmp_path / "b.h5", x=np.zeros(2), y=np.array([b"c", b"c"]))
        assert Hdf5Source([path], "x", "y", categories=a.categories).read(0, 2)[1].tolist() == [2, 2]
        other = write(tmp_path / "c.h5", x=np.zeros(3), y=np.array([b"c", b"cat", b"b"]))
        source = Hdf5Source([other], "x", "y", categories=a.categories)
        message = refused("a category that the training files do not have: row 1 of '/y' in", source.read, 0, 3)
        assert "'cat'" in message
        assert "'a', 'b', 'c'" in message

    def test_text_that_is_no_category(self, tmp_path):
        names = np.array([f"name {i}" for i in range(70_000)], "S")
        path = write(tmp_path / "a.h5", x=names, y=np.zeros(70_000, int), w=names)
        refused("too many distinct values", Hdf5Source, [path], "x", "y")
        refused("data.weight = 'w' is text", Hdf5Source, [path], "y", "y", weight="w")
        path = write(tmp_path / "b.h5", x=np.zeros(2), y=np.array([b"a", b"b"]))
        refused("text is a class label, but the loss", Hdf5Source, [path], "x", "y", "real")


class TestScaling:
    PACKED = {"scale_factor": 0.1, "add_offset": 273.15, "_FillValue": np.int16(-999)}

    def test_the_cf_conventions(self, tmp_path):
        stored = np.array([[0, 100], [-999, 7], [30000, -30000]], "i2")
        path = write(tmp_path / "a.h5", {"x": self.PACKED}, x=stored, y=np.zeros(3, int))
        inputs = Hdf5Source([path], "x", "y").read(0, 3)[0]
        expected = stored * np.float64(0.1) + 273.15
        assert np.array_equal(inputs, np.where(stored == -999, np.nan, expected).astype("f4"), equal_nan=True)
        target = Hdf5Source([path], "y", "x")
        assert target.target_kind == "real"

    def test_each_file_has_its_own(self, tmp_path):
        stored = np.arange(4, dtype="u1")
        paths = [
            write(tmp_path / f"{i}.h5", {"x": {"scale_factor": [factor]}}, x=stored, y=np.zeros(4, int))
            for i, factor in enumerate((0.5, 2.0))
        ]
        inputs = Hdf5Source(paths, "x", "y").read(0, 8)[0]
        assert inputs.ravel().tolist() == [0, 0.5, 1, 1.5, 0, 2, 4, 6]

    def test_fill_values_of_floats_are_compared_as_stored(self, tmp_path):
        x = np.array([1, 1e20, 3], "f4")
        attributes = {"x": {"missing_value": 1e20, "_FillValue": np.float32(np.nan)}}
        path = write(tmp_path / "a.h5", attributes, x=x, y=np.zeros(3, int))
        assert np.isnan(Hdf5Source([path], "x", "y").read(0, 3)[0].ravel()).tolist() == [False, True, False]

    def test_a_missing_label(self, tmp_path):
        y = np.array([0, 255, 2, 1], "u1")
        path = write(tmp_path / "a.h5", {"y": {"_FillValue": np.uint8(255)}}, x=np.zeros(4), y=y)
        source = Hdf5Source([path], "x", "y")
        for action, args in ((DataFacts.collect, (source,)), (source.check_values, (*source.read(0, 4), 0))):
            assert "_FillValue" in refused("a class label is missing: row 1 of 'y'", action, *args)
        dropping = Hdf5Source([path], "x", "y", missing="drop")
        _, targets, weight = dropping.read(0, 4)
        assert weight.ravel().tolist() == [1, 0, 1, 1]
        assert targets[[0, 2, 3]].tolist() == [0, 2, 1]
        assert DataFacts.collect(dropping).classes == 3
        assert np.flatnonzero(dropping.dropped(0, 4)).tolist() == [1]

    @pytest.mark.parametrize(
        ("value", "words"),
        [("0.1", "is no number"), ([1.0, 2.0], "has several numbers"), (h5py.Empty("f4"), "no number")],
    )
    def test_attributes_that_are_no_number(self, tmp_path, value, words):
        path = write(tmp_path / "a.h5", {"x": {"scale_factor": value}}, x=np.zeros(3), y=np.zeros(3, int))
        assert "scale_factor" in refused(words, Hdf5Source, [path], "x", "y")


class TestMissing:
    def tables(self, random):
        x, y = random.normal(size=(ROWS, 3)), random.normal(size=(ROWS, 2))
        x[1, 2] = x[4, 0] = y[4, 1] = y[6, 0] = np.nan
        return x, y

    def test_dropped(self, tmp_path, random):
        x, y = self.tables(random)
        path = write(tmp_path / "a.h5", x=x, y=y, w=np.full(ROWS, 2.0), m=~np.isnan(y))
        source = Hdf5Source([path], "x", "y", missing="drop")
        inputs, targets, weight = source.read(0, ROWS)
        assert weight.ravel().tolist() == [1, 0, 1, 1, 0, 1, 0]
        assert np.array_equal(inputs, np.nan_to_num(x).astype("f4"))
        source.check_values(inputs, targets, weight, 0)
        source.read(3, ROWS)
        assert np.flatnonzero(source.dropped(0, ROWS)).tolist() == [1, 4, 6], (
            "rows that are read again do not count again"
        )
        assert Hdf5Source([path], "x", "y", missing="drop", weight="w").read(0, ROWS)[2].ravel().tolist() == [
            2 * value for value in (1, 0, 1, 1, 0, 1, 0)
        ]
        masked = Hdf5Source([path], "x", "y", missing="drop", mask="m")
        assert masked.read(0, ROWS)[2].tolist() == (~np.isnan(y) & ~np.isnan(x).any(1)[:, None]).tolist()
        assert source.dropped(3, 5).tolist() == [False, True]
        assert masked.dropped(0, ROWS).sum() == 2, "what does not count anyway may be missing"

    def test_replaced(self, tmp_path, random):
        x, y = self.tables(random)
        source = Hdf5Source([write(tmp_path / "a.h5", x=x, y=y)], "x", "y", missing=-1.5)
        inputs, targets, weight = source.read(0, ROWS)
        assert np.array_equal(inputs, np.where(np.isnan(x), -1.5, x).astype("f4"))
        assert np.array_equal(targets, np.where(np.isnan(y), -1.5, y).astype("f4"))
        assert weight.shape == (ROWS, 0)

    def test_a_run_says_how_many_do_not_count(self, tmp_path, random, capsys):
        x, y = self.tables(random)
        job = {
            "data": {"files": write(tmp_path / "a.h5", x=x, y=y), "input": "x", "target": "y", "missing": "drop"},
            "model": {"layers": [{"type": "dense", "units": 2}]},
            "run": {"epochs": 1, "progress": "lines"},
        }
        job["data"]["split"] = {"index": {"train": "train", "validation": "rest"}}
        job["data"]["files"] = write(tmp_path / "a.h5", x=x, y=y, train=[0, 1, 2, 4, 5], rest=[3, 6])
        assert train(job, run_dir=tmp_path / "run").summary["examples_per_epoch"] == 5
        said = capsys.readouterr().out
        assert '(data.missing = "drop"): 2 training, 1 validation examples' in said
        assert "5 training (2 dropped), 2 validation (1 dropped) examples" in said

    @pytest.mark.parametrize(("loss", "words"), [(None, True), ("mse", True), ("poisson", False)])
    def test_small_whole_numbers_as_real_targets_are_a_hint(self, tmp_path, loss, words):
        y, years = np.array([0.0, 2.0, 1.0]), np.array([1999.0, 2000, 2001])
        path = write(tmp_path / "a.h5", x=np.zeros(3), y=y, z=np.array([0.5, 1.0, 2.0]), years=years)
        for target, hinted in (("y", words), ("z", False), ("years", False)):
            said = resolve(Job(data={"files": path, "input": "x", "target": target}, loss=loss)).notes
            assert any("store them as integers to classify" in line for line in said) == hinted

    def test_infinity_stays_an_error(self, tmp_path):
        x = np.zeros((3, 2))
        x[2, 1] = np.inf
        path = write(tmp_path / "a.h5", x=x, y=np.zeros(3, int))
        for missing in ("drop", 0.0):
            source = Hdf5Source([path], "x", "y", missing=missing)
            refused("infinite number(.|\n)*row 2|row 2(.|\n)*infinite", source.check_values, *source.read(0, 3), 0)

    def test_the_error_says_what_else_there_is(self, tmp_path, random):
        x, y = self.tables(random)
        source = Hdf5Source([write(tmp_path / "a.h5", x=x, y=y)], "x", "y")
        assert 'data.missing = "drop"' in refused("row 1 of 'x'", source.check_values, *source.read(0, ROWS), 0)
