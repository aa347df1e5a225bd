"""What an example is: a row, a window of rows, a file or a group; which files there are, and whether they stay so."""

import os
import shutil

import h5py
import numpy as np
import pytest
from sources import refused, write

from hpctrain.data.facts import DataFacts
from hpctrain.data.fields.examples import Windows
from hpctrain.data.files import expand
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.job import Job
from hpctrain.run.master import resolve


def ranges(source):
    """The parts of the inputs' last axis, by name."""
    return {name: part[:2] for name, part in source.input_parts.items()}


class TestFilesAreExamples:
    @pytest.fixture
    def volumes(self, tmp_path):
        """Five files with a volume (2, 3, 4) and four numbers each: (paths, volumes, numbers)."""
        random = np.random.default_rng(1)
        full, units = random.integers(-300, 300, (5, 2, 3, 4)).astype("i2"), random.normal(size=(5, 4))
        paths = [write(tmp_path / f"{i}.h5", full=full[i], unitPar=units[i], label=i % 3) for i in range(5)]
        return paths, full, units

    def test_each_file_is_one(self, volumes):
        paths, full, units = volumes
        source = Hdf5Source(paths, "full", "unitPar", examples="files")
        assert (len(source), source.input_shape, source.format.target_shape) == (5, (2, 3, 4), (4,))
        for lo, hi in ((0, 5), (1, 4), (2, 3)):
            inputs, targets, _ = source.read(lo, hi)
            assert np.array_equal(inputs, full[lo:hi])
            assert np.array_equal(targets, units[lo:hi].astype("f4"))
        assert source.locate(3) == (paths[3], 0)
        assert source.place(3, "full") == f"'full' in {paths[3]}"
        assert list(source.blocks(0, 5, 1 << 20)) == [(0, 5)], "a block may hold several files"
        assert list(source.blocks(1, 5, 2 * source.format.row_bytes)) == [(1, 3), (3, 5)]

    def test_single_numbers_and_channels_first(self, volumes):
        paths, full, _ = volumes
        source = Hdf5Source(paths, "full", "label", examples="files", channels_first=True)
        assert np.array_equal(source.read(0, 5)[0], np.moveaxis(full, 1, -1))
        assert DataFacts.collect(source).classes == 3
        columns = Hdf5Source(paths, ["label", "unitPar[1:3]"], "label", examples="files")
        assert columns.input_shape == (3,)
        assert columns.shared_numbers() == "label"

    def test_only_the_first_is_looked_at_before_it_is_read(self, volumes, tmp_path):
        paths, _, _ = volumes
        other = write(tmp_path / "other.h5", full=np.zeros((2, 3, 5)), unitPar=np.zeros(4))
        stats = write(tmp_path / "stats.h5", mean=np.zeros(4))
        source = Hdf5Source([*paths, other, stats, "nowhere.h5"], "full", "unitPar", examples="files")
        source.read(0, 5)
        message = refused("do not fit together", source.read, 5, 6)
        assert f"(2, 3, 5) (real) in {other}" in message
        assert 'data.exclude = "stats.h5"' in refused("no such dataset", source.read, 6, 7)
        refused("data file not found: nowhere.h5", source.read, 7, 8)

    def test_many_start_at_once(self, tmp_path, monkeypatch):
        """Ten thousand names and one file: all are listed and made examples, but only the first is opened."""
        write(tmp_path / "a0.h5", x=np.zeros(3), y=1.0)
        opened, real = [], h5py.File
        monkeypatch.setattr(h5py, "File", lambda *args, **options: opened.append(args) or real(*args, **options))
        names = [str(tmp_path / f"a{i}.h5") for i in range(10_000)]
        source = Hdf5Source(expand(names, "/", lazy=True), "x", "y", examples="files")
        assert len(source) == 10_000
        assert list(source.blocks(9_990, 10_000, 1 << 20)) == [(9_990, 10_000)]
        assert len(opened) == 1

    def test_text_of_all_files_is_gathered(self, tmp_path):
        paths = [write(tmp_path / f"{i}.h5", x=np.zeros(2), y=np.bytes_(text)) for i, text in enumerate("bca")]
        source = Hdf5Source(paths, "x", "y", examples="files")
        assert source.categories == {"target": {"y": ["a", "b", "c"]}}
        assert source.read(0, 3)[1].tolist() == [1, 2, 0]


