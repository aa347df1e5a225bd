"""Text as inputs and targets, all the way: what is trained, evaluated and predicted with is the same numbering."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from datasets import job_for

import hpctrain
from hpctrain.errors import UserError
from hpctrain.run.master import resolve

SITES, KINDS = ["meadow", "shore", "wood"], ["iris", "rose", "tulip"]


def write(path: Path, rows: int, sites: list[str], seed: int = 0) -> None:
    """The kind follows the site; the size says nothing."""
    random = np.random.default_rng(seed)
    number = random.integers(0, len(sites), rows)
    with h5py.File(path, "w") as file:
        file["site"] = np.array(sites, h5py.string_dtype())[number]
        file["size"] = random.normal(size=rows)
        file["kind"] = np.array([KINDS[SITES.index(sites[i])].encode() for i in number])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """A trained run and its folder; beside it a file without the first of the sites."""
    folder = tmp_path_factory.mktemp("text")
    write(folder / "data.h5", 300, SITES)
    write(folder / "other.h5", 50, SITES[1:], seed=1)
    job = job_for(
        folder / "data.h5",
        data={"input": ["site", "size"], "target": "kind", "test_files": str(folder / "other.h5")},
        optimizer={"name": "adam", "lr": 0.05},
        run={"epochs": 10, "progress": "none"},
    )
    return hpctrain.train(job, run_dir=folder / "run"), folder


def test_other_files_are_numbered_as_the_training_files(run):
    result, folder = run
    assert result.summary["test"]["accuracy"] == 1, "the kind follows the site"
    assert hpctrain.evaluate(folder / "run", data=str(folder / "other.h5"))["accuracy"] == 1


def test_predict_takes_text(run):
    result, folder = run
    loaded = hpctrain.load_model(folder / "run")
    assert loaded.classes == KINDS
    inputs = np.array([["wood", 0.5], ["meadow", -1.0], ["shore", 2.0]], object)
    numbers = np.array([[2, 0.5], [0, -1.0], [1, 2.0]])
    outputs = loaded.predict(inputs)
    assert [loaded.classes[i] for i in outputs.argmax(1)] == ["tulip", "iris", "rose"]
    assert np.array_equal(outputs, loaded.predict(numbers))
    assert np.array_equal(outputs, result.predict(inputs))
    with pytest.raises(UserError, match=r"row 1 of 'site' in the inputs(.|\n)*'woods'(.|\n)*did you mean 'wood'"):
        loaded.predict(np.array([["wood", 1], ["woods", 2]], object))
    with pytest.raises(UserError, match="'size' takes numbers"):
        loaded.predict(np.array([["wood", "large"]], object))


def test_a_run_says_how_text_is_numbered(run):
    said = resolve(run[0].job).notes
    assert said[0] == "input 'site' is text, read as numbers: 'meadow' = 0, 'shore' = 1, 'wood' = 2"
    assert said[1] == "target 'kind' is text, read as numbers: 'iris' = 0, 'rose' = 1, 'tulip' = 2"
