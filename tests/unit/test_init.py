"""The verb `init`: what it guesses for each layout, that its jobs run as they are, what it says when nothing fits."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from datasets import write_arrays
from guessed import IMAGES, X, data_of, job_of
from wild import NAMES, files_of

from hpctrain import train
from hpctrain.comm.single_group import SingleGroup
from hpctrain.errors import UserError
from hpctrain.run.master import resolve
from hpctrain.tools import init as tool
from hpctrain.tools.guessing.choose import guess
from hpctrain.tools.guessing.network import global_batch
from hpctrain.tools.guessing.survey import Survey
from hpctrain.tools.shard import shard

# What a person who knows the layout would write, and how many examples there are (of series: None, as windows are
# counted when the job is read).
XY = {"input": "x", "target": "y"}
ONE_HOT = {"input": "jets[:, 0:54]", "target": "jets[:, -5:]", "target_encoding": "one_hot"}
WANTED: dict[str, tuple[dict, int | None]] = {
    "jets": (ONE_HOT, 237),
    "constituents": (ONE_HOT, 237),
    "features": ({"input": "features", "target": "labels"}, 63),
    "climate": ({"examples": "files", "input": "climate/data", "target": "climate/labels"}, 11),
    "volumes": (
        {
            "examples": "files",
            "input": "full",
            "target": "unitPar",
            "prepare": [{"name": "standardise", "axis": "channel"}],
        },
        9,
    ),
    "masked": ({"input": "INPUTS/src/feature", "target": "TARGETS/label", "mask": "INPUTS/src/MASK"}, 50),
    "samples": ({"examples": "groups", "group": "sample_*", "input": "image", "target": "energy"}, 17),
    "records": ({"input": "records_*", "target": "labels"}, 61),
    "empty_shards": (XY, 33),
    "big_endian": (XY, 60),
    "half_precision": (XY, 60),
    "two_rows": ({**XY, "prepare": ["standardise"]}, 2),
    "sorted_classes": (XY, 60),
    "large_chunks": (XY, 2500),
    "virtual": (XY, 30),
    "events": ({"input": "events[px, py]", "target": "events[kind]", "prepare": ["standardise"]}, 45),
    "series": (
        {"input": "power", "target": "power", "windows": {"length": 7, "horizon": 1, "stride": 1, "run": "run"}},
        None,
    ),
    "flowers": ({"input": "size", "target": "kind"}, 50),
    "packed": ({"input": "t", "target": "y", "prepare": ["fill", "standardise"]}, 40),
    "compressed": (XY, 80),
    "file_each": ({"examples": "files", "input": "climate/data", "target": "climate/labels_0"}, 8),
    "masked_columns": ({"input": "INPUTS/src", "combine": "stack", "target": "TARGETS/kind"}, 60),
    "group_each": (
        {
            "examples": "groups",
            "group": "sample_*",
            "input": ["image", "angle", "energy"],
            "combine": "flat",
            "target": "label",
        },
        24,
    ),
    "texts": ({"input": "measured", "target": "class", "prepare": ["fill"]}, 60),
    "one_series": (
        {"input": "signal", "target": "signal", "windows": {"length": 48, "horizon": 1, "stride": 1, "run": "run_id"}},
        None,
    ),
}
# Networks of dense layers share what is compiled, so that running all of their jobs is quick.
OTHER_NETWORKS = {
    *("climate", "file_each", "volumes", "masked", "masked_columns", "samples", "group_each", "series", "one_series")
}
DENSE = [layout for layout in NAMES if layout not in OTHER_NETWORKS]


@pytest.mark.parametrize("layout", NAMES)
def test_the_layout_is_recognised_and_the_job_fits_the_data(layout: str, tmp_path: Path) -> None:
    paths = files_of(layout, tmp_path)
    text = tool.init([str(path) for path in paths])
    section, (wanted, rows) = tomllib.loads(text)["data"], WANTED[layout]
    assert {key: value for key, value in section.items() if key not in ("files", "split")} == wanted
    prepared = resolve(job_of(tmp_path, paths))  # checks the network, the loss and the metrics against the data
    if rows is not None:
        assert f"{rows:,} examples" in text.splitlines()[0]
        assert sum(prepared.facts.rows.values()) == rows


def test_every_layout_is_asked_for() -> None:
    assert set(WANTED) == set(NAMES)
    assert len(DENSE) >= 10


@pytest.mark.parametrize("layout", DENSE)
def test_the_job_runs_as_it_is(layout: str, tmp_path: Path) -> None:
    job = job_of(tmp_path, files_of(layout, tmp_path), ["run.progress=none"])
    result = train(job, run_dir=tmp_path / "run", group=SingleGroup())
    assert result.summary["finished"]
    assert np.isfinite(result.summary["train_loss"])


def test_a_file_of_statistics_beside_one_example_a_file_is_left_out(tmp_path: Path) -> None:
    paths = files_of("file_each", tmp_path)
    text = tool.init([str(path) for path in paths])
    assert tomllib.loads(text)["data"]["files"] == str(tmp_path / "data-*.h5")
    assert "left out: " in text
    assert str(tmp_path / "stats.h5") in text


def test_other_choices_are_listed(tmp_path: Path) -> None:
    text = tool.init([str(path) for path in files_of("jets", tmp_path)])
    assert "#     input = 'constituents' (float32 of (150, 16) an example)" in text


def test_targets_are_told_by_their_names(tmp_path: Path) -> None:
    assert data_of(tmp_path, x=X, y=np.arange(120) % 3) == {"input": "x", "target": "y"}
    found = data_of(tmp_path, data=X, event_id=np.arange(120), Category=np.arange(120) % 2)
    assert found == {"input": "data", "target": "Category"}
    found = data_of(tmp_path, xTrain=X, yTrain=np.arange(120) % 2, xTest=X[:30], yTest=np.arange(30) % 2)
    assert found == {"input": "xTrain", "target": "yTrain"}


def test_targets_without_a_name_are_told_by_what_they_hold(tmp_path: Path) -> None:
    assert data_of(tmp_path, spectra=X, kind=np.arange(120) % 4) == {"input": "spectra", "target": "kind"}
    assert data_of(tmp_path, cube=IMAGES, parameters=X[:, :2]) == {"input": "cube", "target": "parameters"}
    one_hot = np.eye(4, dtype="u1")[np.arange(120) % 4]
    found = data_of(tmp_path, x=X, labels=one_hot)
    assert found == {"input": "x", "target": "labels", "target_encoding": "one_hot"}


def test_weights_masks_and_labels_of_minus_one(tmp_path: Path) -> None:
    labels = np.arange(120 * 12).reshape(120, 12) % 3 - 1
    found = data_of(tmp_path, x=X.repeat(2, 1), labels=labels[:, 0], weights=np.abs(X[:, 0]))
    assert found == {"input": "x", "target": "labels", "ignore_label": -1, "weight": "weights"}
    found = data_of(tmp_path, x=np.zeros((120, 12, 2)), labels=labels % 2, mask=labels >= 0)
    assert found == {"input": "x", "target": "labels", "mask": "mask"}


def test_numbers_far_from_zero_are_standardised(tmp_path: Path) -> None:
    far = X * [1, 1, 1, 1, 1, 50] + [0, 0, 2000, 0, 0, 0]
    targets = 1e5 + X[:, :2]
    found = data_of(tmp_path, x=far, target=targets)
    assert (found["prepare"], found["prepare_target"]) == (["standardise"], ["standardise"])
    found = data_of(tmp_path, images=(IMAGES * 50 + 128).astype("u1"), y=np.arange(120) % 2)
    assert found["prepare"] == [{"name": "standardise", "axis": "channel"}]
    found = data_of(tmp_path, images=(IMAGES[..., 0] * 50 + 128).astype("u1"), y=np.arange(120) % 2)
    assert found["prepare"] == [{"name": "standardise", "axis": "all"}]
    found = data_of(tmp_path, signal=np.cumsum(np.ones((300, 2)), 0))
    assert found["prepare"] == [{"name": "standardise", "axis": "channel"}]
    assert found["prepare_target"] == ["standardise"]


def test_one_label_of_few_an_example_is_split_by_class(tmp_path: Path) -> None:
    for name, target in (("kind", np.arange(120) % 3), ("y", X[:, 0])):
        path = write_arrays(tmp_path / f"{name}.h5", x=X, **{name: target})
        assert tomllib.loads(tool.init([str(path)]))["data"]["split"] == (
            {"validation": 0.1, "test": 0.1} | ({"by": "stratified"} if name == "kind" else {})
        )
    rare = np.arange(120) // 2  # two examples of each class: no tenth of them
    path = write_arrays(tmp_path / "rare.h5", x=X, y=rare)
    assert "by" not in tomllib.loads(tool.init([str(path)]))["data"]["split"]
    assert resolve(job_of(tmp_path, [path])).facts.rows == {"train": 96, "validation": 12, "test": 12}


def test_several_columns_make_a_table(tmp_path: Path) -> None:
    found = data_of(tmp_path, pressure=X[:, 0], time=np.arange(120), label=np.arange(120) % 2, heat=X[:, 1:3])
    assert found == {"input": ["heat", "pressure"], "target": "label"}


def test_texts_among_the_fields_of_records_are_classes(tmp_path: Path) -> None:
    table = np.zeros(60, [("px", "f4"), ("py", "f8"), ("species", "S5")])
    table["px"], table["species"] = X[:60, 0], [b"pion", b"muon", b"kaon"] * 20
    found = {"input": "events[px, py]", "target": "events[species]", "prepare": ["standardise"]}
    assert data_of(tmp_path, events=table) == found
    resolve(job_of(tmp_path, [tmp_path / "a.h5"]))


def test_several_labels_an_example_are_numbers_to_predict(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "a.h5", x=X, labels=np.arange(360).reshape(120, 3) // 7 % 2)
    assert resolve(job_of(tmp_path, [path])).facts.target_shape == (3,)
    assert resolve(job_of(tmp_path, [path])).facts.target_kind == "real"


def test_one_class_alone_makes_a_job_too(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "a.h5", x=X, labels=np.zeros(120, "i4"))
    resolve(job_of(tmp_path, [path]))


def test_labels_that_lie_across_are_no_series(tmp_path: Path) -> None:
    """As MATLAB writes them: (columns, rows)."""
    path = write_arrays(tmp_path / "a.h5", X=X.T, y=np.ones((1, 120)))
    with pytest.raises(UserError, match="no inputs with targets"):
        tool.init([str(path)])


def test_texts_that_are_all_different_are_no_classes(tmp_path: Path) -> None:
    names = np.array([f"event {i}" for i in range(1200)], object)
    found = data_of(tmp_path, x=np.zeros((1200, 4)), label=names, group=np.arange(1200) % 2)
    assert found["target"] == "group"


def test_whole_numbers_that_are_too_many_for_classes_are_predicted_as_numbers(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "a.h5", x=X, target=np.arange(120) * 50 - 3000)
    job = tomllib.loads(tool.init([str(path)]))
    assert job["loss"] == {"name": "mse"}
    assert resolve(job_of(tmp_path, [path])).facts.target_kind == "real"


@pytest.mark.parametrize(
    ("shape", "target", "wanted"),
    [
        ((16, 16), np.arange(120) % 3, "conv2d"),
        ((12, 12, 3), np.arange(120) % 3, "conv2d"),
        ((3, 12, 12), np.arange(120) % 3, "channels_first = true"),
        ((40, 5), np.arange(120) % 3, "conv1d"),
        ((8, 8, 8, 2), np.ones((120, 2)), 'preset = "cosmoflow"'),
        ((16, 16, 2), np.arange(120 * 256).reshape(120, 16, 16) % 2, 'preset = "unet"'),
        ((20, 3), np.arange(120 * 20).reshape(120, 20) % 2, 'preset = "lstm"'),
        ((20, 3), np.ones((120, 20, 2)), "return_sequences = true"),
    ],
)
def test_the_network_fits_the_shape(shape: tuple, target: np.ndarray, wanted: str, tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).normal(size=(120, *shape)).astype("f4")
    path = write_arrays(tmp_path / "a.h5", inputs=inputs, targets=target)
    assert wanted in tool.init([str(path)])
    resolve(job_of(tmp_path, [path]))


def test_tokens_get_a_decoder(tmp_path: Path) -> None:
    text = np.random.default_rng(0).integers(0, 30, (120, 17))
    path = write_arrays(tmp_path / "a.h5", tokens=text[:, :-1], targets=text[:, 1:])
    assert 'preset = "gpt"' in tool.init([str(path)])
    resolve(job_of(tmp_path, [path]))


def test_files_for_the_test_are_told_by_their_names(tmp_path: Path) -> None:
    for name in ("train-1", "train-2", "valid", "test"):
        write_arrays(tmp_path / f"{name}.h5", x=X, y=np.arange(120) % 2)
    section = tomllib.loads(tool.init([str(tmp_path / "*.h5")]))["data"]
    assert section["files"] == [str(tmp_path / "train-1.h5"), str(tmp_path / "train-2.h5")]
    assert section["test_files"] == str(tmp_path / "test.h5")
    assert section["validation_files"] == str(tmp_path / "valid.h5")
    assert "split" not in section


def test_a_folder_of_shards_is_named_as_such(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "a.h5", x=X, y=np.arange(120) % 2)
    for shards in (1, 4):
        shard(SingleGroup(), [str(path)], shards, tmp_path / f"in-{shards}")
        text = tool.init([str(tmp_path / f"in-{shards}")])
        assert tomllib.loads(text)["data"]["files"] == str(tmp_path / f"in-{shards}")
    assert resolve(job_of(tmp_path, [tmp_path / "in-4"])).facts.rows["train"] == 96


@pytest.mark.parametrize(("rows", "batch"), [(1, 8), (237, 8), (3000, 64), (60_000, 256), (10**9, 256)])
def test_the_batch_grows_with_the_data(rows: int, batch: int) -> None:
    assert global_batch(rows) == batch


def test_names_with_quotes_and_spaces_are_written_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / 'a "folder"'
    folder.mkdir()
    path = write_arrays(folder / "my data.h5", **{"my inputs": X, "class": np.arange(120) % 2})
    section = tomllib.loads(tool.init([str(path)]))["data"]
    assert (section["files"], section["input"]) == (str(path), "my inputs")


def test_where_nothing_fits_it_says_what_was_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_arrays(tmp_path / "a.h5", volumes=np.zeros((10, 4, 4, 4)), more=np.zeros((7, 4, 4, 4)))
    with pytest.raises(UserError, match="no inputs with targets were found") as caught:
        tool.init([str(path)])
    for words in ("volumes (10, 4, 4, 4) float64", "label, target, y", "one example a file", "python -m hpctrain job"):
        assert words in caught.value.message
    assert tool.command([str(path)]) == 2
    assert capsys.readouterr().out == "", "no half of a job where a file is to come of it"
    assert tool.command([str(tmp_path / "gone.h5")]) == 2
    assert "not found" in capsys.readouterr().err


def test_values_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files_of("jets", tmp_path)
    survey = Survey.of([str(one) for one in path])
    guess(survey)
    monkeypatch.setattr("hpctrain.tools.guessing.survey.sample", lambda *_: pytest.fail("sampled again"))
    monkeypatch.setattr("hpctrain.tools.guessing.survey.summarise", lambda *_: pytest.fail("read again"))
    guess(survey)
