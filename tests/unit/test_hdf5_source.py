"""Files and sources: what is read is what was written, and every mistake has one clear message."""

import os

import h5py
import numpy as np
import pytest
from sources import refused, write

from hpctrain.data.facts import DataFacts
from hpctrain.data.files import expand
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.sharding import Split


def xy(rows=10, start=0):
    return np.arange(start, start + rows * 3, dtype=np.float32).reshape(rows, 3), np.arange(rows) % 4


class TestFiles:
    def test_a_path_a_list_and_a_glob_relative_to_the_job(self, tmp_path, monkeypatch):
        for name in ("b.h5", "a.h5", "c.hdf5"):
            write(tmp_path / name, x=[1.0])
        monkeypatch.chdir("/")
        assert expand("a.h5", tmp_path) == [str(tmp_path / "a.h5")]
        assert expand("*.h5", tmp_path) == [str(tmp_path / "a.h5"), str(tmp_path / "b.h5")]
        assert expand(["c.hdf5", "*.h5"], tmp_path) == [str(tmp_path / n) for n in ("c.hdf5", "a.h5", "b.h5")]
        assert expand([str(tmp_path / "b.h5")], tmp_path / "elsewhere") == [str(tmp_path / "b.h5")]
        write(tmp_path / "odd[1].h5", x=[1.0])
        assert expand("odd[1].h5", tmp_path) == [str(tmp_path / "odd[1].h5")]

    def test_what_is_not_a_readable_hdf5_file_is_refused(self, tmp_path):
        write(tmp_path / "train.h5", x=[1.0])
        assert "did you mean 'train.h5'" in refused("not found", expand, "trian.h5", tmp_path)
        assert "there is no folder" in refused("not found", expand, "no/such.h5", tmp_path)
        refused("no file matches", expand, "*.hdf", tmp_path)
        refused("names no file", expand, [], tmp_path)
        refused("twice", expand, ["train.h5", "*.h5"], tmp_path)
        (tmp_path / "empty.h5").touch()
        refused("0 bytes", expand, "empty.h5", tmp_path)
        (tmp_path / "text.h5").write_text("a,b\n1,2\n")
        assert "b'a,b" in refused("not an HDF5 file", expand, "text.h5", tmp_path)
        (tmp_path / "old.nc").write_bytes(b"CDF\x01" + bytes(20))
        assert "nccopy" in refused("not an HDF5 file", expand, "old.nc", tmp_path)
        assert "builtin:digits" in refused("built-in", expand, "builtin:digit", tmp_path)

    def test_a_file_without_permission_is_refused(self, tmp_path, monkeypatch):
        write(tmp_path / "secret.h5", x=[1.0])
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # chmod would not stop root
        refused("no permission", expand, "secret.h5", tmp_path)

    def test_a_truncated_file_is_refused(self, tmp_path):
        path = write(tmp_path / "cut.h5", x=np.zeros(10_000), y=np.zeros(10_000, int))
        os.truncate(path, os.path.getsize(path) // 2)
        refused("cut off", Hdf5Source, [path], "x", "y")

    def test_a_file_open_for_writing_is_refused(self, tmp_path):
        path = write(tmp_path / "busy.h5", x=np.zeros(4), y=np.zeros(4, int))
        with h5py.File(path, "a", locking=True):
            refused("open for writing|locked", Hdf5Source, [path], "x", "y")


class TestReading:
    @pytest.mark.parametrize("dtype", ["<f4", ">f4", "f2", "f8", "i1", "u1", ">i2", "u8", "?"])
    @pytest.mark.parametrize("options", [{}, {"chunks": (3, 2), "compression": "gzip"}])
    def test_all_number_types_become_float32(self, tmp_path, dtype, options):
        values = (np.arange(14).reshape(7, 2) % 5).astype(dtype)
        path = write(tmp_path / "a.h5", x={"data": values, **options}, y=np.arange(7, dtype=">i4"))
        source = Hdf5Source([path], "x", "/y")
        assert (len(source), source.input_shape, source.target_kind, source.target_width) == (7, (2,), "class", 1)
        inputs, targets, _ = source.read(2, 6)
        assert inputs.dtype == np.float32
        assert inputs.flags.c_contiguous
        assert np.array_equal(inputs, values[2:6].astype(np.float64))
        assert targets.dtype == np.int64
        assert targets.tolist() == [2, 3, 4, 5]

    def test_several_files_are_one_after_another(self, tmp_path):
        sizes = (4, 0, 1, 5)
        x, y = xy(10)
        cuts = np.cumsum((0, *sizes))
        paths = [
            write(tmp_path / f"{i}.h5", g__x=x[lo:hi], g__y=y[lo:hi])
            for i, (lo, hi) in enumerate(zip(cuts, cuts[1:], strict=False))
        ]
        with Hdf5Source(paths, "g/x", "g/y") as source:
            for lo, hi in [(0, 10), (3, 6), (5, 5), (4, 5), (9, 10)]:
                inputs, targets, weight = source.read(lo, hi)
                assert weight.shape == (hi - lo, 0)
                assert np.array_equal(inputs, x[lo:hi])
                assert np.array_equal(targets, y[lo:hi])
            assert source.locate(4) == (paths[2], 0)
            assert source.fingerprint()["rows"] == 10

    def test_targets_of_every_form(self, tmp_path):
        x, y = xy(6)
        two = np.arange(12, dtype=np.float64).reshape(6, 2)
        path = write(tmp_path / "a.h5", x=x, v=x[:, 0], c=y[:, None], b=y > 1, r=two[:, 0], r1=two[:, :1], r2=two, m=y)
        forms = {"c": ("class", 1), "b": ("class", 1), "r": ("real", 1), "r1": ("real", 1), "r2": ("real", 2)}
        for name, form in forms.items():
            source = Hdf5Source([path], "x", name)
            assert (source.target_kind, source.target_width) == form
            targets = source.read(1, 4)[1]
            assert targets.shape == ((3,) if form[0] == "class" else (3, form[1]))
            assert np.array_equal(targets.ravel(), source_values(path, name)[1:4].ravel())
        assert Hdf5Source([path], "v", "c").read(0, 2)[0].shape == (2, 1)
        as_numbers = Hdf5Source([path], "x", "m", target_kind="real")
        assert as_numbers.read(0, 6)[1].dtype == np.float32
        assert as_numbers.read(0, 6)[1].ravel().tolist() == y.tolist()

    def test_blocks_are_bounded_stay_in_a_file_and_end_with_chunks(self, tmp_path):
        x, y = xy(50)
        paths = [
            write(tmp_path / "a.h5", x={"data": x, "chunks": (8, 3)}, y=y),
            write(tmp_path / "b.h5", x=x, y=y),
        ]
        source = Hdf5Source(paths, "x", "y")
        row_bytes = 3 * 4 + 8
        blocks = list(source.blocks(3, 97, 20 * row_bytes))
        assert [row for lo, hi in blocks for row in range(lo, hi)] == list(range(3, 97))
        assert all(hi - lo <= 20 for lo, hi in blocks)
        assert [hi for lo, hi in blocks if hi < 50] == [16, 32]
        assert any(hi == 50 for _, hi in blocks)
        assert all(hi - lo == 1 for lo, hi in source.blocks(0, 5, 1))


def source_values(path, name):
    with h5py.File(path) as file:
        return file[name][:]


class TestMistakes:
    def make(self, tmp_path, **datasets):
        return [write(tmp_path / "a.h5", **datasets)]

    def test_a_missing_dataset_lists_what_is_there(self, tmp_path):
        files = self.make(tmp_path, g__images=np.zeros((4, 2), "f4"), labels=np.zeros(4, "i8"))
        message = refused("no such dataset", Hdf5Source, files, "g/imagse", "labels")
        assert "g/images (4, 2) float32" in message
        assert "labels (4,) int64" in message
        assert "did you mean 'g/images'" in message
        refused("no such dataset", Hdf5Source, files, "labels/x", "labels")
        assert "has no datasets" in refused("no such", Hdf5Source, self.make(tmp_path), "x", "y")

    def test_a_group_without_datasets_in_it_is_no_field(self, tmp_path):
        files = self.make(tmp_path, g__h__images=np.zeros((4, 2)), g__labels=np.zeros(4, int))
        assert "g/labels" in refused("is a group", Hdf5Source, files, "/", "g/labels")
        assert "directly in it" in refused("is a group", Hdf5Source, files, "/", "g/labels")

    @pytest.mark.parametrize(
        ("value", "word"),
        [
            (np.zeros(2, [("a", "f4"), ("b", "i4")]), r"records \(a, b\)"),
            ({"shape": (2,), "dtype": h5py.ref_dtype}, "references"),
            ({"shape": (2,), "dtype": h5py.vlen_dtype("f4")}, "varying length"),
            (np.zeros(2, "c8"), "complex64"),
            (np.zeros(2, "V5"), "opaque"),
            (3.0, "a single number"),
            ({"data": h5py.Empty("f4")}, "an empty dataspace"),
            (np.zeros((2, 0)), "rows without a number"),
        ],
    )
    def test_what_is_not_rows_of_numbers_is_refused(self, tmp_path, value, word):
        files = self.make(tmp_path, x=value, y=np.zeros(2, int))
        refused(word, Hdf5Source, files, "x", "y")

    def test_lengths_that_differ_are_named(self, tmp_path):
        files = self.make(tmp_path, x=np.zeros((10, 3)), y=np.zeros(9, int))
        message = refused("fewer targets", Hdf5Source, files, "x", "y")
        assert "'x' has 10 rows, 'y' has 9" in message
        refused("fewer inputs", Hdf5Source, self.make(tmp_path, x=np.zeros(3), y=np.zeros(9, int)), "x", "y")

    def test_no_rows_at_all(self, tmp_path):
        refused("no rows", Hdf5Source, self.make(tmp_path, x=np.zeros((0, 3)), y=np.zeros(0, int)), "x", "y")

    def test_targets_that_fit_no_kind(self, tmp_path):
        files = self.make(tmp_path, x=np.zeros(4), real=np.zeros(4))
        refused("must be integers", Hdf5Source, files, "x", "real", target_kind="class")

    def test_files_that_differ_are_refused(self, tmp_path):
        a = write(tmp_path / "a.h5", x=np.zeros((4, 2)), y=np.zeros(4, int))
        b = write(tmp_path / "b.h5", x=np.zeros((4, 3)), y=np.zeros(4, int))
        c = write(tmp_path / "c.h5", x=np.zeros((4, 2)), y=np.zeros(4))
        refused("do not fit together", Hdf5Source, [a, b], "x", "y")
        refused("do not fit together", Hdf5Source, [a, c], "x", "y")
        sources = [Hdf5Source([path], "x", "y") for path in (a, b)]
        refused("test files do not fit", DataFacts.collect, sources[0], None, sources[1])

    def test_a_damaged_chunk_is_named(self, tmp_path):
        noise = np.random.default_rng(0).normal(size=(100, 50))
        files = self.make(tmp_path, x={"data": noise, "chunks": (50, 50), "fletcher32": True}, y=np.zeros(100, int))
        with h5py.File(files[0]) as file:
            start = file["x"].id.get_chunk_info(1).byte_offset
        with open(files[0], "r+b") as file:
            file.seek(start + 100)
            file.write(b"damage")
        source = Hdf5Source(files, "x", "y")
        source.read(0, 50)
        refused("cannot read '/x', rows 50 to 99", source.read, 50, 100)


class TestValues:
    @pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (-np.inf, "infinite"), (1e300, "infinite")])
    @pytest.mark.parametrize("kind", ["class", "real"])
    def test_the_first_row_that_is_not_finite_is_named(self, tmp_path, value, word, kind):
        x, y = np.zeros((9, 4)), np.zeros(9, int if kind == "class" else float)
        x[6, 3] = x[8, 0] = value
        paths = [write(tmp_path / f"{i}.h5", x=x[s], y=y[s]) for i, s in enumerate((slice(0, 5), slice(5, 9)))]
        source = Hdf5Source(paths, "x", "y")
        source.check_values(*source.read(2, 6), 2)
        message = refused(word, source.check_values, *source.read(2, 9), 2)
        assert f"row 1 of 'x' in {paths[1]} (row 6 over all files)" in message

    def test_targets_are_looked_at_too_and_the_earlier_row_wins(self, tmp_path):
        x, y = np.zeros((9, 4)), np.zeros((9, 2))
        x[7], y[3, 1] = np.nan, np.inf
        source = Hdf5Source([write(tmp_path / "a.h5", x=x, y=y)], "x", "y")
        assert "row 3 of 'y'" in refused("infinite", source.check_values, *source.read(0, 9), 0)

    def test_denormals_and_the_largest_number_are_fine(self, tmp_path):
        x = np.array([[1e-40, -0.0], [np.finfo("f4").max, np.finfo("f4").min]], "f4")
        source = Hdf5Source([write(tmp_path / "a.h5", x=x, y=[0, 1])], "x", "y")
        source.check_values(*source.read(0, 2), 0)

    def test_a_negative_label_is_named(self, tmp_path):
        source = Hdf5Source([write(tmp_path / "a.h5", x=np.zeros(5), y=[0, 1, -1, -2, 3])], "x", "y")
        assert "row 2 of 'y'" in refused("negative", source.check_values, *source.read(0, 5), 0)
        refused("negative", DataFacts.collect, source)


