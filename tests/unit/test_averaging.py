"""The moving average of the weights, beside float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.optim.averaging import SLOT, WeightAverage
from hpctrain.optim.sgd import Sgd
from hpctrain.optim.table import UpdateTable
from hpctrain.strategies.all_reduce import AllReduce
from hpctrain.strategies.base import StrategyRun


def test_follows_the_definition() -> None:
    random = np.random.default_rng(0)
    params, values = np.zeros(37, np.float32), np.zeros(37, np.float32)
    average, expected = WeightAverage(params, values, 0.9), np.zeros(37)
    for step in range(300):
        params[:] = random.normal(step, 1, 37)
        average.add(step)
        decay = min(0.9, step / (step + 10))
        expected = decay * expected + (1 - decay) * params.astype(np.float64)
        np.testing.assert_allclose(values, expected, rtol=2e-6, atol=1e-6)


def test_the_first_update_replaces_the_zeros() -> None:
    params, values = np.array([1 / 3, -7], np.float32), np.zeros(2, np.float32)
    WeightAverage(params, values, 0.999).add(0)
    np.testing.assert_array_equal(values, params)


def test_swapping_twice_changes_no_bit() -> None:
    random = np.random.default_rng(1)
    params, values = (random.normal(0, 1, 37).astype(np.float32) for _ in range(2))
    params[3], values[5] = np.nan, -0.0
    before = params.copy(), values.copy()
    average = WeightAverage(params, values, 0.9)
    average.swap()
    assert (params.tobytes(), values.tobytes()) == (before[1].tobytes(), before[0].tobytes())
    average.swap()
    assert (params.tobytes(), values.tobytes()) == (before[0].tobytes(), before[1].tobytes())


class Model:
    """Two numbers; behind the gradients the tail of a model without running statistics."""

    def __init__(self) -> None:
        from hpctrain.nn.flat import TAIL, WEIGHT

        self.params = np.array([1, -2], np.float32)
        self.grad_buffer = np.zeros(2 + TAIL, np.float32)
        self.grads, self.tail = self.grad_buffer[:2], self.grad_buffer[2:]
        self.table = UpdateTable(np.array([0]), np.array([2]), np.ones(1, np.float32), np.ones(1, np.float32))
        self.weight = WEIGHT

    def update_state(self, rows: float) -> None:
        pass


def steps(run: StrategyRun, model: Model, first: int, last: int) -> None:
    for step in range(first, last):
        model.grad_buffer[:] = 0
        model.grads[:] = np.random.default_rng(step).normal(0, 1, 2)
        model.tail[model.weight] = 2 if step else 0  # the first batch holds nothing
        run.step(step, 0.1)


@pytest.mark.parametrize("optimizer", [Sgd(ema=0.5), Sgd(momentum=0.9, ema=0.99)], ids=str)
def test_the_strategy_keeps_it_and_goes_on_from_a_checkpoint(optimizer: Sgd) -> None:
    model = Model()
    run = AllReduce().bind(SingleGroup(), model, optimizer, None)
    steps(run, model, 0, 7)
    assert set(run.state_dict()) == {*optimizer.slots, SLOT}
    saved = model.params.copy(), {name: values.copy() for name, values in run.state_dict().items()}
    with run.averaged():
        np.testing.assert_array_equal(model.params, saved[1][SLOT])
    np.testing.assert_array_equal(model.params, saved[0])
    steps(run, model, 7, 12)

    other = Model()
    resumed = AllReduce().bind(SingleGroup(), other, optimizer, None)
    other.params[:] = saved[0]
    resumed.load_state_dict(saved[1])
    steps(resumed, other, 7, 12)
    assert other.params.tobytes() == model.params.tobytes()
    assert resumed.state_dict()[SLOT].tobytes() == run.state_dict()[SLOT].tobytes()


def test_without_one_nothing_is_swapped() -> None:
    model = Model()
    run = AllReduce().bind(SingleGroup(), model, Sgd(), None)
    with run.averaged():
        assert model.params.tolist() == [1, -2]
    assert run.state_dict() == {}
