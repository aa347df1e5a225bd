"""A trained network used again from Python, and what Python users get wrong."""

import dataclasses
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from hpctrain import Job, evaluate, load_model, train
from hpctrain.comm.single_group import SingleGroup
from hpctrain.errors import UserError
from hpctrain.nn.layers.dense import Dense


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    random = np.random.default_rng(3)
    with h5py.File(folder / "data.h5", "w") as file:
        file["x"] = random.normal(size=(20, 2, 3)).astype("f4")
        file["y"] = random.normal(size=(20, 2)).astype("f4")
    job = Job(
        data={"files": folder / "data.h5", "input": "x", "target": "y"},
        model={"layers": ["flatten", Dense(units=2)]},
        run={"epochs": 1, "progress": "none"},
    )
    result = train(job, run_dir=folder / "a", group=SingleGroup())
    return folder, job, result


def test_threads_may_predict_at_the_same_time():
    """Each gets the outputs of its own inputs: y = relu(x W) V by numpy."""
    random = np.random.default_rng(5)
    job = {"model": {"layers": [Dense(units=256), "relu", Dense(units=3)]}, "run": {"epochs": 1, "progress": "none"}}
    x, y = random.normal(size=(64, 40)).astype("f4"), random.normal(size=(64, 3)).astype("f4")
    with tempfile.TemporaryDirectory() as folder:
        with h5py.File(f"{folder}/data.h5", "w") as file:
            file["x"], file["y"] = x, y
        data = {"files": f"{folder}/data.h5", "input": "x", "target": "y"}
        result = train(Job(data=data, **job), run_dir=f"{folder}/run", group=SingleGroup())
    weight1, bias1, weight2, bias2 = (values.astype("f8") for values in result.weights.values())
    inputs = [random.normal(size=(rows, 40)).astype("f4") for rows in (900, 1100, 1000, 800) * 5]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(result.predict, inputs))
    for given, found in zip(inputs, outputs, strict=True):
        hidden = np.maximum(given @ weight1 + bias1, 0)
        expected = hidden @ weight2 + bias2
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_predict_is_the_network(run):
    folder, _, result = run
    with h5py.File(folder / "data.h5") as file:
        x = file["x"][:]
    weights = {name: value.astype("f8") for name, value in result.weights.items()}
    expected = x.reshape(20, 6) @ weights["dense1.weight"] + weights["dense1.bias"]
    np.testing.assert_allclose(result.predict(x), expected, rtol=1e-5, atol=1e-6)
    # A network from the folder is the same one, and does not ask for the data.
    (folder / "data.h5").rename(folder / "moved.h5")
    try:
        loaded = load_model(folder / "a")
    finally:
        (folder / "moved.h5").rename(folder / "data.h5")
    np.testing.assert_array_equal(loaded.predict(x), result.predict(x))
    assert loaded.weights.keys() == result.weights.keys()


def test_a_finished_run_that_is_resumed_predicts_too(run):
    folder, job, result = run
    again = train(job, run_dir=folder / "a", resume=True, group=SingleGroup())
    inputs = np.ones((1, 2, 3), np.float32)
    np.testing.assert_array_equal(again.predict(inputs), result.predict(inputs))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (np.ones((3, 2)), r"shape \(3, 2\)[\s\S]*\(rows, 2, 3\)"),
        (np.ones((2, 3)), r"add an axis"),
        (np.ones((4, 3, 2)), r"shape \(4, 3, 2\)"),
        (np.ones((1, 2, 3), complex), "real numbers"),
        (np.array([["a"]]), "real numbers"),
    ],
)
def test_inputs_of_another_shape_are_refused(run, inputs, text):
    with pytest.raises(UserError, match=text):
        run[2].predict(inputs)


def test_evaluate_takes_paths(run):
    folder, _, _ = run
    by_path = evaluate(folder / "a", data=folder / "data.h5", group=SingleGroup())
    assert by_path == evaluate(str(folder / "a"), data=[str(folder / "data.h5")], group=SingleGroup())


def test_one_file_in_two_parts_is_refused_by_whatever_name(run):
    folder, job, _ = run
    (folder / "link.h5").symlink_to(folder / "data.h5")
    leaking = Job.from_dict({**job.to_dict(), "data": {**job.to_dict()["data"], "test_files": str(folder / "link.h5")}})
    with pytest.raises(UserError, match=r"in two parts of the data, data.files and data.test_files[\s\S]*link.h5"):
        train(leaking, run_dir=folder / "b", group=SingleGroup())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("def build(input_shape, outputs):\n    [Dense(units=outputs)]\n", r"did not return a list[\s\S]*`return`"),
        ("def build():\n    return []\n", r"failed when called as build\(\(2, 3\), 2\)[\s\S]*TypeError"),
        ("def build(input_shape, outputs):\n    return [Dense(unit=3)]\n", r"line 3[\s\S]*Dense: unit"),
        ("def build(input_shape, outputs):\n    return [1 / 0]\n", r"line 3[\s\S]*ZeroDivisionError"),
        ("def build(input_shape, outputs):\n    return ['dens']\n", r"unknown layer 'dens'[\s\S]*'dense'"),
    ],
)
def test_mistakes_in_a_builder_show_the_users_own_line(run, body, text):
    folder, job, _ = run
    (folder / "net.py").write_text("from hpctrain.nn.layers.dense import Dense\n" + body)
    wrong = Job.from_dict({**job.to_dict(), "model": {"python": f"{folder / 'net.py'}:build"}})
    with pytest.raises(UserError, match=text) as caught:
        train(wrong, run_dir=folder / "c", group=SingleGroup())
    assert "master.py" not in caught.value.message


