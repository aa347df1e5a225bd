"""Several datasets of different shapes as inputs, each with a branch of its own, by the layer "columns"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import job_for, write_arrays

import hpctrain
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.errors import UserError
from hpctrain.job import Job

BRANCHES = [
    [{"type": "columns", "input": "image"}, {"type": "conv2d", "channels": 2, "kernel": 3}, "relu", "global_avg_pool"],
    [{"type": "columns", "input": "scalars"}, {"type": "dense", "units": 3}, "tanh"],
    [{"type": "columns", "input": "bias"}],
]
LAYERS = [{"type": "parallel", "branches": BRANCHES}, {"type": "dense", "units": 3}]


def arrays(rows: int = 40) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "in/image": random.normal(size=(rows, 6, 5, 2)).astype("f4"),
        "in/scalars": random.normal(size=(rows, 4)),
        "in/bias": np.arange(rows, dtype="i2"),
        "y": random.integers(0, 3, rows),
    }


def job(folder: Path, **model: Any) -> dict[str, Any]:
    path = write_arrays(folder / "data.h5", **arrays())
    data = {"input": ["in/image", "in/scalars", "in/bias"], "target": "y", "combine": "flat"}
    made = job_for(path, data=data, run={"epochs": 1, "progress": "none"})
    return made | {"model": model or {"layers": LAYERS}}


def test_flat_inputs_hold_every_dataset_one_behind_the_other(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "data.h5", **(given := arrays()))

    with Hdf5Source([str(path)], ["in/image", "in/scalars", "in/bias"], "y", combine="flat") as source:
        inputs, _, _ = source.read(3, 9)
        parts = source.input_parts

    expected = [given[f"in/{name}"][3:9].reshape(6, -1) for name in ("image", "scalars", "bias")]
    np.testing.assert_array_equal(inputs, np.concatenate(expected, axis=1).astype("f4"))
    assert parts == {"in/image": (0, 60, (6, 5, 2)), "in/scalars": (60, 64, (4,)), "in/bias": (64, 65, ())}


def test_each_input_has_its_branch_and_the_resolved_job_says_which_columns(tmp_path: Path) -> None:
    hpctrain.train(job(tmp_path), run_dir=tmp_path / "run")

    branches = Job.load(tmp_path / "run" / "job.toml").model.layers[0].branches
    taken = [(branch[0].start, branch[0].stop, branch[0].shape) for branch in branches]
    assert taken == [(0, 60, (6, 5, 2)), (60, 64, (4,)), (64, 65, None)]


def test_what_a_network_of_two_inputs_says_is_what_numpy_makes_of_its_weights(tmp_path: Path) -> None:
    layers = [{"type": "parallel", "branches": BRANCHES[1:]}, {"type": "dense", "units": 3}]
    result = hpctrain.train(job(tmp_path, layers=layers), run_dir=tmp_path / "run")
    given = arrays()
    flat = np.concatenate([given[name].reshape(40, -1) for name in ("in/image", "in/scalars", "in/bias")], axis=1)

    inner, inner_bias, outer, outer_bias = (value.astype("f8") for value in result.weights.values())
    hidden = np.concatenate([np.tanh(flat[:, 60:64] @ inner + inner_bias), flat[:, 64:]], axis=1)

    found = hpctrain.load_model(tmp_path / "run").predict(flat)
    np.testing.assert_allclose(found, hidden @ outer + outer_bias, rtol=1e-5, atol=1e-5)


def test_a_python_model_may_name_the_inputs(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(f"def build(input_shape, outputs):\n    return {LAYERS!r}\n")

    hpctrain.train(job(tmp_path, python=str(tmp_path / "model.py:build")), run_dir=tmp_path / "run")

    assert hpctrain.load_model(tmp_path / "run").predict(np.zeros((2, 65))).shape == (2, 3)


@pytest.mark.parametrize("name", ["imgae", "in"])
def test_an_unknown_input_is_named_with_those_that_there_are(tmp_path: Path, name: str) -> None:
    layers = [{"type": "columns", "input": name}, "flatten", {"type": "dense", "units": 3}]

    with pytest.raises(UserError, match=r"in/image.*in/scalars") as error:
        hpctrain.train(job(tmp_path, layers=layers), run_dir=tmp_path / "run")

    assert repr(name) in str(error.value)


def test_columns_without_names_stay_as_they_are_said(tmp_path: Path) -> None:
    layers = [{"type": "columns", "start": 60, "stop": 64}, {"type": "dense", "units": 3}]

    result = hpctrain.train(job(tmp_path, layers=layers), run_dir=tmp_path / "run")

    assert [tensor.shape for tensor in result.weights.values()] == [(4, 3), (3,)]
