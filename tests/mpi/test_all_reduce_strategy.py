"""The all-reduce strategy on several ranks makes the updates of one process: least squares, beside float64 numpy."""

import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.nn.flat import CHECKPOINT, LOSS, ROWS, STOP, TAIL, WEIGHT
from hpctrain.optim.averaging import SLOT
from hpctrain.strategies.all_reduce import AllReduce

pytestmark = pytest.mark.mpi(min_size=1)

FEATURES, STEPS, LR, MOMENTUM, LIMIT, EMA = 37, 12, 0.05, 0.9, 2.0, 0.4


class Model:
    def __init__(self):
        self.params = np.linspace(-1, 1, FEATURES).astype(np.float32)
        self.grad_buffer = np.zeros(FEATURES + TAIL, np.float32)
        self.grads = self.grad_buffer[:-TAIL]
        self.tail = self.grad_buffer[-TAIL:]
        self.table = None
        self.ready_offsets = (30, 12, 5, 0)

    def update_state(self, rows):
        self.rows = rows


class Momentum:
    """v <- momentum v + scale g; w <- w - lr v."""

    slots = ("velocity",)
    ema = EMA

    def update(self, params, grads, slots, table, lr, step, scale):
        slots["velocity"][:] = MOMENTUM * slots["velocity"] + np.float32(scale) * grads
        params -= np.float32(lr) * slots["velocity"]

    def bound(self, params, grads, slots, table):
        return lambda lr, step, scale: self.update(params, grads, slots, table, lr, step, scale)


class Clip:
    def factor(self, grads, scale, table):
        norm = scale * float(np.linalg.norm(grads.astype(np.float64)))
        return min(1.0, LIMIT / norm), norm


def batch(step):
    """Return inputs, targets and example weights of one global batch; the last batches are shorter than the world."""
    rng = np.random.default_rng(step)
    rows = 1 if step >= STEPS - 2 else 11
    return rng.normal(size=(rows, FEATURES)), rng.normal(size=rows), rng.uniform(0.5, 2, size=rows)


def sums(inputs, targets, weight, params):
    """Return the gradient and the loss, summed over the rows: weight (x w - t)^2 / 2."""
    errors = inputs @ params.astype(np.float64) - targets
    return inputs.T @ (weight * errors), float(np.sum(weight * errors**2)) / 2


def one_process():
    """The same training in float64 without any of our code; yields loss, norm, weights and average of each step."""
    params, velocity, average = np.linspace(-1, 1, FEATURES), np.zeros(FEATURES), np.zeros(FEATURES)
    for step in range(STEPS):
        inputs, targets, weight = batch(step)
        grads, loss = sums(inputs, targets, weight, params)
        mean = grads / weight.sum()
        norm = np.linalg.norm(mean)
        velocity = MOMENTUM * velocity + mean * min(1.0, LIMIT / norm)
        params = params - LR * velocity
        kept = min(EMA, step / (step + 10))
        average = kept * average + (1 - kept) * params
        yield loss / weight.sum(), norm, params, average


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("collective", list(COLLECTIVES))
def test_the_same_weights_as_one_process(collective, overlap):
    group, model = join(), Model()
    strategy = AllReduce(collective=collective, overlap=overlap, bucket="0.04 kB")  # ten floats
    run = strategy.bind(group, model, Momentum(), Clip())
    assert run.cuts == ((30, 12) if overlap and group.size > 1 else ())
    for step, (loss, norm, params, average) in enumerate(one_process()):
        inputs, targets, weight = (values[group.rank :: group.size] for values in batch(step))  # unequal, some empty
        model.grad_buffer[:] = 0
        grads, model.tail[LOSS] = sums(inputs, targets, weight, model.params)
        model.grads += grads
        model.tail[WEIGHT] = weight.sum()
        model.tail[ROWS] = len(weight)
        for lo in run.cuts if len(weight) else ():  # a rank without rows has no backward pass
            run.ready(lo, step)
        outcome = run.step(step, LR)
        assert outcome.weight == pytest.approx(batch(step)[2].sum(), rel=1e-6)
        assert model.rows == len(batch(step)[2])
        assert outcome.loss == pytest.approx(loss, rel=1e-5)
        assert outcome.grad_norm == pytest.approx(norm, rel=1e-5)
        np.testing.assert_allclose(model.params, params, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(run.state_dict()[SLOT], average, rtol=1e-4, atol=1e-6)
    # Every rank holds the same bits, in weights, optimizer state and average.
    state = [values.tobytes() for values in (model.params, *run.state_dict().values())]
    assert group.all_gather_objects(state) == [state] * group.size
    run.close()


@pytest.mark.parametrize("collective", list(COLLECTIVES))
def test_one_rank_s_wish_is_everybody_s(collective):
    group, model = join(), Model()
    run = AllReduce(collective=collective).bind(group, model, Momentum(), None)
    model.tail[WEIGHT] = 1
    if group.rank == group.size - 1:
        model.tail[STOP] = 1
    if group.rank == 0:
        model.tail[CHECKPOINT] = 1
    outcome = run.step(0, LR)
    assert (outcome.stop, outcome.checkpoint) == (True, True)


@pytest.mark.mpi(min_size=2)
def test_without_a_second_thread_gradients_leave_after_the_backward_pass(monkeypatch):
    """Where the MPI library of one rank alone cannot, too: all of them must do the same."""
    group, model = join(), Model()
    monkeypatch.setattr(group, "has_threads", group.rank != group.size - 1)
    run = AllReduce(collective="native", overlap=True, bucket="0.04 kB").bind(group, model, Momentum(), None)
    assert run.cuts == ()
    assert run.said == (f"{group.library} lets one thread call it at a time: gradients leave after the backward pass",)
    model.grads[:] = group.rank + 1
    run.step(0, LR)
    np.testing.assert_array_equal(model.grads, group.size * (group.size + 1) / 2)


@pytest.mark.mpi(min_size=2)
def test_what_goes_wrong_while_gradients_are_under_way_is_raised_by_the_step(monkeypatch):
    group, model = join(), Model()
    run = AllReduce(collective="native", overlap=True, bucket="0.04 kB").bind(group, model, Momentum(), None)
    monkeypatch.setattr("hpctrain.comm.collectives.native.NativeCollective.all_reduce", broken)
    run.ready(30, 0)
    with pytest.raises(RuntimeError, match="the wire is cut"):
        run.step(0, LR)


def broken(collective, buffer):
    raise RuntimeError("the wire is cut")
