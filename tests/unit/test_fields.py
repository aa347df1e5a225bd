"""Fields: several datasets, columns, records and groups become one array."""

import h5py
import numpy as np
import pytest
from sources import refused, write

from hpctrain.data.facts import DataFacts
from hpctrain.data.fields.examples import Windows
from hpctrain.data.fields.expression import parse, settle
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.job import Job
from hpctrain.run.master import resolve

ROWS = 7


@pytest.fixture
def random():
    return np.random.default_rng(0)


class TestExpressions:
    @pytest.mark.parametrize(
        "cut", ["[:, 0:3]", "[:, ::2]", "[:, -3:]", "[:,1:-1]", "[:, -1]", "[:, 2]", "[:, :, 1]", "[:, 1:, ::2]", "[:]"]
    )
    @pytest.mark.parametrize("columns", [5, 3000])
    def test_columns_are_cut_as_numpy_does(self, tmp_path, random, cut, columns):
        x = random.normal(size=(ROWS, columns, 4)).astype("f4")
        source = Hdf5Source([write(tmp_path / "a.h5", x=x, y=np.zeros(ROWS, int))], f"x{cut}", "y")
        expected = eval(f"x{cut}")
        assert source.input_shape == expected.shape[1:]
        inputs = source.read(2, 6)[0]
        assert inputs.flags.c_contiguous
        assert np.array_equal(inputs, expected[2:6])

    def test_inputs_and_labels_of_one_dataset(self, tmp_path, random):
        jets = random.normal(size=(ROWS, 9)).astype("f4")
        jets[:, -5:] = np.eye(5)[[0, 4, 2, 2, 1, 3, 0]]
        path = write(tmp_path / "a.h5", jets=jets)
        source = Hdf5Source([path], "jets[:, 0:4]", "jets[:, -5:]", one_hot=True)
        inputs, targets, _ = source.read(0, ROWS)
        assert np.array_equal(inputs, jets[:, :4])
        assert targets.tolist() == [0, 4, 2, 2, 1, 3, 0]
        assert DataFacts.collect(source).classes == 5
        assert source.shared_numbers() is None
        assert Hdf5Source([path], "jets[:, 0:5]", "jets[:, -5:]", one_hot=True).shared_numbers() == "jets[:, -5:]"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("x[1:, 0:2]", "the first axis counts the examples"),
            ("x[0]", "the first axis counts the examples"),
            ("x[:, 0:6]", "columns that are not there"),
            ("x[:, 5]", "allowed: 0 to 4 "),
            ("x[:, -6]", "columns that are not there"),
            ("x[:, 3:3]", "columns that are not there"),
            ("x[:, :, 0]", "more axes are cut"),
            ("x[:, ::-1]", "a step of -1"),
            ("x[:, a]", "slices and names mixed"),
            ("x[a]", "holds no records"),
            ("x[]", "nothing between"),
            ("x[:,,1]", "nothing between"),
            ("x[:", "brackets"),
        ],
    )
    def test_what_cannot_be_cut_is_refused(self, tmp_path, text, words):
        path = write(tmp_path / "a.h5", x=np.zeros((ROWS, 5)), y=np.zeros(ROWS, int))
        assert f"data.input = '{text}'" in refused(words, Hdf5Source, [path], text, "y")

    def test_a_name_with_brackets_and_stars_means_itself(self, tmp_path, random):
        x = random.normal(size=(ROWS, 2))
        path = write(tmp_path / "a.h5", **{"E[GeV]": x, "p*": 2 * x, "p1": x, "y": np.zeros(ROWS, int)})
        assert np.array_equal(Hdf5Source([path], "E[GeV]", "y").read(0, ROWS)[0], x.astype("f4"))
        assert np.array_equal(Hdf5Source([path], "p*", "y").read(0, ROWS)[0], 2 * x.astype("f4"))

    def test_settled_axes_are_within_the_shape(self):
        assert settle(parse("x[1:, -1, ::3]", "k").axes, (4, 5, 7, 2), "x") == (
            slice(1, 4, 1),
            4,
            slice(0, 7, 3),
            slice(0, 2, 1),
        )


