"""Synchronised batch norm on one rank: its kernels part by part, where a pass is cut, and what a job may ask for.

`tests/mpi/test_sync_batch_norm.py` has the ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import job_for, write_classes

from hpctrain import Job, train
from hpctrain.batch import Batch
from hpctrain.comm.single_group import SingleGroup
from hpctrain.errors import UserError
from hpctrain.kernels import normalisation
from hpctrain.kernels.columns import line_width
from hpctrain.nn.layers.activations import Relu
from hpctrain.nn.layers.base import BuiltLayer, Layer, Shape
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.layers.normalisation import BatchNorm
from hpctrain.nn.losses import SoftmaxCrossEntropy
from hpctrain.nn.model import Model
from hpctrain.run.master import resolve
from hpctrain.run.memory_estimate import estimate

EPSILON = 1e-5
DENSE, NORM, RELU = {"type": "dense", "units": 8}, {"type": "batch_norm", "sync": True}, "relu"


class Part:
    """The arrays of one rank's part of the rows."""

    def __init__(self, x: np.ndarray, dy: np.ndarray) -> None:
        channels = x.shape[1]
        self.x, self.dy, self.y = x.reshape(-1), dy.reshape(-1), np.full(x.size, np.nan, np.float32)
        self.stats = np.full((3, channels), np.nan, np.float32)
        self.running, self.gradients = np.zeros((2, channels), np.float32), np.zeros((2, channels), np.float32)
        self.sums = np.full(2 * (1 + 2 * channels), np.nan, np.float32)
        self.lines = np.full((6, line_width(channels)), np.nan, np.float32)
        self.totals = np.full(4 * line_width(channels), np.nan, np.float32)
        self.rows = len(x)


def add_up(parts: list[Part]) -> None:
    """What `reduce` does over ranks."""
    total = sum(part.sums.view("f8") for part in parts)
    for part in parts:
        part.sums.view("f8")[:] = total


