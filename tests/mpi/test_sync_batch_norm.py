"""Synchronised batch norm on several ranks is batch norm of the whole batch on one: beside float64 numpy, in runs."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from datasets import job_for, write_classes
from scipy.special import log_softmax

from hpctrain import Job, train
from hpctrain.batch import Batch
from hpctrain.comm import join
from hpctrain.comm.single_group import SingleGroup
from hpctrain.nn.layers.activations import Relu, Tanh
from hpctrain.nn.layers.containers import Residual
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.layers.flatten import Flatten
from hpctrain.nn.layers.normalisation import BatchNorm
from hpctrain.nn.losses import SoftmaxCrossEntropy
from hpctrain.nn.model import Model

pytestmark = pytest.mark.mpi(min_size=1)

ROWS, EPSILON, MOMENTUM = 11, 1e-3, 0.75
NORM = BatchNorm(sync=True, epsilon=EPSILON, momentum=MOMENTUM)
LAYERS = [
    Dense(units=6),
    NORM,
    Relu(),
    Residual(layers=[Dense(units=6), NORM, Tanh()]),
    Flatten(),
    Dense(units=3),
]


@pytest.fixture(scope="module")
def model():
    return Model(LAYERS, (2, 4), SoftmaxCrossEntropy(), "class", seed=1, reduce=join().all_reduce)


def whole_batch():
    random = np.random.default_rng(5)
    inputs = (random.normal(size=(ROWS, 2, 4)) + 20).astype("f4")
    return inputs, random.integers(0, 3, ROWS), random.uniform(0.5, 2, ROWS).astype("f4")


def batch_norm(x, scale, bias):
    """Over rows and positions; returns what the running statistics are given, too."""
    axes = (0, 1)
    mean, var, n = x.mean(axes), x.var(axes), x.shape[0] * x.shape[1]
    return (x - mean) / np.sqrt(var + EPSILON) * scale + bias, mean, var * n / (n - 1)


def reference(params):
    """The network by its definition, in float64, on the whole batch: the sum of the losses, and the statistics."""
    inputs, targets, weight = whole_batch()
    values = list(params.values())
    x = inputs.astype("f8") @ values[0] + values[1]
    x, *first = batch_norm(x, *values[2:4])
    x = np.maximum(x, 0)
    inside, *second = batch_norm(x @ values[4] + values[5], *values[6:8])
    logits = (x + np.tanh(inside)).reshape(ROWS, -1) @ values[8] + values[9]
    return -np.sum(weight * log_softmax(logits, axis=1)[np.arange(ROWS), targets]), [*first, *second]


def finite_differences(params):
    gradients = {name: np.zeros_like(values) for name, values in params.items()}
    for name, values in params.items():
        for index in np.ndindex(values.shape):
            kept, sums = values[index], []
            for sign in (1, -1):
                values[index] = kept + sign * 1e-6
                sums.append(reference(params)[0])
            values[index] = kept
            gradients[name][index] = (sums[0] - sums[1]) / 2e-6
    return gradients


def starts(split, size):
    """Where each rank's rows begin, and the end."""
    return {
        "unequal": [0, *(ROWS * rank**2 // size**2 for rank in range(1, size)), ROWS],
        "all on the last rank": [0] * size + [ROWS],
        "all on the first rank": [0] + [ROWS] * size,
        "two rows each while they last": [min(2 * rank, ROWS) for rank in range(size)] + [ROWS],
    }[split]


@pytest.mark.parametrize(
    "split", ["unequal", "all on the last rank", "all on the first rank", "two rows each while they last"]
)
def test_loss_gradients_and_running_statistics_are_those_of_one_process(model, split):
    group = join()
    model.initialize()
    random = np.random.default_rng(2)
    for slot in model.layout:
        if slot.name.endswith(("scale", "bias")):
            model.params[slot.offset : slot.stop] += random.normal(size=slot.size).astype("f4") / 2
    lo, hi = starts(split, group.size)[group.rank : group.rank + 2]
    inputs, targets, weight = (array[lo:hi] for array in whole_batch())
    model.grad_buffer[:] = np.nan if hi > lo else 0  # what is stored does not depend on what was there
    loss = np.array([model.loss_and_grad(Batch(inputs, targets, weight, np.arange(lo, hi), 0, 0), float(hi == lo))])
    model.tail[:] = 0
    for buffer in (loss, model.grad_buffer):
        group.all_reduce(buffer)
    model.update_state(ROWS)

    params = {slot.name: model.layout.view(model.params, slot.name).astype("f8") for slot in model.layout}
    expected, statistics = reference(params)
    assert loss[0] == pytest.approx(expected, rel=1e-5)
    for name, gradient in finite_differences(params).items():
        found = model.layout.view(model.grads, name)
        np.testing.assert_allclose(found, gradient, rtol=1e-5, atol=3e-5, err_msg=name)
    for slot, value, initial in zip(model.state_layout, statistics, [0.0, 1.0] * 2, strict=True):
        moved = MOMENTUM * initial + (1 - MOMENTUM) * value
        found = model.state_layout.view(model.state, slot.name)
        np.testing.assert_allclose(found, moved, rtol=1e-5, atol=1e-6, err_msg=slot.name)
    state = (model.state.tobytes(), model.grads.tobytes())
    assert group.all_gather_objects(state) == [state] * group.size


def test_nobody_has_a_row(model):
    model.initialize()
    model.grad_buffer[:] = 0
    inputs, targets, weight = (array[:0] for array in whole_batch())
    assert model.loss_and_grad(Batch(inputs, targets, weight, np.arange(0), 0, 0)) == 0.0
    assert not model.grad_buffer.any()


def test_a_run_ends_alike_at_any_number_of_ranks():
    """Batches of 16 of 50 rows: the last one of an epoch has two, so that at three ranks and more some have none."""
    group = join()
    with tempfile.TemporaryDirectory() as own:
        folder = Path(group.broadcast_object(own))
        if group.rank == 0:
            write_classes(folder / "data.h5", rows=50)
        norm = {"type": "batch_norm", "sync": True}
        layers = [{"type": "dense", "units": 8}, norm, "relu", {"type": "dense", "units": 8}, norm, "tanh"]
        document = job_for(
            folder / "data.h5",
            model={"layers": [*layers, {"type": "dense", "units": 3}]},
            optimizer={"name": "sgd", "lr": 0.1},
            run={"epochs": 3, "progress": "none"},
        )
        together = train(Job.from_dict(document), run_dir=folder / "together", group=group)
        alone = train(Job.from_dict(document), run_dir=own + "/alone", group=SingleGroup())
        group.barrier()  # before the folder is deleted
    losses = [epoch["train_loss"] for epoch in alone.history]
    assert losses[-1] < 0.8 * losses[0]
    np.testing.assert_allclose([epoch["train_loss"] for epoch in together.history], losses, rtol=1e-5)
    for name, value in together.weights.items():
        np.testing.assert_allclose(value, alone.weights[name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(together.model.state, alone.model.state, rtol=1e-4, atol=1e-5)