class TestSeveral:
    def test_a_list_a_pattern_and_a_group_are_columns(self, tmp_path, random):
        parts = {f"p{i}": random.normal(size=(ROWS, 2) if i % 2 else ROWS) for i in (1, 2, 10)}
        path = write(tmp_path / "a.h5", y=np.zeros(ROWS, int), **{f"g__{name}": part for name, part in parts.items()})
        expected = np.concatenate([parts[f"p{i}"].reshape(ROWS, -1) for i in (1, 2, 10)], axis=1).astype("f4")
        for text in (["g/p1", "g/p2", "g/p10"], "g/p*", "g", "/g/", "*/p*"):
            source = Hdf5Source([path], text, "y")
            assert np.array_equal(source.read(0, ROWS)[0], expected)
            assert source.input_parts == {"g/p1": (0, 2, None), "g/p2": (2, 3, None), "g/p10": (3, 4, None)}
        mixed = Hdf5Source([path], ["g/p1[:, 1]", "g/p2"], "y")
        assert np.array_equal(mixed.read(0, ROWS)[0], np.stack([parts["p1"][:, 1], parts["p2"]], 1).astype("f4"))
        assert list(mixed.input_parts) == ["g/p1[:, 1]", "g/p2"]

    def test_more_axes_are_one_behind_the_other_or_stacked(self, tmp_path, random):
        a, b = random.normal(size=(2, ROWS, 4, 3)).astype("f4")
        c = random.normal(size=(ROWS, 4, 1)).astype("f4")
        path = write(tmp_path / "a.h5", a=a, b=b, c=c, y=np.zeros(ROWS, int))
        assert np.array_equal(
            Hdf5Source([path], ["a", "c", "b"], "y").read(1, 5)[0], np.concatenate([a, c, b], axis=2)[1:5]
        )
        stacked = Hdf5Source([path], ["a", "b"], "y", combine="stack")
        assert np.array_equal(stacked.read(1, 5)[0], np.stack([a, b], axis=3)[1:5])
        assert stacked.input_parts == {"a": (0, 1, None), "b": (1, 2, None)}
        first = Hdf5Source([path], ["a", "b"], "y", channels_first=True)
        assert np.array_equal(first.read(0, ROWS)[0], np.moveaxis(np.concatenate([a, b], axis=1), 1, 2))
        assert "equal shapes" in refused("stacked", Hdf5Source, [path], ["a", "c"], "y", combine="stack")
        refused(r"cannot be columns(.|\n)*a \(4, 3\), y \(\)", Hdf5Source, [path], ["a", "y"], "y")

    def test_targets_of_several_datasets(self, tmp_path, random):
        labels, numbers = random.integers(0, 3, (2, ROWS)), random.normal(size=(2, ROWS))
        path = write(tmp_path / "a.h5", x=np.zeros(ROWS), a=labels[0], b=labels[1], c=numbers[0], d=numbers[1])
        source = Hdf5Source([path], "x", ["a", "b"])
        assert (source.target_kind, source.format.target_shape) == ("class", (2,))
        assert np.array_equal(source.read(0, ROWS)[1], labels.T)
        mixed = Hdf5Source([path], "x", ["c", "a"])
        assert mixed.target_kind == "real"
        assert np.array_equal(mixed.read(0, ROWS)[1], np.stack([numbers[0], labels[0]], 1).astype("f4"))

    def test_fields_of_records(self, tmp_path, random):
        kind = np.dtype([("px", ">f4"), ("n", "i2"), ("pos", "f8", (3,)), ("name", "S4")])
        events = np.zeros(ROWS, kind)
        events["px"], events["n"], events["pos"] = random.normal(size=ROWS), np.arange(ROWS) % 3, np.eye(7)[:, :3]
        events["name"] = [b"a", b"", b"b", b"", b"", b"", b"a"]
        path = write(tmp_path / "a.h5", events=events)
        source = Hdf5Source([path], "events[pos, px]", "events[n]")
        inputs, targets, _ = source.read(1, 6)
        assert np.array_equal(inputs, np.concatenate([events["pos"], events["px"][:, None]], axis=1)[1:6].astype("f4"))
        assert targets.tolist() == events["n"][1:6].tolist()
        assert source.input_parts == {"events[pos]": (0, 3, None), "events[px]": (3, 4, None)}
        assert source.shared_numbers() is None
        assert 'data.input = "events[px, n, pos]"' not in refused("records", Hdf5Source, [path], "events", "events[n]")
        assert "events[px, n, pos]" in refused("records", Hdf5Source, [path], "events", "events[n]")
        assert "px, n, pos, name" in refused("no field 'pz'", Hdf5Source, [path], "events[pz]", "events[n]")
        message = refused("'name' does not hold numbers", Hdf5Source, [path], "events[px, name]", "events[n]")
        assert '["events[name]", ...]' in message
        text = Hdf5Source([path], "events[px]", "events[name]")
        assert text.categories == {"target": {"events[name]": ["", "a", "b"]}}
        assert text.read(0, ROWS)[1].tolist() == [1, 0, 2, 0, 0, 0, 1]

    def test_the_dataset_of_a_bad_value_is_named(self, tmp_path):
        b = np.zeros((ROWS, 2))
        b[3, 1] = np.nan
        path = write(tmp_path / "a.h5", a=np.zeros(ROWS), b=b, y=np.zeros(ROWS, int))
        source = Hdf5Source([path], ["a", "b"], "y")
        refused("NaN in the data: row 3 of 'b' in ", source.check_values, *source.read(0, ROWS), 0)

    def test_files_with_other_datasets_in_a_group_are_refused(self, tmp_path):
        a = write(tmp_path / "a.h5", g__a=np.zeros(3), g__b=np.zeros(3), y=np.zeros(3, int))
        b = write(tmp_path / "b.h5", g__a=np.zeros(3), g__c=np.zeros(3), y=np.zeros(3, int))
        message = refused("do not fit together", Hdf5Source, [a, b], "g", "y")
        assert "'g/c'" in message
        assert b in message

    def test_all_numbers_of_rows_are_named(self, tmp_path):
        path = write(tmp_path / "a.h5", a=np.zeros(4), b=np.zeros(5), y=np.zeros(4, int), w=np.ones(3))
        message = refused("different numbers of rows", Hdf5Source, [path], ["a", "b"], "y", weight="w")
        assert "'a' has 4 rows, 'b' has 5, 'y' has 4, 'w' has 3" in message

    def test_a_target_among_several_inputs_is_told(self, tmp_path):
        path = write(tmp_path / "a.h5", g__a=np.zeros(4), g__b=np.ones((4, 2)), c=np.zeros(4))

        def shared(input, target, **options):
            return Hdf5Source([path], input, target, **options).shared_numbers()

        assert shared("g", "g/b") == "g/b"
        assert shared(["g/a", "g/b[:, 0]"], "g/b") == "g/b"
        assert shared(["g/a", "g/b[:, 0]"], "g/b[:, 1]") is None
        assert shared("g", "g") is None, "an autoencoder"
        assert shared("g/b", "g/b[:, 0]") is None, "likewise"
        assert shared(["g/a", "c"], "c", windows=Windows(2)) is None, "its past"
        assert shared("c", "c", windows=Windows(2, (0, 1))) == "c", "its own last row"

    def test_what_was_never_written_is_told(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            half = file.create_dataset("half", (10, 4), "f4", chunks=(3, 2), fillvalue=-1)
            half[:6] = 1
            file.create_dataset("never", (10,), "i4")
            file.create_dataset("empty", (0, 4), "f4", chunks=(3, 2), maxshape=(None, 4))
            file["y"] = np.zeros(10, int)
        path = str(tmp_path / "a.h5")
        (line,) = Hdf5Source([path], "half", "y").unwritten
        assert line == f"'/half' in {path}: 4 of 8 chunks were never written, and read as -1.0"
        (line,) = Hdf5Source([path], "y", "never").unwritten
        assert "'/never'" in line
        assert "was never written" in line
        assert "never written" in resolve(Job(data={"files": path, "input": "half", "target": "y"})).notes[0]

    def test_a_link_that_leads_nowhere_is_named(self, tmp_path):
        write(tmp_path / "b.h5", d=np.arange(4.0))
        path = write(tmp_path / "a.h5", y=np.arange(4))
        with h5py.File(path, "a") as file:
            file["g/a"], file["g/b"] = h5py.ExternalLink("b.h5", "d"), h5py.SoftLink("/y")
        assert np.array_equal(Hdf5Source([path], "g", "y").read(0, 4)[0], np.stack([np.arange(4)] * 2, 1))
        for link, words in ((h5py.ExternalLink("gone.h5", "d"), "'d' in 'gone.h5'"), (h5py.SoftLink("/nix"), "'/nix'")):
            with h5py.File(path, "a") as file:
                file["g/c"] = link
            for text in ("g", "g/*"):
                assert words in refused("leads nowhere: 'c' in group '/g'", Hdf5Source, [path], text, "y")
            with h5py.File(path, "a") as file:
                del file["g/c"]
        assert refused("fits nothing", Hdf5Source, [path], "nix/*", "y")

    def test_a_pattern_that_fits_nothing(self, tmp_path):
        path = write(tmp_path / "a.h5", part_1=np.zeros(4), y=np.zeros(4, int))
        message = refused("fits nothing", Hdf5Source, [path], "parts_*", "y")
        assert "part_1 (4,) float64" in message

    def test_a_file_that_is_none_of_the_data_can_be_left_out(self, tmp_path):
        paths = [write(tmp_path / "a.h5", x=np.zeros(4), y=np.zeros(4, int)), write(tmp_path / "stats.h5", mean=[0.0])]
        assert 'data.exclude = "stats.h5"' in refused("no such dataset", Hdf5Source, paths, "x", "y")


class TestOneHot:
    @pytest.mark.parametrize("row", [[0, 0, 0], [1, 1, 0], [0.5, 0.5, 0], [2, -1, 0], [0, np.nan, 1]])
    def test_a_row_that_is_not_is_named(self, tmp_path, row):
        y = np.eye(3)[[0, 1, 2, 0, 1]]
        y[3] = row
        path = write(tmp_path / "a.h5", x=np.zeros(5), y=y, w=np.array([1, 1, 1, 0, 1]))
        source = Hdf5Source([path], "x", "y", one_hot=True)
        for action, args in ((DataFacts.collect, (source,)), (source.check_values, (*source.read(0, 5), 0))):
            refused("not one-hot: row 3 of 'y'", action, *args)
        weighted = Hdf5Source([path], "x", "y", one_hot=True, weight="w")
        weighted.check_values(*weighted.read(0, 5), 0)
        assert DataFacts.collect(weighted).classes == 3

    def test_of_positions_and_of_other_types(self, tmp_path):
        labels = np.array([[0, 1], [2, 2], [1, 0]])
        path = write(tmp_path / "a.h5", x=np.zeros((3, 2)), y=np.eye(3, dtype=bool)[labels], z=np.zeros(3))
        source = Hdf5Source([path], "x", "y", one_hot=True)
        assert source.format.target_shape == (2,)
        assert np.array_equal(source.read(0, 3)[1], labels)
        refused("a column for each class", Hdf5Source, [path], "x", "z", one_hot=True)
        refused("the loss takes real", Hdf5Source, [path], "x", "y", "real", one_hot=True)
