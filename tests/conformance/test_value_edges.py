"""Every registered loss, metric and optimizer at the edges: nothing, one of everything, NaN, infinities, denormals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpctrain.nn import LOSSES, METRICS
from hpctrain.nn.losses import Loss
from hpctrain.optim import OPTIMIZERS
from hpctrain.optim.base import Optimizer
from hpctrain.optim.table import UpdateTable

LOSS_CASES = [(name, kind) for name in LOSSES for kind in LOSSES.get(name)().accepts]
METRIC_CASES = [(name, kind) for name in METRICS for kind in METRICS.get(name)().target_kinds]
ROWS, COLUMNS, BAD = 6, 3, 2


def loss_example(loss: Loss, kind: str, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    width = loss.outputs_for(kind, COLUMNS, COLUMNS)
    outputs = random.normal(size=(rows, width)).astype("f4")
    labels, real = np.zeros(rows, np.int64), random.uniform(0.1, 0.9, (rows, COLUMNS)).astype("f4")
    return outputs, (labels if kind == "class" else real), np.ones(rows, np.float32)


def value(loss: Loss, kind: str, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> tuple[float, Any]:
    derivative = np.full_like(outputs, 123)
    return loss.kernel_for(kind)(outputs, targets, weight, derivative, *loss.constants()), derivative


@pytest.mark.parametrize(("name", "kind"), LOSS_CASES)
def test_loss_of_no_rows_is_zero(name: str, kind: str) -> None:
    loss = LOSSES.get(name)()
    total, derivative = value(loss, kind, *loss_example(loss, kind, 0))
    assert total == 0.0
    assert derivative.size == 0


@pytest.mark.parametrize(("name", "kind"), LOSS_CASES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_loss_and_no_other_row(name: str, kind: str, bad: float) -> None:
    """A row of infinite outputs is wrong for every target here: labels are 0, real targets finite."""
    loss = LOSSES.get(name)()
    outputs, targets, weight = loss_example(loss, kind)
    _, expected = value(loss, kind, outputs, targets, weight)
    outputs[BAD] = bad
    total, derivative = value(loss, kind, outputs, targets, weight)
    assert not np.isfinite(total)
    others = np.arange(ROWS) != BAD
    np.testing.assert_array_equal(derivative[others], expected[others])
    if np.isnan(bad):
        assert np.isnan(total)
        assert np.isnan(derivative[BAD]).all()


@pytest.mark.parametrize(("name", "kind"), LOSS_CASES)
def test_one_nan_among_the_outputs_of_a_row_reaches_the_loss(name: str, kind: str) -> None:
    loss = LOSSES.get(name)()
    outputs, targets, weight = loss_example(loss, kind)
    for column in range(outputs.shape[1]):
        with_nan = outputs.copy()
        with_nan[BAD, column] = np.nan
        total, derivative = value(loss, kind, with_nan, targets, weight)
        assert np.isnan(total)
        assert np.isnan(derivative[BAD, column])


@pytest.mark.parametrize(("name", "kind"), LOSS_CASES)
def test_loss_of_denormal_numbers_is_that_of_zero(name: str, kind: str) -> None:
    loss = LOSSES.get(name)()
    outputs, targets, weight = loss_example(loss, kind)
    at_zero, _ = value(loss, kind, np.zeros_like(outputs), targets, weight)
    total, derivative = value(loss, kind, 1e-40 * outputs, targets, weight)
    assert total == pytest.approx(at_zero, rel=1e-6)
    assert np.isfinite(derivative).all()
    small, derivative = value(loss, kind, outputs, targets, np.full(ROWS, 1e-40, np.float32))
    assert 0 <= abs(small) < 1e-37
    assert np.isfinite(derivative).all()


def metric_result(name: str, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> np.ndarray:
    metric = METRICS.get(name)()
    state = metric.start(outputs.shape[1], len(outputs))
    metric.update(state, outputs, targets, weight)
    return np.asarray(metric.result(state), float)


def metric_example(kind: str, rows: int, width: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    outputs = random.normal(size=(rows, width)).astype("f4")
    real = random.normal(size=(rows, width)).astype("f4")
    return outputs, (np.arange(rows) % width if kind == "class" else real), np.ones(rows, np.float32)


@pytest.mark.parametrize(("name", "kind"), METRIC_CASES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_an_infinite_prediction_is_never_a_good_one(name: str, kind: str, bad: float) -> None:
    outputs, targets, weight = metric_example(kind, 20)
    outputs[5, 2] = bad
    found = metric_result(name, outputs, targets, weight)
    if kind == "real":
        assert not np.isfinite(found).any()
        return
    # For classes infinity is the largest or the smallest score, or there is no value.
    outputs[5, 2] = np.sign(bad) * 1e30
    expected = metric_result(name, outputs, targets, weight)
    np.testing.assert_array_equal(found[np.isfinite(found)], expected[np.isfinite(found)])


@pytest.mark.parametrize(("name", "kind"), METRIC_CASES)
def test_metric_of_one_row_is_that_of_the_row_twice(name: str, kind: str) -> None:
    rows = metric_example(kind, 1, 2 if kind == "class" else 1)
    twice = metric_result(name, *(np.repeat(array, 2, 0) for array in rows))
    counts = METRICS.get(name)().is_number
    np.testing.assert_allclose(metric_result(name, *rows), twice if counts else twice / 2, rtol=1e-12)


@pytest.mark.parametrize(("name", "kind"), METRIC_CASES)
def test_metric_of_denormal_numbers_is_that_of_small_ones(name: str, kind: str) -> None:
    outputs, targets, weight = metric_example(kind, 20)
    found = metric_result(name, np.float32(1e-40) * np.round(100 * outputs), targets, weight)
    expected = metric_result(name, np.float32(1e-30) * np.round(100 * outputs), targets, weight)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


SIZE, TENSORS, AT = 100, [(0, 1), (16, 64), (64, 100)], 40
every_optimizer = pytest.mark.parametrize("optimizer", [OPTIMIZERS.get(name)() for name in OPTIMIZERS], ids=OPTIMIZERS)


def table() -> UpdateTable:
    starts, stops = np.array(TENSORS).T.copy()
    return UpdateTable(starts, stops, np.ones(len(TENSORS), np.float32), np.ones(len(TENSORS), np.float32))


def updated(optimizer: Optimizer, *grads: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    params = np.random.default_rng(1).normal(size=SIZE).astype("f4")
    slots = {name: np.zeros(SIZE, np.float32) for name in optimizer.slots}
    for step, grad in enumerate(grads):
        optimizer.update(params, grad.copy(), slots, table(), 0.01, step, 0.5)
    return params, slots


def gradient() -> np.ndarray:
    return np.random.default_rng(2).normal(size=SIZE).astype("f4")


@every_optimizer
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_stays_in_its_tensor_and_shows(optimizer: Optimizer, bad: float) -> None:
    dirty = gradient()
    dirty[AT] = bad
    (params, slots), (expected, expected_slots) = updated(optimizer, dirty), updated(optimizer, gradient())
    outside = np.ones(SIZE, bool)
    outside[slice(*TENSORS[1])] = False
    np.testing.assert_array_equal(params[outside], expected[outside])
    for name in optimizer.slots:
        np.testing.assert_array_equal(slots[name][outside], expected_slots[name][outside])
    shown = [params[AT], *(values[AT] for values in slots.values())]
    assert not np.isfinite(shown).all(), "in the weights, or in what the next steps are made of"


@every_optimizer
@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-38])
def test_vanishing_gradients_leave_finite_weights(optimizer: Optimizer, size: float) -> None:
    tiny = (size * gradient()).astype("f4")
    params, slots = updated(optimizer, tiny, tiny, tiny)
    before, _ = updated(optimizer)
    assert np.isfinite(params).all()
    assert all(np.isfinite(values).all() for values in slots.values())
    # No rule steps further for a smaller gradient than the learning rate a step, decay included.
    assert np.abs(params - before).max() <= 3 * 0.01 * (1.01 + np.abs(before).max())


@every_optimizer
def test_a_slice_of_nothing_and_a_tensor_of_one_number(optimizer: Optimizer) -> None:
    params, slots = updated(optimizer, gradient())
    nothing = {name: values[5:5] for name, values in slots.items()}
    kept = params.copy()
    norms = optimizer.norms(params[5:5], params[5:5], nothing, table().slice(5, 5), 0.01, 1, 0.5)
    optimizer.update(params[5:5], params[5:5], nothing, table().slice(5, 5), 0.01, 1, 0.5, norms)
    np.testing.assert_array_equal(params, kept)
    assert params[0] != updated(optimizer)[0][0], "the tensor of one number has moved"
