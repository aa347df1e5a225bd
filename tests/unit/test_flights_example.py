"""The flights example: what prepare.py does to the columns, and that its files and its job fit together."""

import importlib.util
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.data.facts import DataFacts
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.job import Job
from hpctrain.run.master import resolve

FOLDER = Path(__file__).resolve().parents[2] / "jobs" / "flights"


@pytest.fixture(scope="module")
def prepare():
    spec = importlib.util.spec_from_file_location("prepare", FOLDER / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def columns():
    rng = np.random.default_rng(0)
    rows = 200
    numbers = {"dep_delay": (10, 40), "distance": (1000, 700), "scheduled_minutes": (150, 60)}
    table = {name: rng.normal(*normal, rows) for name, normal in numbers.items()}
    table |= {name: rng.integers(0, 1440, rows) for name in ("sched_dep", "sched_arr")}
    table |= {"day_of_year": rng.integers(0, 365, rows), "weekday": np.arange(rows) % 7}
    table |= {name: rng.choice(["AA", "B6"], rows) for name in ("carrier", "origin", "dest")}
    table["dest"][-1] = "ZZ"  # a place that no training row has
    return table


def test_clock_times_become_minutes(prepare):
    assert prepare.minutes(np.array([0, 59, 100, 1345, 2359])).tolist() == [0, 59, 60, 825, 1439]


def test_the_split_covers_all_rows_once(prepare):
    rows = prepare.split(1000, 7)
    assert {part: len(chosen) for part, chosen in rows.items()} == {"train": 800, "validation": 100, "test": 100}
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(1000))


def test_statistics_and_categories_come_from_the_training_part(prepare, columns):
    train = np.arange(100)
    names, inputs, mean, std = prepare.encode(columns, train)
    numbers = [i for i, name in enumerate(names) if "=" not in name]
    assert np.allclose(inputs[train][:, numbers].mean(axis=0), 0, atol=1e-6)
    assert np.allclose(inputs[train][:, numbers].std(axis=0), 1, atol=1e-6)
    at = names.index("dep_delay")
    assert np.allclose(inputs[:, at] * std[at] + mean[at], columns["dep_delay"], atol=1e-4)
    places = [i for i, name in enumerate(names) if name.startswith("dest=")]
    assert inputs[:-1, places].sum(axis=1).tolist() == [1.0] * 199
    assert inputs[-1, places].tolist() == [0.0, 0.0]


def test_nothing_known_only_later_is_an_input(prepare, columns):
    names = prepare.encode(columns, np.arange(100))[0]
    assert not [name for name in names if name.split("=")[0] in ("arr_time", "arr_delay", "air_time", "tailnum")]


def test_the_job_reads_what_is_written(prepare, columns, tmp_path):
    names, inputs, mean, std = prepare.encode(columns, np.arange(100))
    delay = columns["dep_delay"] - 5
    prepare.write(tmp_path / "flights-train.h5", names, inputs, delay, mean, std, 1)
    job = Job.load(FOLDER / "flights.toml")
    assert job.data.files == str(FOLDER / "flights-train.h5")
    source = Hdf5Source([str(tmp_path / "flights-train.h5")], job.data.input, job.data.target)
    facts = DataFacts.collect(source)
    assert (facts.target_kind, facts.target_width, facts.input_shape) == ("real", 1, (len(names),))
    assert np.allclose(source.read(0, 200)[1][:, 0], delay, atol=1e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["flights-train.h5"]


def test_the_table_job_prepares_what_is_written(prepare, columns, tmp_path):
    prepare.write_table(tmp_path / "flights.h5", columns, columns["dep_delay"] - 5)
    shutil.copy(FOLDER / "flights-table.toml", tmp_path)
    prepared = resolve(Job.load(tmp_path / "flights-table.toml"))
    # Three numbers, three angles, and a column for each of 2 carriers, 2 origins, 3 destinations and 7 weekdays.
    assert prepared.facts.input_shape == (3 + 6 + 2 + 2 + 3 + 7,)
    by_name = {bound.step.name: bound for bound in prepared.preparation.inputs.steps}
    assert len(by_name["one_hot"].elements.columns) == 4
    assert len(by_name["standardise"].elements.columns) == 9
    with h5py.File(tmp_path / "flights.h5") as file:
        assert set(file["known"]["dest"].asstr()[:]) == set(columns["dest"])
        assert np.array_equal(file["known"]["dep_delay"][:], columns["dep_delay"])