class TestGroupsAreExamples:
    @pytest.fixture
    def path(self, tmp_path):
        random = np.random.default_rng(2)
        self.images = random.integers(0, 200, (12, 4, 5)).astype("u1")
        self.scalars = random.normal(size=(12, 2))
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for i in range(12):
                group = file.create_group(f"sample_{i}")
                group["image"] = self.images[i]
                group["image"].attrs["scale_factor"] = 0.5 + i
                group["image"].attrs["add_offset"] = -1.0
                group["energy"], group["angle"] = self.scalars[i]
                group["kind"] = i % 3
            file["sample_99"] = np.zeros(3)  # a dataset is no example
            file.create_group("notes")
        return str(tmp_path / "a.h5")

    def test_in_natural_order(self, path):
        source = Hdf5Source([path], "image", ["energy", "angle"], examples="groups", group="sample_*")
        assert (len(source), source.input_shape, source.format.target_shape) == (12, (4, 5), (2,))
        inputs, targets, _ = source.read(1, 12)
        factors = 0.5 + np.arange(12)[:, None, None]
        assert np.array_equal(inputs, (self.images * factors - 1)[1:].astype("f4"))
        assert np.array_equal(targets, self.scalars[1:].astype("f4"))
        assert source.place(10, "image") == f"'image' of group 'sample_10' in {path}"
        columns = Hdf5Source([path], ["energy", "angle"], "kind", examples="groups", group="sample_*")
        assert np.array_equal(columns.read(0, 12)[0], self.scalars.astype("f4"))
        assert ranges(columns) == {"energy": (0, 1), "angle": (1, 2)}
        assert DataFacts.collect(columns).classes == 3

    def test_what_a_group_does_not_have(self, path):
        message = refused("no such dataset in group '/notes'", Hdf5Source, [path], "image", "kind", examples="groups")
        assert path in message
        assert "data.group" in message
        refused(
            r"no group fits data.group = 'smaple_\*'", Hdf5Source, [path], "a", "b", examples="groups", group="smaple_*"
        )

    def test_groups_are_looked_at_as_they_are_read(self, path):
        with h5py.File(path, "a") as file:
            del file["sample_7/image"]
            file["sample_7/image"] = np.zeros((4, 6))
        source = Hdf5Source([path], "image", "kind", examples="groups", group="sample_*")
        source.read(0, 7)
        assert "(4, 6)" in refused("do not fit together", source.read, 6, 9)

    def test_deeper_and_in_several_files(self, tmp_path):
        paths = []
        for name, numbers in (("a", (2, 10)), ("b", ()), ("c", (1,))):
            datasets = {f"runs__r{i}__x": np.full(2, i) for i in numbers} | {f"runs__r{i}__y": i for i in numbers}
            paths.append(write(tmp_path / f"{name}.h5", other__x=np.zeros(2), other__y=0, **datasets))
        source = Hdf5Source(paths, "x", "y", examples="groups", group="runs/*")
        assert source.read(0, 3)[1].tolist() == [2, 10, 1]
        assert source.locate(2) == (paths[2], 0)

    def test_text_in_groups(self, tmp_path):
        path = write(tmp_path / "a.h5", **{f"s{i}__y": np.bytes_(text) for i, text in enumerate(("b", "a", "b"))})
        source = Hdf5Source([path], "y", "y", examples="groups")
        assert source.read(0, 3)[1].tolist() == [1, 0, 1]


