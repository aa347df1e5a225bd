"""Mistakes with data that would train on wrong rows, or whose message would lead astray."""

import io
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from rich.console import Console

from hpctrain import Job, train
from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.facts import DataFacts
from hpctrain.data.files import expand
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.errors import UserError
from hpctrain.monitor.base import RunInfo
from hpctrain.monitor.views import end_summary, start_summary
from hpctrain.monitor.words import counted
from hpctrain.nn.check import output_shape
from hpctrain.nn.layers.activations import Relu
from hpctrain.run.master import resolve


def write(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
    return str(path)


def refused(match, action, *args, **options):
    with pytest.raises(UserError, match=match) as caught:
        action(*args, **options)
    return caught.value.message


X = np.arange(8, dtype="f4").reshape(4, 2)
Y = np.array([0, 1, 2, 1])


class TestVirtualDatasets:
    def virtual(self, path, *sources, rows=8, source="x"):
        """Write a virtual dataset of 4 rows from each source, and labels."""
        layout = h5py.VirtualLayout((rows, 2), "f4")
        for i, name in enumerate(sources):
            layout[4 * i : 4 * i + 4] = h5py.VirtualSource(str(name), source, (4, 2))
        with h5py.File(path, "w") as file:
            file.create_virtual_dataset("x", layout, fillvalue=-9)
            file["own"], file["y"] = X, np.arange(rows) % 3
        return str(path)

    def test_what_is_whole_is_read(self, tmp_path, monkeypatch):
        write(tmp_path / "a.h5", x=X)
        (tmp_path / "links").mkdir()
        both = self.virtual(tmp_path / "both.h5", "a.h5", tmp_path / "a.h5")
        os.symlink(both, tmp_path / "links" / "link.h5")  # its sources are where the file itself is
        monkeypatch.chdir("/")
        for path in (both, str(tmp_path / "links" / "link.h5")):
            assert np.array_equal(Hdf5Source([path], "x", "y").read(0, 8)[0], np.concatenate([X, X]))
        nested = self.virtual(tmp_path / "nested.h5", "both.h5", rows=4)
        with h5py.File(nested, "a") as file:
            own = h5py.VirtualLayout((4, 2), "f4")
            own[:] = h5py.VirtualSource(".", "own", (4, 2))
            file.create_virtual_dataset("from_itself", own)
        assert np.array_equal(Hdf5Source([nested], "from_itself", "y").read(0, 4)[0], X)

    def test_a_moved_file_with_an_absolute_source_finds_it_beside_itself_as_hdf5_does(self, tmp_path):
        write(tmp_path / "a.h5", x=X)
        path = self.virtual(tmp_path / "v.h5", "/no/such/folder/a.h5", rows=4)
        assert np.array_equal(Hdf5Source([path], "x", "y").read(0, 4)[0], X)

    def test_the_prefix_of_hdf5_is_heeded(self, tmp_path):
        (tmp_path / "parts").mkdir()
        write(tmp_path / "parts" / "a.h5", x=X)
        path = self.virtual(tmp_path / "v.h5", "a.h5", rows=4)
        refused("a file that it takes its rows from is missing", Hdf5Source, [path], "x", "y")
        read = "from hpctrain.data.hdf5 import Hdf5Source; "
        read += f"print(Hdf5Source([{path!r}], 'x', 'y').read(0, 4)[0].ravel().tolist())"
        environment = {**os.environ, "HDF5_VDS_PREFIX": "${ORIGIN}/parts"}
        done = subprocess.run([sys.executable, "-c", read], env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == str(X.ravel().tolist()), done.stderr

    def test_a_missing_source_file_is_named(self, tmp_path):
        write(tmp_path / "a.h5", x=X)
        path = self.virtual(tmp_path / "v.h5", "a.h5", "gone.h5")
        message = refused("data.input = 'x' is a virtual dataset", Hdf5Source, [path], "x", "y")
        assert path in message
        assert f"'gone.h5' is not there (looked for {tmp_path / 'gone.h5'})" in message
        outer = self.virtual(tmp_path / "outer.h5", "v.h5", rows=4)
        assert "'gone.h5'" in refused("virtual", Hdf5Source, [outer], "x", "y")

    def test_a_missing_source_dataset_is_named(self, tmp_path):
        write(tmp_path / "a.h5", other=X)
        path = self.virtual(tmp_path / "v.h5", "a.h5", rows=4)
        assert "'x' is not in" in refused("a dataset that it takes its rows from", Hdf5Source, [path], "x", "y")

    def test_a_source_that_is_too_short_is_named(self, tmp_path):
        write(tmp_path / "a.h5", x=X[:3])
        for source in (h5py.VirtualSource("a.h5", "x", (4, 2)), h5py.VirtualSource("a.h5", "x", (6, 2))[:4]):
            layout = h5py.VirtualLayout((4, 2), "f4")
            layout[:] = source
            with h5py.File(tmp_path / "v.h5", "w") as file:
                file.create_virtual_dataset("x", layout)
                file["y"] = Y
            message = refused("takes its rows from is too short", Hdf5Source, [str(tmp_path / "v.h5")], "x", "y")
            assert f"'x' in {tmp_path / 'a.h5'} has the shape (3, 2)" in message

    def test_rows_without_a_source_are_refused(self, tmp_path):
        write(tmp_path / "a.h5", x=X)
        path = self.virtual(tmp_path / "v.h5", "a.h5", rows=8)
        assert "sources for 8 of its 16 numbers" in refused("no source fills", Hdf5Source, [path], "x", "y")
        refused("no source fills", Hdf5Source, [self.virtual(tmp_path / "none.h5", rows=4)], "x", "y")

    def test_sources_counted_by_a_pattern_are_as_many_as_there_are(self, tmp_path):
        for i in range(2):
            write(tmp_path / f"part-{i}.h5", x=X)
        with h5py.File(tmp_path / "v.h5", "w") as file:
            space = h5py.h5s.create_simple((4, 2), (h5py.h5s.UNLIMITED, 2))
            space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (4, 2), (4, 2))
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_virtual(space, b"part-%b.h5", b"x", h5py.h5s.create_simple((4, 2)))
            h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_FLOAT, space, properties)
            file["y"] = np.arange(8) % 3
        assert np.array_equal(Hdf5Source([str(tmp_path / "v.h5")], "x", "y").read(0, 8)[0], np.concatenate([X, X]))


