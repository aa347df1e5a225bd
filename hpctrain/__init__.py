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

import sys
from types import ModuleType
from typing import Any

from hpctrain.version import __version__

__all__ = ["Job", "__version__", "evaluate", "train"]


class _Package(ModuleType):
    """The package itself, with one property: `train` is the function, although there is a sub-package of that name.

    Python binds a sub-package to its name in the package when it is first imported; the setter lets that go by, so that
    `from hpctrain import train` always gives the function and `from hpctrain.train import ...` the sub-package's names.
    """

    @property
    def train(self) -> Any:
        """`hpctrain.run.launch.train`."""
        from hpctrain.run.launch import train

        return train

    @train.setter
    def train(self, sub_package: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "Job":
        from hpctrain.job import Job

        return Job
    if name == "evaluate":
        from hpctrain.run.launch import evaluate

        return evaluate
    raise AttributeError(f"module 'hpctrain' has no attribute {name!r}")