class TestWindows:
    """Against a loop over all windows, from the definition."""

    @staticmethod
    def cut(x, y, runs, length, ahead, stride):
        inputs, targets = [], []
        for start in range(len(x)):
            last = start + length - 1 + max(ahead)
            begin = start
            while begin > 0 and runs[begin - 1] == runs[start]:
                begin -= 1
            if last < len(x) and len(set(runs[start : last + 1])) == 1 and (start - begin) % stride == 0:
                inputs.append(x[start : start + length])
                targets.append([y[start + length - 1 + h] for h in ahead])
        return np.array(inputs), np.array(targets)

    @pytest.mark.parametrize("horizon", [1, 3, 0, (1, 2, 3), (5,), (2, 6)])
    @pytest.mark.parametrize("stride", [1, 3])
    @pytest.mark.parametrize("length", [1, 4])
    def test_no_window_leaves_its_file_or_its_run(self, tmp_path, horizon, stride, length):
        random = np.random.default_rng(3)
        paths, wanted = [], []
        ahead = (horizon,) if isinstance(horizon, int) else horizon
        for number, rows in enumerate((30, 3, 0, 17)):
            x, y = random.normal(size=(rows, 2)).astype("f4"), random.normal(size=rows).astype("f4")
            runs = np.repeat([7, 8, 7, 9], [rows // 3, 1 if rows else 0, rows // 2, rows])[:rows]
            paths.append(write(tmp_path / f"{number}.h5", x=x, y=y, run=runs))
            wanted.append(self.cut(x, y, runs, length, ahead, stride))
        inputs = np.concatenate([part[0].reshape(-1, length, 2) for part in wanted])
        targets = np.concatenate([part[1].reshape(-1, len(ahead)) for part in wanted])
        source = Hdf5Source(paths, "x", "y", windows=Windows(length, horizon, stride, "run"))
        assert len(source) == len(inputs) > 2
        assert source.input_shape == (length, 2)
        assert source.format.target_shape == (len(ahead),)
        for lo, hi in ((0, len(source)), (2, len(source) - 1)):
            read = source.read(lo, hi)
            assert np.array_equal(read[0], inputs[lo:hi])
            assert np.array_equal(read[1], targets[lo:hi])

    def test_series_of_one_column_labels_and_masks(self, tmp_path):
        x, labels, mask = np.arange(10.0), np.arange(10) % 3, np.arange(10) % 2
        path = write(tmp_path / "a.h5", x=x, y=labels, m=mask)
        source = Hdf5Source([path], "x", "y", windows=Windows(3, (0, 1)), mask="m")
        inputs, targets, weight = source.read(0, 7)
        assert inputs.shape == (7, 3, 1)
        assert targets.tolist() == [[labels[i + 2], labels[i + 3]] for i in range(7)]
        assert weight.tolist() == [[mask[i + 2], mask[i + 3]] for i in range(7)]
        itself = Hdf5Source([path], "x", "x", windows=Windows(3))
        assert itself.read(0, 7)[1].ravel().tolist() == list(range(3, 10))
        assert itself.place(4, "x") == f"the window of 3 rows from row 4 of 'x' in {path}"
        several = Hdf5Source([path], ["x", "m"], "x", windows=Windows(3, 2, 2))
        assert several.read(0, 3)[0][1].tolist() == [[2, 0], [3, 1], [4, 0]]

    def test_text_tells_runs_apart(self, tmp_path):
        path = write(tmp_path / "a.h5", x=np.arange(6.0), run=np.array([b"a", b"a", b"a", b"b", b"b", b"b"]))
        source = Hdf5Source([path], "x", "x", windows=Windows(2, 1, run="run"))
        assert source.read(0, 2)[0].ravel().tolist() == [0, 1, 3, 4]

    def test_too_short_and_runs_that_do_not_fit(self, tmp_path):
        path = write(tmp_path / "a.h5", x=np.zeros(6), y=np.zeros(6), run=np.zeros(5))
        assert "no run of 8 rows" in refused("no examples", Hdf5Source, [path], "x", "y", windows=Windows(6, 2))
        refused("windows.run = 'run' does not fit", Hdf5Source, [path], "x", "y", windows=Windows(2, run="run"))

    def test_of_a_job(self):
        data = {"files": "a.h5", "input": "x", "target": "x"}

        def horizon(value):
            return Job(data={**data, "windows": {"length": 4, "horizon": value}}).data.windows.horizon

        assert [horizon(value) for value in (2, [1, 6], "1:4")] == [2, (1, 6), (1, 2, 3, 4)]
        for value in ("4:1", "a", "1:2:3", -1, [], [1, -1], True):
            refused("data.windows", horizon, value)
        refused("do not go together", Job, data={**data, "windows": {"length": 2}, "channels_first": True})
        refused("do not go together", Job, data={**data, "windows": {"length": 2}, "examples": "files"})
        refused("for examples that are groups", Job, data={**data, "group": "s*"})
        job = Job(data={**data, "input": ["x", "z"], "windows": {"length": 4, "horizon": "1:3"}, "missing": 0.5})
        assert Job.from_toml(job.to_toml()) == job


class TestPatterns:
    def test_brackets_in_names(self, tmp_path):
        folder = tmp_path / "run [1] ü"
        folder.mkdir()
        for name in ("part[a]-1.h5", "part[a]-2.h5", "other.h5"):
            write(folder / name, x=np.zeros(2))
        there = sorted(str(path) for path in folder.iterdir())
        # A folder that is there is no pattern, nor is that of the job file.
        assert expand(str(folder / "*.h5"), "/") == there
        assert expand("*.h5", folder) == there
        assert expand(str(folder / "part[[]a]-*.h5"), "/") == there[1:]
        assert expand(str(tmp_path / "run [[]1] ?" / "other.h5"), "/") == there[:1]
        assert expand(str(folder / "part[a]-1.h5"), "/") == there[1:2]
        message = refused("no file matches", expand, "part[a]-*.h5", folder)
        assert "write 'part[[]a]-*.h5'" in message
        assert "check the pattern" in refused("no file matches", expand, "nothing[a]-*.h5", folder)

    def test_brackets_that_are_a_pattern(self, tmp_path):
        for name in ("a1.h5", "a2.h5", "a3.h5"):
            write(tmp_path / name, x=np.zeros(2))
        assert [os.path.basename(path) for path in expand("a[12].h5", tmp_path)] == ["a1.h5", "a2.h5"]


class TestEmptyShards:
    def test_files_without_rows_are_passed_over(self, tmp_path):
        x, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 1])
        null = {"data": h5py.Empty("f4")}
        paths = [
            write(tmp_path / "a.h5", x=np.zeros((0, 3)), y=np.zeros(0)),
            write(tmp_path / "b.h5", x=x[:2], y=y[:2]),
            write(tmp_path / "c.h5", x=null, y=null),
            write(tmp_path / "d.h5", x=np.zeros((0, 7)), y=np.array([], "S3")),
            write(tmp_path / "e.h5", x=x[2:], y=y[2:]),
            write(tmp_path / "f.h5", x=[], y=[]),
        ]
        source = Hdf5Source(paths, "x", "y")
        assert (len(source), source.target_kind) == (4, "class")
        inputs, targets, _ = source.read(0, 4)
        assert np.array_equal(inputs, x)
        assert np.array_equal(targets, y)
        refused("no rows", Hdf5Source, [paths[0], paths[2]], "x", "y")