class TestFacts:
    def test_labels_their_extremes_and_gaps(self, tmp_path):
        a = Hdf5Source([write(tmp_path / "a.h5", x=np.zeros((10, 2)), y=[1, 1, 2, 2, 4, 4, 1, 1, 2, 2])], "x", "y")
        b = Hdf5Source([write(tmp_path / "b.h5", x=np.zeros((3, 2)), y=np.array([0, 6, 6], "u1"))], "x", "y")
        facts = DataFacts.collect(a, None, b, Split(len(a), 0, 0.2))
        assert facts.rows == {"train": 8, "validation": 2, "test": 3}
        assert (facts.classes, facts.missing) == (7, [3, 5])
        assert (facts.label_min.value, facts.label_min.row, facts.label_min.file) == (0, 0, b.files[0])
        assert (facts.label_max.value, facts.label_max.row, facts.label_max.file) == (6, 1, b.files[0])

    def test_real_targets_have_no_classes(self, tmp_path):
        facts = DataFacts.collect(Hdf5Source([write(tmp_path / "a.h5", x=np.zeros(3), y=np.zeros((3, 2)))], "x", "y"))
        assert (facts.target_kind, facts.target_width, facts.classes) == ("real", 2, None)
        assert facts.rows == {"train": 3}

    def test_the_builtin_digits_are_what_they_say(self, tmp_path):
        source = Hdf5Source(expand("builtin:digits", tmp_path), "images", "labels")
        facts = DataFacts.collect(source)
        assert (facts.rows["train"], facts.input_shape, facts.classes, facts.missing) == (1797, (8, 8), 10, [])
        inputs, labels, _ = source.read(0, 1797)
        assert np.array_equal(inputs * 16, np.round(inputs * 16))
        assert (inputs.min(), inputs.max()) == (0, 1)
        # Class sizes as the data set's own description (scikit-learn's digits.rst, optdigits.names) states them.
        assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
        with h5py.File(source.files[0]) as file:
            assert "CC BY 4.0" in file.attrs["licence"]
            assert "UCI" in file.attrs["source"]
