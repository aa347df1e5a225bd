"""`run.reproducible`: a run on several ranks ends with the very bits of the run on one, whatever sums and hands out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import job_for, write_arrays
from lane_models import CLASSES, MODELS, SHAPE

from hpctrain import Job, train
from hpctrain.comm import join
from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.single_group import SingleGroup

pytestmark = pytest.mark.mpi(min_size=1)

ROWS, BATCH, LANE = 107, 24, 5  # five lanes a batch, the last of 4 rows; an epoch's last batch has 14 rows


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    group = join()
    with tempfile.TemporaryDirectory() as own:
        path = Path(group.broadcast_object(own))
        if group.rank == 0:
            random = np.random.default_rng(3)
            x = random.integers(0, 5, (ROWS, *SHAPE)).astype("f4")
            y = (x.sum((1, 2, 3)) * 3).astype("i8") % CLASSES
            write_arrays(path / "data.h5", x=x, y=y, w=random.uniform(0.1, 3, ROWS).astype("f4"))
        group.barrier()
        yield path
        group.barrier()


def job(folder: Path, model: str, steps: int = 9, **sections: dict[str, Any]) -> Job:
    run = {
        "epochs": None,
        "steps": steps,
        "global_batch": BATCH,
        "micro_batch": LANE,
        "reproducible": True,
        "progress": "none",
    }
    given = {
        "data": {"weight": "w", "split": {"validation": 0.2}, **sections.pop("data", {})},
        "clip": {"norm": 0.5},
        "optimizer": {"name": "adam", "lr": 0.02},
        "schedule": {"name": "reduce_on_plateau", "patience": 1, "min_delta": 0.2},
    }
    return Job.from_dict(job_for(folder / "data.h5", model={"layers": MODELS[model]}, run=run, **given, **sections))


_alone: dict[str, tuple] = {}


def alone(folder: Path, model: str) -> tuple:
    """The results of one rank, which rank 0 finds out for all."""
    group = join()
    if model not in _alone:
        found = None
        if group.rank == 0:
            found = results(train(job(folder, model), run_dir=folder / f"{model}-alone", group=SingleGroup()))
        _alone[model] = group.broadcast_object(found)
    return _alone[model]


def results(result: Any) -> tuple:
    """All that must be the same to the last bit."""
    told = [{key: value for key, value in epoch.items() if key != "examples_per_s"} for epoch in result.history]
    return result.summary["weights_sha256"], told


@pytest.mark.parametrize("model", MODELS)
def test_the_bits_of_one_rank(folder: Path, model: str) -> None:
    group = join()
    number = group.size + list(MODELS).index(model)  # so that each model meets each way at some world size
    collective = ["window", "ring", "halving_doubling", "native"][number % 4]
    made = job(
        folder,
        model,
        data={"distribute": ["scatter", "shared"][number % 2]},
        strategy={"collective": collective},
    )
    found = results(train(made, run_dir=folder / model, group=group))
    assert group.all_gather_objects(found) == [alone(folder, model)] * group.size


@pytest.mark.parametrize("collective", list(COLLECTIVES))
def test_every_collective(folder: Path, collective: str) -> None:
    made = job(folder, "mlp", strategy={"collective": collective})
    found = train(made, run_dir=folder / f"by-{collective}", group=join())
    assert found.summary["weights_sha256"] == alone(folder, "mlp")[0]


def test_a_sharded_optimizer(folder: Path) -> None:
    made = job(folder, "mlp", strategy={"name": "sharded_optimizer"})
    found = train(made, run_dir=folder / "sharded", group=join())
    assert found.summary["weights_sha256"] == alone(folder, "mlp")[0]


def test_resumed_at_another_world_size(folder: Path) -> None:
    group, model, path = join(), "cnn", folder / "resumed"
    train(job(folder, model, steps=6), run_dir=path, group=group)  # within an epoch
    found = None
    if group.rank == 0:
        on = job(folder, model, strategy={"collective": "native"})
        found = results(train(on, run_dir=path, resume=True, group=SingleGroup()))
    sha, history = group.broadcast_object(found)
    assert (sha, history[-1]) == (alone(folder, model)[0], alone(folder, model)[1][-1])
