"""Every layout of the data trains at several world sizes: what is handed out is what the files hold, once an epoch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from launching import mpirun
from layouts import LAYOUTS

# ranks -> way of the data, keys of [data]
WORLDS = {
    1: ["memory", "distribute=auto"],
    3: ["memory", "distribute=scatter"],
    4: ["streamed", "distribute=shared", "shuffle=chunks", "shuffle_buffer=100 kB"],
}
EPOCHS = 2

# Trains on every folder named on the command line and keeps what the network was given: for each a file NAME.npz with
# the ids, inputs, targets and weights of all batches of all ranks, by epoch.
SCRIPT = """
import json, sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hpctrain import Job, train
from hpctrain.data import load
from hpctrain.data.ways import STREAMED, Ways
from hpctrain.nn.model import Model

world, given = MPI.COMM_WORLD, []
real = Model.loss_and_grad


def loss_and_grad(self, batch, *args, **options):
    given.append((batch.epoch, batch.ids.copy(), batch.inputs.copy(), batch.targets.copy(), batch.weight.copy()))
    return real(self, batch, *args, **options)


Model.loss_and_grad = loss_and_grad
out, (way, *keys) = Path(sys.argv[1]), json.loads(sys.argv[2])
if way == "streamed":  # the least that streaming needs is more than these little files
    load.choose = lambda needs, *_: Ways({part: STREAMED for part in needs[0].memory}, "chunks", ())
for folder in map(Path, sys.argv[3:]):
    given.clear()
    result = train(Job.load(folder / "job.toml", [f"data.{key}" for key in keys]), run_dir=out / folder.name)
    parts = [part for parts in world.allgather(given) for part in parts if len(part[1])]
    if world.rank == 0:
        arrays = {}
        for epoch in sorted({part[0] for part in parts}):
            chosen = [part[1:] for part in parts if part[0] == epoch]
            for name, values in zip(("ids", "inputs", "targets", "weight"), zip(*chosen)):
                arrays[f"{name}{epoch}"] = np.concatenate(values)
        arrays["examples"] = result.summary["examples_per_epoch"]
        np.savez(out / f"{folder.name}.npz", **arrays)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder with files and a job for each layout."""
    base = tmp_path_factory.mktemp("layouts")
    (base / "script.py").write_text(SCRIPT)
    for name, layout in LAYOUTS.items():
        folder = base / name
        (folder / "data").mkdir(parents=True)
        layout.write(folder / "data")
        files = f"data/{layout.data['files']}"
        outputs = (
            5 if "jets" in str(layout.data) or name == "sorted_classes" else _outputs(layout.read(folder / "data")[1])
        )
        layers = [{"type": "dense", "units": outputs}]
        layers = layers if layout.per_position else ["flatten", *layers]
        keys = {**layout.data, "files": files}
        text = "\n".join(f"{key} = {_toml(value)}" for key, value in keys.items())
        run = f'[run]\nepochs = {EPOCHS}\nglobal_batch = 16\nprogress = "none"\ncheckpoint_every = "never"'
        (folder / "job.toml").write_text(f"[data]\n{text}\n[model]\nlayers = {_toml(layers)}\n{run}\n")
    return [base / name for name in LAYOUTS]


def _outputs(targets: np.ndarray) -> int:
    return 3 if targets.dtype.kind in "iu" else targets[0].size


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


@pytest.fixture(scope="module")
def results(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folder of what was handed out, by world size."""
    found = {}
    for ranks, keys in WORLDS.items():
        out = tmp_path_factory.mktemp(f"out{ranks}")
        done = mpirun(ranks, folders[0].parent / "script.py", out, json.dumps(keys), *folders, timeout=200)
        assert done.returncode == 0, done.output
        found[ranks] = out
    return found


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_all_of_it_once_an_epoch(name: str, ranks: int, folders: list[Path], results: dict[int, Path]) -> None:
    layout, folder = LAYOUTS[name], folders[0].parent / name / "data"
    inputs, targets = layout.read(folder)
    given = np.load(results[ranks] / f"{name}.npz")
    assert given["examples"] == len(inputs)
    weight = np.ones(given["weight0"].shape, "f4") if layout.weight is None else layout.weight(folder)
    for epoch in range(EPOCHS):
        order = np.argsort(given[f"ids{epoch}"])
        assert given[f"ids{epoch}"][order].tolist() == list(range(len(inputs)))
        assert np.array_equal(given[f"inputs{epoch}"][order], inputs.astype("f4").reshape(given["inputs0"].shape))
        assert np.array_equal(given[f"targets{epoch}"][order].reshape(len(targets), -1), _stored(targets))
        assert np.array_equal(given[f"weight{epoch}"][order], weight.reshape(given["weight0"].shape))
    assert not len(inputs) > 16 or not np.array_equal(given["ids0"], given["ids1"]), "every epoch has its own order"


def _stored(targets: np.ndarray) -> np.ndarray:
    flat = targets.reshape(len(targets), -1)
    return flat if flat.dtype.kind in "iu" else flat.astype("f4")
