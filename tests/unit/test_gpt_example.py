"""The GPT example: numbers of characters, the bigram model against a count by hand, and files that fit the job."""

import importlib.util
import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.job import Job

FOLDER = Path(__file__).resolve().parents[2] / "jobs" / "gpt"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("text_to_hdf5", FOLDER / "text_to_hdf5.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_characters_and_numbers(script):
    assert len(script.CHARACTERS) == 96
    found = script.numbers("a\tb\né")
    assert "".join(script.CHARACTERS[number] for number in found) == "a    b\n?"


def test_the_bigram_model_is_that_of_counting(script):
    """After "a" come "b" twice and "c" once; each of the 96 characters is counted once more."""
    train, validation = script.numbers("abacab"), script.numbers("ab")
    losses = script.baselines(train, validation)
    assert losses["bigram"] == pytest.approx(-math.log((2 + 1) / (3 + 96)))
    assert losses["unigram"] == pytest.approx(-math.log((2 + 96) / (5 + 96 * 96)))


def test_next_is_the_following_character(script, tmp_path):
    stream = np.arange(30, dtype=np.uint8)
    assert script.write(tmp_path / "a.h5", stream, 7, {"bigram": 1.5}) == 4
    with h5py.File(tmp_path / "a.h5") as file:
        tokens, following = file["tokens"][:], file["next"][:]
        assert file.attrs["bigram_loss"] == 1.5
    assert tokens.ravel().tolist() == list(range(28))
    assert (following == tokens + 1).all()


def test_the_job_loads(script):
    job = Job.load(FOLDER / "gpt.toml")
    assert job.model.preset.vocabulary == len(script.CHARACTERS)
    assert job.data.files == str(FOLDER / "text-train.h5")
