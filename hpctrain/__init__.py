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
    metrics = evaluate("runs/first", data="new.h5")  # every rank calls both
    if result.rank == 0:
        print(metrics, result.predict(my_array))

`load_model("runs/first").predict(my_array)` uses a network that was trained before.

`Job.load("job.toml")` reads a job file instead.  Names are loaded when first used: importing hpctrain loads neither
numba nor MPI.
"""

from __future__ import annotations

import importlib
import sys
from types import TracebackType
from typing import Any

from hpctrain.version import __version__

__all__ = ["Job", "__version__", "evaluate", "load_model", "train"]

_HOMES = {
    "Job": "hpctrain.job",
    "evaluate": "hpctrain.run.launch",
    "load_model": "hpctrain.run.launch",
    "train": "hpctrain.run.launch",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hpctrain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def _end_the_job_with_this_script() -> None:
    """Let an uncaught exception of one rank's script end all ranks, wherever it comes from, not only inside `train`.

    The others would wait for that rank for ever.  A script that runs alone keeps the hook that was there.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        from hpctrain.comm.environment import launched

        if launched().size == 1 or not isinstance(error, Exception):
            before(kind, error, trace)
            return
        from hpctrain.run import guard

        guard.end_script(error.with_traceback(trace))

    sys.excepthook = hook


_end_the_job_with_this_script()