def test_a_builder_may_name_layers_as_a_job_file_does(run):
    folder, job, _ = run
    (folder / "net.py").write_text(
        "def build(input_shape, outputs):\n    return ['flatten', {'type': 'dense', 'units': outputs}]\n"
    )
    named = Job.from_dict({**job.to_dict(), "model": {"python": f"{folder / 'net.py'}:build"}})
    result = train(named, run_dir=folder / "d", group=SingleGroup())
    assert result.weights.keys() == run[2].weights.keys()


def test_a_damaged_model_is_said_and_the_checkpoint_taken(run, capsys, tmp_path):
    folder, _, _ = run
    shutil.copytree(folder / "a", tmp_path / "a")
    model = tmp_path / "a" / "model.h5"
    model.write_bytes(model.read_bytes()[:-100])
    assert evaluate(tmp_path / "a", folder / "data.h5", group=SingleGroup())["examples"] == 20
    said = capsys.readouterr().err
    assert "model.h5 cannot be used, cut off" in said
    assert "after step 1 (step-00000001.h5)" in said


def test_data_of_another_form_are_refused_in_their_own_words(run):
    folder, _, _ = run
    with h5py.File(folder / "other.h5", "w") as file:
        file["x"], file["y"] = np.ones((4, 3, 2), np.float32), np.ones((4, 2), np.float32)
    with pytest.raises(UserError, match=r"trained on[\s\S]*\(3, 2\)[\s\S]*\(2, 3\)"):
        evaluate(folder / "a", data=folder / "other.h5", group=SingleGroup())


def test_one_absurd_label_is_named_before_it_eats_the_memory(run):
    folder, job, _ = run
    with h5py.File(folder / "labels.h5", "w") as file:
        file["x"] = np.ones((20, 3), np.float32)
        file["y"] = np.array([0] * 12 + [10_000_000] + [1] * 7)
    document = job.to_dict()
    document["data"]["files"] = str(folder / "labels.h5")
    for section in ("model", "loss", "metrics"):
        document.pop(section, None)
    with pytest.raises(UserError, match=r"10000000 in row 12"):
        train(Job.from_dict(document), run_dir=folder / "e", group=SingleGroup())


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A run on numbers that are packed as netCDF does it, some of them missing; the numbers that are meant."""
    folder = tmp_path_factory.mktemp("packed")
    stored = np.random.default_rng(0).integers(-300, 300, (40, 6)).astype("i2")
    stored[3, 2] = -9999
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"], file["y"] = stored, np.arange(40.0)
        file["x"].attrs.update(scale_factor=0.01, add_offset=273.15, _FillValue=np.int16(-9999))
    job = Job(
        data={"files": folder / "a.h5", "input": "x", "target": "y", "missing": 270.0, "prepare": ["standardise"]},
        model={"layers": [Dense(units=1)]},
        run={"epochs": 1, "progress": "none"},
    )
    result = train(job, run_dir=folder / "run", group=SingleGroup())
    return folder, result, np.where(stored == -9999, np.nan, 0.01 * stored + 273.15)


def test_an_array_has_the_numbers_that_are_meant(packed):
    folder, result, values = packed
    filled = np.where(np.isnan(values), 270.0, values)
    weights = {name: tensor.astype("f8") for name, tensor in result.weights.items()}
    prepared = (filled - filled.mean(axis=0)) / filled.std(axis=0)
    expected = prepared @ weights["dense0.weight"] + weights["dense0.bias"]
    for trained in (result, load_model(folder / "run")):
        np.testing.assert_allclose(trained.predict(values), expected, rtol=1e-4, atol=1e-5)
    assert evaluate(folder / "run", folder / "a.h5", group=SingleGroup())["mae"] == pytest.approx(
        np.abs(expected[:, 0] - np.arange(40)).mean(), rel=1e-4
    )


def test_a_dataset_of_a_file_is_unpacked_as_its_own_attributes_say(packed, tmp_path):
    _, result, values = packed
    expected = result.predict(values)
    with h5py.File(tmp_path / "b.h5", "w") as file:  # packed in another way
        stored = np.rint((values - 200) / 0.002)
        file["x"] = np.where(np.isnan(stored), 99, stored).astype("i4")
        file["x"].attrs.update(scale_factor=0.002, add_offset=200.0, missing_value=99)
        file["plain"] = values
        np.testing.assert_allclose(result.predict(file["x"]), expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(result.predict(file["plain"]), expected)
        assert np.abs(result.predict(file["x"][()]) - expected).max() > 1, "numbers without attributes are as they are"


@pytest.mark.parametrize("named", ["x[:, 0:3]", ("x", "y"), ("x[:, 1]", "x[:, 0]")])
def test_a_dataset_is_refused_where_the_job_selects_columns(packed, tmp_path, named):
    _, result, values = packed
    changed = dataclasses.replace(
        result, job=result.job.model_copy(update={"data": result.job.data.model_copy(update={"input": named})})
    )
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["x"] = values
        with pytest.raises(UserError, match="selects columns"):
            changed.predict(file["x"])
    np.testing.assert_array_equal(changed.predict(values), result.predict(values))