class TestWhichFiles:
    def test_a_folder_is_its_hdf5_files(self, tmp_path):
        for name in ("b.h5", "a.nc", "c.hdf5", "d.he5", ".hidden.h5"):
            write(tmp_path / name, x=[1.0])
        (tmp_path / "notes.txt").write_text("no data")
        assert [os.path.basename(path) for path in expand(str(tmp_path), "/")] == ["a.nc", "b.h5", "c.hdf5", "d.he5"]
        (tmp_path / "empty").mkdir()
        assert ".he5" in refused("folder without HDF5 files", expand, "empty", tmp_path)

    def test_what_is_excluded(self, tmp_path):
        (tmp_path / "sub").mkdir()
        for name in ("a.h5", "stats.h5", "stats-2.h5", "sub/b.h5"):
            write(tmp_path / name, x=[1.0])

        def kept(*exclude):
            return [os.path.relpath(path, tmp_path) for path in expand(["*.h5", "sub/*.h5"], tmp_path, exclude)]

        assert kept("stats*.h5") == ["a.h5", "sub/b.h5"]
        assert kept("stats.h5", "sub/*") == ["a.h5", "stats-2.h5"]
        assert kept(str(tmp_path / "sub" / "*")) == ["a.h5", "stats-2.h5", "stats.h5"]
        assert "files: a.h5, stats-2.h5" in refused("leaves out all files", kept, "*.h5")


