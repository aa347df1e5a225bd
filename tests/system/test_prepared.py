"""Preparation and splits on several ranks: the same statistics and the same rows as on one, however they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from datasets import job_for, summary, write_arrays, write_job
from launching import hpctrain

from hpctrain import Job, load_model, train
from hpctrain.comm.single_group import SingleGroup
from hpctrain.training.checkpoint import load_model as read_model

ROWS = 9000


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A job on chunked, compressed data sorted by class, and its run on one rank."""
    folder = tmp_path_factory.mktemp("prepared")
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [5000, 3000, 1000])
    inputs = 1e6 + rng.normal(size=(ROWS, 6)) + np.eye(3, 6)[labels]
    inputs[:, 5] = rng.integers(0, 4, ROWS)
    write_arrays(folder / "data.h5", x=inputs, y=labels, person=rng.integers(0, 300, ROWS))
    prepare = [{"name": "one_hot", "columns": [5]}, "standardise"]
    split = {"validation": 0.1, "test": 0.1, "by": "stratified"}
    job = job_for(folder / "data.h5", data={"prepare": prepare, "split": split}, run={"epochs": 1, "global_batch": 300})
    train(Job.from_dict(job), run_dir=folder / "one", group=SingleGroup())
    return folder, job


@pytest.mark.parametrize("distribute", ["shared", "scatter"])
def test_three_ranks_learn_the_same_bits(alone: tuple[Path, dict], distribute: str) -> None:
    folder, job = alone
    data = {**job["data"], "distribute": distribute}
    if distribute == "shared":  # too little for the rows: they are read in pieces
        data |= {"memory": "2 MB", "shuffle": "chunks", "shuffle_buffer": "64 KB"}
    path = write_job(folder / f"{distribute}.toml", {**job, "data": data})
    done = hpctrain(3, "train", path, "--run-dir", distribute, cwd=folder)
    assert done.returncode == 0, done.output
    assert "the data is prepared as it is read: inputs: one_hot, standardise" in done.stdout
    one, three = (read_model(folder / name / "model.h5").preparation for name in ("one", distribute))
    assert {name: a.tobytes() for name, a in one.items()} == {name: a.tobytes() for name, a in three.items()}
    expected, found = summary(folder / "one"), summary(folder / distribute)
    assert found["examples_per_epoch"] == expected["examples_per_epoch"] == 7200
    if distribute == "scatter":
        assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
        inputs = 1e6 + np.eye(6)[:, :6]
        inputs[:, 5] = 1
        outputs = [load_model(folder / name).predict(inputs) for name in ("one", distribute)]
        np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-3)
    else:
        evaluated = hpctrain(2, "evaluate", distribute, "--part", "validation", cwd=folder)
        assert "900" in evaluated.stdout, evaluated.output
