"""Training on padded sequences as a user does: the task needs the mask, and padding and ranks change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import job_for, records, summary, write_arrays, write_job
from launching import hpctrain

ROWS, SHORT, LONG = 600, 8, 13


def write_sequences(path: Path, steps: int) -> None:
    """Tokens 1 to 3 and as many zeros behind as it takes; the target is the share of token 1 among the tokens.

    A mean over all steps cannot tell a short sequence with a large share from a long one with a small share.
    """
    random = np.random.default_rng(8)
    inputs = np.zeros((ROWS, steps), "i4")
    for row, length in zip(inputs, random.integers(1, SHORT + 1, ROWS), strict=True):
        row[:length] = random.integers(1, 4, length)
    share = (inputs == 1).sum(axis=1) / (inputs != 0).sum(axis=1)
    write_arrays(path, x=inputs, y=share.astype("f4"))


def train(folder: Path, name: str, ranks: int, data: str, masked: bool) -> tuple[float, list[float]]:
    """Return the test loss and the training losses of all epochs."""
    layers: list[Any] = [
        {"type": "embedding", "size": 4, "units": 4},
        {"type": "residual", "layers": [{"type": "attention", "heads": 2}]},
        "global_avg_pool",
    ]
    job = job_for(
        data,
        data={"split": {"test": 0.2}},
        model={
            "layers": [*([{"type": "padded", "layers": layers}] if masked else layers), {"type": "dense", "units": 1}]
        },
        optimizer={"name": "adam", "lr": 0.02},
        run={"epochs": 15},
    )
    done = hpctrain(ranks, "train", write_job(folder / f"{name}.toml", job), "--run-dir", name, cwd=folder)
    assert done.returncode == 0, done.output
    losses = [record["train_loss"] for record in records(folder / name, "epoch")]
    return summary(folder / name)["test"]["loss"], losses


def test_learns_what_takes_a_mask_whatever_the_padding_and_the_ranks(tmp_path: Path) -> None:
    for name, steps in (("short.h5", SHORT), ("long.h5", LONG)):
        write_sequences(tmp_path / name, steps)
    test, losses = train(tmp_path, "alone", 1, "short.h5", masked=True)
    unmasked, _ = train(tmp_path, "unmasked", 1, "long.h5", masked=False)
    assert test < 2e-4
    assert unmasked > 20 * test
    other, other_losses = train(tmp_path, "three", 3, "long.h5", masked=True)
    # After hundreds of updates rounding has grown; at the start it has not.
    assert other_losses[0] == pytest.approx(losses[0], rel=1e-5)
    assert other == pytest.approx(test, rel=0.05, abs=1e-6)