class TestFiles:
    @pytest.mark.parametrize("link", [os.symlink, os.link])
    def test_a_file_and_a_link_to_it_are_one_file(self, tmp_path, link):
        base = write(tmp_path / "base.h5", x=X, y=Y)
        link(base, tmp_path / "link.h5")
        message = refused("names a file twice", expand, ["base.h5", "link.h5"], tmp_path)
        assert f"{tmp_path / 'link.h5'} is the same file as {base}" in message
        refused("names a file twice", expand, "*.h5", tmp_path)
        assert expand("link.h5", tmp_path) == [str(tmp_path / "link.h5")]
        data = {"files": base, "test_files": str(tmp_path / "link.h5"), "input": "x", "target": "y"}
        refused("two parts of the data, data.files and data.test_files", resolve, Job(data=data))

    def test_a_copy_is_a_file_of_its_own(self, tmp_path):
        paths = [write(tmp_path / name, x=X, y=Y) for name in ("a.h5", "b.h5")]
        assert expand(["a.h5", "b.h5"], tmp_path) == paths

    def test_a_dangling_link_says_where_it_leads(self, tmp_path):
        os.symlink("nowhere.h5", tmp_path / "dangling.h5")
        message = refused("data file not found", expand, "dangling.h5", tmp_path)
        assert "it is a symbolic link to nowhere.h5, which is not there" in message
        assert "make the link anew" in message
        assert "did you mean" not in message
        os.symlink("nowhere", tmp_path / "folder")
        message = refused("data file not found", expand, "folder/a.h5", tmp_path)
        assert f"{tmp_path / 'folder'} is a symbolic link to nowhere, which is not there" in message

    @pytest.mark.parametrize(
        ("name", "guess"), [("trian.h5", "train.h5"), ("train.hdf", "train.h5"), ("nope.h5", None), ("b.h5", None)]
    )
    def test_only_a_name_that_is_alike_is_suggested(self, tmp_path, name, guess):
        for other in ("train.h5", "train.toml", "model.h5", "a.h5"):
            (tmp_path / other).touch()
        message = refused("data file not found", expand, name, tmp_path)
        assert ("did you mean" in message) == (guess is not None)
        assert guess is None or f"did you mean {guess!r}?" in message

    def test_a_pattern_without_a_match_says_what_is_there(self, tmp_path):
        assert f"no HDF5 file in {tmp_path}" in refused("no file matches", expand, "nope*.h5", tmp_path)
        for i in range(12):
            write(tmp_path / f"part{i:02}.h5", x=X)
        (tmp_path / "notes.txt").write_text("no data")
        message = refused(r"no file matches 'nope\*.h5'", expand, "nope*.h5", tmp_path)
        assert f"the HDF5 files in {tmp_path} are part00.h5, part01.h5" in message
        assert "part09.h5, ... and 2 more" in message
        assert "notes.txt" not in message
        assert f"the HDF5 files in {tmp_path} are" in refused("no file", expand, "*/deep/*.h5", tmp_path)
        gone = refused("no file matches", expand, "gone/*.h5", tmp_path)
        assert f"there is no folder {tmp_path / 'gone'}" in gone