@pytest.mark.parametrize("relu", [0, 1])
@pytest.mark.parametrize(("cuts", "channels"), [([0, 700, 700, 1001], 6), ([0, 0, 4, 5], 300), ([0, 0, 0, 0], 3)])
def test_parts_that_meet_are_the_whole(cuts: list[int], channels: int, relu: int) -> None:
    """Against the formulas in float64, far from zero, with parts whose means differ and an empty one."""
    random = np.random.default_rng(1)
    x = (300 + random.normal(size=(cuts[-1], channels))).astype("f4")
    x[: cuts[2]] += 3
    dy = (0.3 + random.normal(size=x.shape)).astype("f4")
    scale, bias = np.linspace(0.5, 1.5, channels).astype("f4"), np.linspace(-1, 1, channels).astype("f4")
    parts = [Part(x[lo:hi], dy[lo:hi].copy()) for lo, hi in zip(cuts, cuts[1:], strict=False)]
    for part in parts:
        normalisation.batch_norm_sums(part.x, scale, part.sums, part.lines, part.totals)
    add_up(parts)
    for part in parts:
        head = (part.x, scale, bias, part.y, part.stats, part.sums, *part.running, part.lines)
        normalisation.batch_norm_of_sums(*head, part.rows, EPSILON, relu)
    for part in parts:
        tail = (*part.gradients, part.sums, part.lines, part.totals, relu)
        normalisation.batch_norm_slopes(part.x, part.dy, scale, bias, part.stats, *tail)
    add_up(parts)
    for part in parts:
        head = (part.x, part.dy, scale, bias, part.stats, part.dy, part.sums)
        normalisation.batch_norm_input_gradient(*head, part.lines, relu | normalisation.INPUT_GRADIENT)
    gradients = sum(part.gradients for part in parts)
    if not len(x):
        assert not gradients.any()
        assert not any(part.running.any() for part in parts)
        return
    x, rows = x.astype("f8"), len(x)
    root = np.sqrt(x.var(0) + EPSILON)
    normal = (x - x.mean(0)) / root
    plain = normal * scale + bias
    y = np.concatenate([part.y for part in parts]).reshape(plain.shape)
    np.testing.assert_allclose(y, np.maximum(plain, 0) if relu else plain, atol=2e-5)
    means, variances = sum(part.running for part in parts) / rows
    np.testing.assert_allclose(means, x.mean(0), rtol=1e-6)
    np.testing.assert_allclose(variances, x.var(0, ddof=1), rtol=1e-5)
    g = np.where(y > 0, dy, 0.0) if relu else dy.astype("f8")
    np.testing.assert_allclose(gradients[0], (g * normal).sum(0), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(gradients[1], g.sum(0), rtol=1e-5, atol=1e-5)
    expected = scale / root * (g - g.mean(0) - normal * (g * normal).mean(0))
    np.testing.assert_allclose(np.concatenate([part.dy for part in parts]).reshape(x.shape), expected, atol=2e-5)


def test_sums_are_as_exact_as_the_inputs_far_from_zero() -> None:
    """A mean 10,000 times the deviation: the variance is that of the float32 numbers that are given."""
    x = (1e4 + np.random.default_rng(0).normal(size=(5000, 2))).astype("f4")
    part = Part(x, x)
    normalisation.batch_norm_sums(part.x, np.ones(2, np.float32), part.sums, part.lines, part.totals)
    n, *sums = part.sums.view("f8")
    first, second = np.reshape(sums, (2, 2))
    assert n == 5000
    np.testing.assert_allclose(first / n, x.astype("f8").mean(0), rtol=1e-9)
    np.testing.assert_allclose(second / n - (first / n) ** 2, x.astype("f8").var(0), rtol=1e-5)


def model_of(*layers: Layer, reduce: Any = None) -> Model:
    model = Model(layers, (4,), SoftmaxCrossEntropy(), "class", reduce=reduce)
    model.initialize()
    return model


def batch(rows: int = 6) -> Batch:
    random = np.random.default_rng(1)
    inputs = random.normal(size=(rows, 4)).astype("f4")
    return Batch(inputs, random.integers(0, 3, rows), np.ones(rows, np.float32), np.arange(rows), 0, 0)


def test_a_pass_is_cut_where_ranks_meet_and_nowhere_else() -> None:
    seen: list[np.ndarray] = []
    model = model_of(
        BatchNorm(sync=True), Dense(units=5), BatchNorm(sync=True), Relu(), Dense(units=3), reduce=seen.append
    )
    assert model.meets
    model.warm_up()
    assert not seen  # one rank of a node warms up alone
    model.loss_and_grad(batch(), beta=0.0)
    # The gradient of the first layer's inputs is not needed: it meets nobody in the backward pass.
    assert [len(numbers) for numbers in seen] == [1 + 2 * 4, 1 + 2 * 5, 1 + 2 * 5]
    assert [numbers.dtype for numbers in seen] == [np.float64] * 3
    assert [numbers[0] for numbers in seen] == [6, 6, 6]
    alone = model_of(BatchNorm(), Dense(units=5), BatchNorm(), Relu(), Dense(units=3))
    assert not alone.meets
    # Nothing was added up: with one rank both are the same, and what is stored is.
    assert model.loss_and_grad(batch(), beta=0.0) == pytest.approx(alone.loss_and_grad(batch(), beta=0.0), rel=1e-6)
    np.testing.assert_allclose(model.grad_buffer, alone.grad_buffer, rtol=1e-4, atol=1e-5)


def test_an_evaluation_that_would_meet_is_refused() -> None:
    class Meeting(Layer):
        """Batch norm that forgot that evaluation is another pass."""

        def build(self, in_shape: Shape) -> BuiltLayer:
            built = BatchNorm(sync=True).build(in_shape)
            return BuiltLayer(**{**vars(built), "predict": None, "fused": {}})

    with pytest.raises(ValueError, match=r"meeting0: ranks cannot meet in an evaluation"):
        model_of(Meeting(), Dense(units=3))


def job(folder: Path, layers: list[Any], **run: Any) -> Job:
    path = folder / "data.h5"
    if not path.exists():
        write_classes(path, rows=50)
    document = job_for(
        path, model={"layers": [*layers, {"type": "dense", "units": 3}]}, run={"progress": "none", **run}
    )
    return Job.from_dict(document)


@pytest.mark.parametrize(
    ("layers", "run", "message"),
    [
        ([NORM], {"micro_batch": 8}, r"run\.micro_batch = 8, run\.global_batch = 16(.|\n)*no run\.micro_batch"),
        ([NORM], {"accumulate": 2}, r"run\.accumulate = 2(.|\n)*run\.global_batch = 32"),
        ([NORM, DENSE, "batch_norm"], {}, r"sync = true in batch_norm0; not in batch_norm2"),
    ],
)
def test_what_contradicts_the_whole_batch_is_refused(
    tmp_path: Path, layers: list[Any], run: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        resolve(job(tmp_path, layers, **run))


def test_sync_is_set_on_the_command_line(tmp_path: Path) -> None:
    document = job(tmp_path, [DENSE, "batch_norm"]).to_dict()
    changed = Job.from_dict(document, overrides=["model.layers.1.sync=true"])
    assert [getattr(layer, "sync", None) for layer in changed.model.layers] == [None, True, None]
    assert Job.from_toml(changed.to_toml()) == changed


def test_no_micro_batch_is_filled_in_and_one_of_the_whole_batch_is_taken(tmp_path: Path) -> None:
    assert resolve(job(tmp_path, [NORM])).job.run.micro_batch is None
    assert resolve(job(tmp_path, [NORM], micro_batch=16)).job.run.micro_batch == 16
    assert resolve(job(tmp_path, ["batch_norm"])).job.run.micro_batch == 16


def test_more_ranks_need_less_memory_each(tmp_path: Path) -> None:
    wide = {"type": "dense", "units": 4096}
    prepared = resolve(job(tmp_path, [wide, NORM], global_batch=48))
    workspace = {
        ranks: part.first
        for ranks in (1, 3)
        for part in estimate(prepared, ranks, (0, 0)).parts
        if part.name == "workspace"
    }
    assert workspace[3] < 0.5 * workspace[1]


def test_on_one_rank_a_run_is_that_of_micro_batches_as_large_as_the_batch(tmp_path: Path) -> None:
    layers = [DENSE, "batch_norm", RELU]
    plain = train(job(tmp_path, layers, micro_batch=16), run_dir=tmp_path / "plain", group=SingleGroup())
    synced = train(job(tmp_path, [DENSE, NORM, RELU]), run_dir=tmp_path / "synced", group=SingleGroup())
    assert synced.summary["train_loss"] == pytest.approx(plain.summary["train_loss"], rel=1e-5)
    np.testing.assert_allclose(synced.model.state, plain.model.state, rtol=1e-4, atol=1e-6)
