"""hpctrain: train neural networks on CPU clusters (HDF5 in, MPI between, a trained network out).

From Python, in a script under mpirun as in a notebook (where it is one rank):

    from hpctrain import Job, evaluate, train
    from hpctrain.nn.layers.dense import Dense

    job = Job(
        data={"files": "train.h5", "input": "x", "target": "y", "split": {"validation": 0.1, "test": 0.2}},
        model={"layers": [Dense(units=64), "relu", Dense(units=1)]},
        run={"epochs": 20},
    )
    result = train(job, run_dir="runs/first")
    print(evaluate("runs/first", data="new.h5"))

`Job.load("job.toml")` reads a job file instead.  Names are loaded when first used: importing hpctrain loads neither
numba nor MPI.
"""

from __future__ import annotations

import importlib
from typing import Any

from hpctrain.version import __version__

__all__ = ["Job", "__version__", "evaluate", "train"]

_HOMES = {"Job": "hpctrain.job", "evaluate": "hpctrain.run.launch", "train": "hpctrain.run.launch"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hpctrain' has no attribute {name!r}")