class TestDatasets:
    def test_an_empty_group_lists_the_datasets_of_the_file(self, tmp_path):
        path = write(tmp_path / "a.h5", x=X, y=Y)
        with h5py.File(path, "a") as file:
            file.create_group("empty")
            file["type"] = np.dtype("f4")
        message = refused("data.input = 'empty' is a group", Hdf5Source, [path], "empty", "y")
        assert "x (4, 2) float32" in message
        assert "a group without datasets" in message
        assert "x (4, 2) float32" in refused("'type' is a type", Hdf5Source, [path], "type", "y")

    def test_files_of_another_shape_are_told_in_words(self, tmp_path):
        a = Hdf5Source([write(tmp_path / "a.h5", x=X, y=Y)], "x", "y")
        b = Hdf5Source([write(tmp_path / "b.h5", x=X[:, :1], y=X[:, 1])], "x", "y")
        c = Hdf5Source([write(tmp_path / "c.h5", x=X, y=X)], "x", "y")
        message = refused("the validation files do not fit the training files", DataFacts.collect, a, b)
        assert "inputs of shape (1,) and 1 real target in " + b.files[0] in message
        assert "but inputs of shape (2,) and class labels in " + a.files[0] in message
        assert "RowFormat" not in message
        assert "2 real targets in " + c.files[0] in refused("test files", DataFacts.collect, a, None, c)


class TestLabels:
    @pytest.mark.parametrize("value", [2**63, 2**64 - 1])
    def test_a_label_above_int64_is_told_as_it_is(self, tmp_path, value):
        source = Hdf5Source([write(tmp_path / "a.h5", x=X, y=np.array([0, 1, value, 2], "u8"))], "x", "y")
        for action, args in ((DataFacts.collect, (source,)), (source.check_values, (*source.read(0, 4), 0))):
            message = refused("a class label is too large: row 2 of 'y'", action, *args)
            assert f"found:   {value}\n" in message

    def test_a_negative_label_beside_an_unsigned_file_stays_negative(self, tmp_path):
        paths = [write(tmp_path / "a.h5", x=X, y=Y.astype("u8")), write(tmp_path / "b.h5", x=X, y=-Y)]
        source = Hdf5Source(paths, "x", "y")
        assert "found:   -2\n" in refused("is negative: row 2 of 'y'", DataFacts.collect, source)
        assert "found:   -1\n" in refused("is negative: row 1 of 'y'", source.check_values, *source.read(0, 8), 0)

    def test_the_label_that_counts_is_named(self, tmp_path):
        y = np.array([[0, 1], [-5, -1], [0, 1], [1, 0]])
        path = write(tmp_path / "a.h5", x=X, y=y)
        source = Hdf5Source([path], "x", "y", ignore_label=-5)
        assert "found:   -1\n" in refused("negative", source.check_values, *source.read(0, 4), 0)
        ignored = Hdf5Source([write(tmp_path / "b.h5", x=X, y=np.where(y == -1, 1, y))], "x", "y", ignore_label=-5)
        ignored.check_values(*ignored.read(0, 4), 0)


