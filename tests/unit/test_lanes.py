"""A pass over several lanes: the sums of the lanes one by one, to the last bit; derivatives; batch statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lane_models import CLASSES, MODELS, SHAPE
from scipy.signal import correlate2d

from hpctrain.batch import Batch
from hpctrain.nn import LAYERS
from hpctrain.nn.compose_lanes import BEGIN, NEXT, LaneComposer
from hpctrain.nn.fixed_point import Lanes
from hpctrain.nn.graph import build_graph
from hpctrain.nn.losses import MeanSquaredError, SoftmaxCrossEntropy
from hpctrain.nn.model import Model
from hpctrain.nn.plan import make_plan
from hpctrain.options import part_from

ROWS, LANE = 17, 4  # four lanes and a short one
FIRST = 8  # the rows before them in the global batch: two lanes of other ranks


def model_of(name: str) -> Model:
    layers = [part_from(LAYERS, layer, "layer", "type") for layer in MODELS[name]]
    model = Model(layers, SHAPE, SoftmaxCrossEntropy(), "class", seed=3, lanes=Lanes(7, LANE))
    model.initialize()
    return model


def batch_of(model: Model) -> Batch:
    random = np.random.default_rng(4)
    x = random.integers(0, 5, (ROWS, *model.input_shape)).astype("f4")
    weight = random.uniform(0.5, 2, ROWS).astype("f4")
    return Batch(x, random.integers(0, CLASSES, ROWS), weight, np.arange(ROWS) + 50, step=2, epoch=0, first=FIRST)


def summed(model: Model, batch: Batch, rows: int) -> bytes:
    """Sum a batch in passes of so many rows until the exponents fit; return all bits of it."""
    fixed = model.fixed
    for _ in range(3):
        fixed.begin()
        for lo in range(0, batch.rows, rows):
            model.loss_and_grad(batch.slice(lo, lo + rows), beta=float(lo > 0))
        model.tail[:] = 0
        fixed.close()
        if fixed.settle():
            return model.grad_buffer[: len(fixed.sums)].tobytes() + fixed.losses.tobytes()
    raise AssertionError("the exponents are found in two steps at most")


@pytest.mark.parametrize("name", list(MODELS))
def test_lanes_together_are_lanes_one_by_one_and_the_derivative(name: str) -> None:
    model = model_of(name)
    batch = batch_of(model)
    together = summed(model, batch, ROWS)
    for rows in (LANE, 2 * LANE):
        model.fixed.load(0)
        model.grad_buffer[:] = 0
        assert summed(model, batch, rows) == together
    assert not model.fixed.losses[:2].any(), "lanes of other ranks"

    gradient, params = model.grads.copy(), model.params.copy()
    for slot in model.layout:
        part = slice(slot.offset, slot.stop)
        length = np.linalg.norm(gradient[part].astype("f8"))
        direction = np.zeros_like(params)
        direction[part] = gradient[part] / max(length, 1e-30)
        losses = []
        for size in (0.01, -0.01):
            model.params[:] = params + np.float32(size) * direction
            losses.append(model.loss_and_grad(batch, 0.0))
        assert (losses[0] - losses[1]) / 0.02 == pytest.approx(length, rel=0.02, abs=2e-3), slot.name
    model.params[:] = params


def test_statistics_are_sums_over_the_lanes_of_rows_times_means() -> None:
    model = model_of("cnn")
    batch = batch_of(model)
    summed(model, batch, ROWS)
    weight = model.layout.view(model.params, "conv2d0.weight").astype("f8")
    means, variances = np.zeros(5), np.zeros(5)
    for lo in range(0, ROWS, LANE):
        images = batch.inputs[lo : lo + LANE, :, :, 0].astype("f8")
        y = np.array([[correlate2d(image, weight[:, :, 0, n], "same") for n in range(5)] for image in images])
        means += len(images) * y.mean((0, 2, 3))
        variances += len(images) * y.var((0, 2, 3), ddof=1)
    found = model.state_layout.views(model.stats)
    np.testing.assert_allclose(found["batch_norm1.running_mean"], means, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found["batch_norm1.running_var"], variances, rtol=1e-5)


def test_what_blas_computes_goes_lane_by_lane() -> None:
    """The bits of a product by BLAS depend on how many rows it has."""
    layers = [part_from(LAYERS, layer, "layer", "type") for layer in ({"type": "lstm", "units": 5}, "tanh")]
    composer = LaneComposer(
        make_plan(build_graph(layers, (6, 4)), by_lane=True), MeanSquaredError().kernel_for("real"), ()
    )
    names = {number: kind[0] for kind, number in composer.train.kinds.items()}
    apart, inside = {}, False
    for number, _ in composer.train.calls:
        inside = {BEGIN: True, NEXT: False}.get(number, inside)
        if number in names:
            apart[names[number]] = inside
    assert apart["lstm_forward"]
    assert apart["lstm_backward"]
    assert not any(apart[name] for name in apart if name.startswith("tanh"))


def test_a_redone_step_is_the_step() -> None:
    model = model_of("mlp")
    batch = batch_of(model)
    expected = summed(model, batch, ROWS)
    model.fixed.load(-60)  # nothing fits
    assert summed(model, replace(batch), ROWS) == expected
