"""What `init` takes for inputs, and what for weights, groups, names and numbers of the examples, or nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from datasets import write_arrays
from guessed import IMAGES, X, data_of, job_of

from hpctrain.run.master import resolve
from hpctrain.tools import init as tool

GROUPED = np.repeat(np.arange(30), 4)


def test_weights_ids_and_counts_are_no_inputs(tmp_path: Path) -> None:
    columns = {"heat": X[:, 0], "rowid": np.arange(120)[::-1], "n": np.arange(120), "label": np.arange(120) % 2}
    path = write_arrays(tmp_path / "a.h5", **columns, w=np.abs(X[:, 1]), u=X[:, 2])
    text = tool.init([str(path)])
    section = tomllib.loads(text)["data"]
    assert (section["input"], section["target"], section["weight"]) == (["heat", "u"], "label", "w")
    assert "left out: 'rowid': by its name it tells examples apart" in text
    assert "left out: 'n': it counts the examples" in text
    assert data_of(tmp_path, **columns, u=X[:, 2], v=X[:, 3], w=np.abs(X[:, 1]))["input"] == ["heat", "u", "v", "w"]
    assert "named like weights" in tool.init([str(write_arrays(tmp_path / "b.h5", **columns, weight=X[:, 1]))])


def test_examples_without_a_target_do_not_count(tmp_path: Path) -> None:
    y = np.arange(120.0) / 7
    assert "missing" not in data_of(tmp_path, x=X, y=y)
    y[3] = np.nan
    assert data_of(tmp_path, x=X, y=y)["missing"] == "drop"
    resolve(job_of(tmp_path, [tmp_path / "a.h5"]))  # is content with it


@pytest.mark.parametrize("name", ["body_weight", "refractive_index", "time_of_flight", "offsetX"])
def test_words_of_ids_and_weights_in_other_names_say_nothing(tmp_path: Path, name: str) -> None:
    assert data_of(tmp_path, a=X[:, 0], label=np.arange(120) % 2, **{name: X[:, 1]})["input"] == ["a", name]


@pytest.mark.parametrize("name", ["start_time", "sample_index", "fold", "pad_mask", "eventId"])
def test_names_that_say_that_they_are_no_inputs(tmp_path: Path, name: str) -> None:
    found = data_of(tmp_path, heat=X[:, 0], label=np.arange(120) % 2, **{name: X[:, 1]})
    assert found == {"input": "heat", "target": "label"}
    found = data_of(tmp_path, heat=X[:, 0], label=np.arange(120) % 2, mcWeight=np.abs(X[:, 1]))
    assert found == {"input": "heat", "target": "label", "weight": "mcWeight"}


def test_what_looks_like_a_group_is_split_by(tmp_path: Path) -> None:
    names = np.array([f"s{i}" for i in GROUPED], "S4")
    for name, people in (("patient", GROUPED), ("subject_id", names), ("id", GROUPED)):
        path = write_arrays(tmp_path / f"{name}.h5", x=X, y=np.arange(120) % 2, **{name: people})
        section = tomllib.loads(tool.init([str(path)]))["data"]
        assert section["input"] == "x"
        assert section["split"] == {"validation": 0.1, "test": 0.1, "group": name}
        resolve(job_of(tmp_path, [path]))
    few = write_arrays(tmp_path / "few.h5", x=X, y=np.arange(120) % 2, site=np.arange(120) % 3, patient_age=X[:, 0])
    section = tomllib.loads(tool.init([str(few)]))["data"]
    assert section["input"] == ["patient_age", "x"]
    assert section["split"]["by"] == "stratified"


def test_columns_without_a_number_are_left_out(tmp_path: Path) -> None:
    table = X.copy()
    table[:, 2] = np.nan
    path = write_arrays(tmp_path / "a.h5", x=table, empty=np.full(120, np.nan), y=np.arange(120) % 2)
    text = tool.init([str(path)])
    section = tomllib.loads(text)["data"]
    assert section["input"] == ["x[:, 0:2]", "x[:, 3:6]"]
    assert "prepare" not in section
    assert "left out: 'x[:, 2]': missing (NaN) in every example" in text
    assert "left out: 'empty': missing" in text
    assert resolve(job_of(tmp_path, [path])).facts.input_shape == (5,)
    table[:, 0] += 2000
    table[5, 1] = np.nan
    wanted = {"input": ["x[:, 0:2]", "x[:, 3:6]"], "target": "y", "prepare": ["fill", "standardise"]}
    assert data_of(tmp_path, x=table, y=np.arange(120) % 2) == wanted


def test_records_beside_a_target_and_their_vectors(tmp_path: Path) -> None:
    kind = [
        ("p", "f4"),
        ("pos", "f8", (3,)),
        ("who", "S3"),
        ("patient", "i4"),
        ("w", "f4"),
        ("e e", "f4"),
        ("no", "f4"),
    ]
    table = np.zeros(120, kind)
    table["p"], table["pos"], table["patient"], table["w"], table["no"] = X[:, 0], X[:, 1:4], GROUPED, 1, np.nan
    path = write_arrays(tmp_path / "a.h5", ev=table, y=np.arange(120) % 3)
    section = tomllib.loads(text := tool.init([str(path)]))["data"]
    assert (section["input"], section["target"], section["weight"]) == ("ev[p, pos, e e]", "y", "ev[w]")
    assert section["split"]["group"] == "ev[patient]"
    assert "left out: 'ev[no]': missing" in text
    assert resolve(job_of(tmp_path, [path])).facts.input_shape == (5,)


@pytest.mark.parametrize("name", ["label", "species"])
def test_labels_of_records_are_split_by_class(tmp_path: Path, name: str) -> None:
    table = np.zeros(120, [("p", "f4"), (name, "i4" if name == "label" else "S4")])
    table["p"], table[name] = X[:, 0], np.arange(120) % 3
    path = write_arrays(tmp_path / "a.h5", ev=table)
    assert tomllib.loads(tool.init([str(path)]))["data"]["split"]["by"] == "stratified"
    resolve(job_of(tmp_path, [path]))


def test_text_of_few_values_is_a_target(tmp_path: Path) -> None:
    drinks = np.array(["café", "tea", "Wasser"], object)[np.arange(120) % 3]
    found = data_of(tmp_path, drink=drinks, x=X, note=np.array([f"n{i}" for i in range(120)], object))
    assert found == {"input": "x", "target": "drink"}


SCALARS = {"angle": X[:, 0], "energy": 1e4 + X[:, 1:3], "label": np.arange(120) % 2}


@pytest.mark.parametrize(
    ("name", "array", "first"),
    [
        ("image", IMAGES, "conv2d"),
        ("photo", np.moveaxis(IMAGES, -1, 1), "permute"),
        ("image", IMAGES[..., 0], "reshape"),
        ("signal", IMAGES[:, :, :5, 0], "conv1d"),
        ("cube", IMAGES[:, :4, :4, :, None], "conv3d"),
    ],
)
def test_inputs_of_different_shapes_have_branches(tmp_path: Path, name: str, array: np.ndarray, first: str) -> None:
    path = write_arrays(tmp_path / "a.h5", **{name: array}, **SCALARS)
    job = tomllib.loads(text := tool.init([str(path)]))
    assert (job["data"]["input"], job["data"]["combine"]) == ([name, "angle", "energy"], "flat")
    assert job["data"]["prepare"] == [{"name": "standardise", "columns": ["energy"]}]
    assert "'energy' has the mean 1e+04" in text
    branches = job["model"]["layers"][0]["branches"]
    assert branches[0][1]["type"] == first
    assert branches[1][0] == {"type": "columns", "start": array[0].size}
    assert resolve(job_of(tmp_path, [path])).facts.input_shape == (array[0].size + 3,)


def test_targets_for_each_place_leave_numbers_beside_an_image_out(tmp_path: Path) -> None:
    labels = np.arange(120 * 144).reshape(120, 12, 12) % 2
    found = data_of(tmp_path, image=IMAGES, angle=X[:, 0], label=labels)
    assert found == {"input": "image", "target": "label"}


def test_whole_numbers_stored_as_real_ones_are_hinted_at(tmp_path: Path) -> None:
    text = tool.init([str(write_arrays(tmp_path / "a.h5", x=X, target=np.arange(120) % 3 * 1.0))])
    assert "stored as integers, they would be classes" in text