class TestFilesThatChange:
    def source(self, tmp_path):
        paths = [write(tmp_path / f"{name}.h5", x=np.zeros((5, 2)), y=np.zeros(5, int)) for name in "ab"]
        return Hdf5Source(paths, "x", "y"), paths

    def test_between_a_look_and_reading(self, tmp_path):
        source, paths = self.source(tmp_path)
        with h5py.File(paths[1], "a") as file:
            file["x"][0] = 1
        os.utime(paths[1], (1, 1))
        source.read(0, 5)
        refused(f"changed while it was read: {paths[1]}", source.read, 5, 10)

    @pytest.mark.parametrize("grown", [False, True])
    def test_while_it_is_read(self, tmp_path, grown):
        source, paths = self.source(tmp_path)
        source.read(0, 5)
        if grown:
            with open(paths[0], "ab") as file:
                file.write(bytes(100))
            assert "bytes, now" in refused(f"changed while it was read: {paths[0]}", source.finish)
        else:
            os.utime(paths[0], (1, 1))
            refused(f"changed while it was read: {paths[0]}", source.read, 5, 10)

    def test_gone(self, tmp_path):
        source, paths = self.source(tmp_path)
        os.remove(paths[1])
        refused(f"gone: {paths[1]}", source.read, 5, 10)

    def test_left_open_by_its_writer(self, tmp_path):
        """The newest format marks a file that is open for writing; without locks that is all there is to see."""
        path = str(tmp_path / "a.h5")
        write_it = h5py.File(path, "w", libver="latest", locking=False)
        write_it["x"], write_it["y"] = np.zeros((5, 2)), np.zeros(5, int)
        write_it.flush()
        copy = tmp_path / "crashed.h5"
        shutil.copyfile(path, copy)
        write_it.close()
        assert "h5clear" in refused("was not closed by what writes it", Hdf5Source, [str(copy)], "x", "y")
        Hdf5Source([path], "x", "y").read(0, 5)


class TestManyLabels:
    """Where each of many examples has a file or a group of its own, only some labels are looked at beforehand."""

    @pytest.fixture
    def path(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for i in range(1500):
                group = file.create_group(f"s{i}")
                group["x"], group["y"] = np.zeros(2), i % 3
            file["s701/y"][()] = 7  # not one of those that are looked at
        return str(tmp_path / "a.h5")

    def job(self, path, **model):
        return Job(data={"files": path, "examples": "groups", "input": "x", "target": "y"}, model=model)

    def test_a_label_without_an_output_is_found_when_it_is_read(self, path):
        prepared = resolve(self.job(path, layers=[{"type": "dense", "units": 4}]))
        assert not prepared.facts.all_labels_seen
        assert (prepared.facts.classes, prepared.facts.missing, prepared.classes) == (3, [], 4)
        source = prepared.source("train")
        source.check_values(*source.read(0, 700), 0)
        message = refused("out of range: 7 in 'y' of group 's701'", source.check_values, *source.read(600, 800), 600)
        assert "0 to 3: the network tells 4 classes apart" in message

    def test_a_network_that_follows_from_the_labels_needs_all_of_them(self, path):
        prepared = resolve(self.job(path))
        assert prepared.facts.all_labels_seen
        assert (prepared.facts.classes, prepared.facts.missing, prepared.classes) == (8, [3, 4, 5, 6], None)