class TestJob:
    @pytest.mark.parametrize(
        ("sections", "message"),
        [
            ({"data": {"split": {"test": True}}}, "data.split.test = True: must be a number"),
            ({"data": {"split": {"validation": False}}}, "data.split.validation = False: must be a number"),
            ({"run": {"epochs": True}}, "run.epochs = True: must be a whole number"),
            ({"optimizer": {"name": "adam", "lr": True}}, "optimizer.lr = True: must be a number"),
            (
                {"model": {"layers": [{"type": "conv2d", "filters": 2, "kernel": [True, 3]}]}},
                "model.layers.0.kernel = [True, 3]: each must be a whole number",
            ),
        ],
    )
    def test_true_and_false_are_no_numbers(self, sections, message):
        data = {"files": "a.h5", "input": "x", "target": "y", **sections.pop("data", {})}
        assert message in refused("must be", Job, data=data, **sections)

    def test_true_and_false_stay_what_they_are_elsewhere(self):
        data = {"files": "a.h5", "input": "x", "target": "y"}
        made = Job(data=data, optimizer={"name": "sgd", "momentum": 0.9, "nesterov": True})
        assert made.optimizer.nesterov is True


class TestTokens:
    """An embedding makes NaN of what it does not know, which would be told as a learning rate that is too high."""

    def job(self, tmp_path, value, layers=(), size=5):
        x = np.array([[0, 1, 2], [4, 3, 0], [1, value, 2], [3, 3, 3]], "f4")
        file = write(tmp_path / "a.h5", x=x, y=Y)
        layers = [*layers, {"type": "embedding", "size": size, "units": 2}, "flatten", {"type": "dense", "units": 3}]
        return Job(
            data={"files": file, "input": "x", "target": "y"}, model={"layers": layers}, run={"progress": "none"}
        )

    @pytest.mark.parametrize(
        ("value", "told"),
        [(5, "5\n"), (-1, "-1\n"), (1.5, "1.5\n")],
    )
    def test_an_input_that_is_no_token(self, tmp_path, value, told):
        message = refused("row 2 of 'x'", train, self.job(tmp_path, value), run_dir=tmp_path / "r", group=SingleGroup())
        assert f"found:   {told}" in message
        assert "whole numbers, 0 to 4" in message
        assert ("a size of at least 6" in message) == (value == 5)

    def test_tokens_are_asked_for_where_the_inputs_meet_an_embedding(self, tmp_path):
        inside = {"type": "padded", "layers": [{"type": "embedding", "size": 7, "units": 2}, "global_avg_pool"]}
        padded = Job(
            **{**self.job(tmp_path, 4).model_dump(), "model": {"layers": [inside, {"type": "dense", "units": 3}]}}
        )
        both = self.job(tmp_path, 4, [{"type": "parallel", "merge": "add", "branches": [[], ["relu"]]}])
        numbers = Job(**{**padded.model_dump(), "model": {"layers": [{"type": "dense", "units": 3}]}})
        assert [resolve(job).tokens for job in (self.job(tmp_path, 4), padded, both, numbers)] == [5, 7, None, None]


class TestOneOfAThing:
    def test_counted(self):
        assert [counted(n, "step") for n in (0, 1, 2, 1234, None)] == [
            "0 steps",
            "1 step",
            "2 steps",
            "1,234 steps",
        ] + ["- steps"]

    @pytest.mark.parametrize(
        ("training", "validation", "words"),
        [(1, 0, "1 training example"), (2, 0, "2 training examples"), (1, 2, "1 training, 2 validation examples")],
    )
    def test_the_console(self, tmp_path, training, validation, words):
        info = RunInfo("x", tmp_path, 1, 1, 1, training, validation, 0, 1, 1, 1, "all_reduce")
        lines = [line.split("  ", 1)[1].strip() for line in start_summary(info, framed=False).splitlines()]
        assert words in lines
        assert "1 parameter" in lines
        out = io.StringIO()
        Console(file=out, width=200).print(end_summary({"steps": 1, "wall_s": 2.0}, None, {}))
        assert "finished after 1 step in 2.0 s" in out.getvalue()

    def test_one_layer_without_parameters(self):
        assert "1 layer, without parameters" in refused("nothing to train", output_shape, [Relu()], (3,))
