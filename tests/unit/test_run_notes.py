"""What a run that is too short for its own options says as it starts."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.job import Job
from hpctrain.run.master import resolve


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (9, ["still rises", "10 updates, the run has 9", "never compressed", "warm_up_steps is 10, the run has 9"]),
        (10, ["never compressed"]),
        (11, []),
    ],
)
def test_warm_ups_that_do_not_end_are_told(tmp_path: Path, steps: int, said: list[str]) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = np.random.default_rng(0).random((40, 3))
        file["y"] = np.arange(40) % 2
    job = Job(
        data={"files": str(tmp_path / "data.h5"), "input": "x", "target": "y"},
        schedule={"name": "constant", "warmup": "2 epochs"},  # of 5 updates each
        strategy={"name": "all_reduce", "compression": {"type": "int8", "warm_up_steps": 10}},
        run={"steps": steps, "global_batch": 8},
    )
    notes = "\n".join(resolve(job).notes)
    for words in said:
        assert words in notes
    assert len(resolve(job).notes) == {9: 2, 10: 1, 11: 0}[steps]
