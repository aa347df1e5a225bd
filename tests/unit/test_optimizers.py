"""Optimizers against the papers' formulas in float64, the update table, and bad options."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.optimizers import adam
from hpctrain.nn.flat import Layout, Slot
from hpctrain.optim.adam import Adam, AdamW
from hpctrain.optim.adaptive import Adagrad, RmsProp
from hpctrain.optim.base import Optimizer
from hpctrain.optim.by_tensor import Lamb, Lars
from hpctrain.optim.lion import Lion
from hpctrain.optim.sgd import Sgd
from hpctrain.optim.table import UpdateTable

STEPS, SIZE, SCALE = 60, 37, 1 / 48


@dataclass
class Reference:
    """The update of one tensor as the papers write it, in float64."""

    optimizer: Optimizer
    lr_factor: float = 1.0
    decay_factor: float = 1.0

    def run(self, params: np.ndarray, grads: list[np.ndarray], rates: list[float]) -> np.ndarray:
        w = params.astype(np.float64)
        state: dict = {"velocity": None, "m": 0.0, "v": 0.0}
        one = getattr(self, type(self.optimizer).__name__.lower())
        for t, (grad, rate) in enumerate(zip(grads, rates, strict=True), 1):
            w = one(w, grad.astype(np.float64) * SCALE, t, rate * self.lr_factor, state)
        return w

    def sgd(self, w: np.ndarray, g: np.ndarray, t: int, lr: float, state: dict) -> np.ndarray:
        o = self.optimizer
        g = g + o.weight_decay * self.decay_factor * w
        if not o.momentum:
            return w - lr * g
        # PyTorch sets the first velocity to the first gradient.
        state["velocity"] = g if state["velocity"] is None else o.momentum * state["velocity"] + g
        return w - lr * (g + o.momentum * state["velocity"] if o.nesterov else state["velocity"])

    def adam(self, w: np.ndarray, g: np.ndarray, t: int, lr: float, state: dict) -> np.ndarray:
        o = self.optimizer
        decay = o.weight_decay * self.decay_factor
        if isinstance(o, AdamW):
            w = w * (1 - lr * decay)
        else:
            g = g + decay * w
        state["m"] = o.beta1 * state["m"] + (1 - o.beta1) * g
        state["v"] = o.beta2 * state["v"] + (1 - o.beta2) * g**2
        return w - lr * (state["m"] / (1 - o.beta1**t)) / (np.sqrt(state["v"] / (1 - o.beta2**t)) + o.epsilon)

    adamw = adam

    def rmsprop(self, w: np.ndarray, g: np.ndarray, t: int, lr: float, state: dict) -> np.ndarray:
        o = self.optimizer
        g = g + o.weight_decay * self.decay_factor * w
        state["v"] = o.rho * state["v"] + (1 - o.rho) * g**2
        state["m"] = o.momentum * state["m"] + g / (np.sqrt(state["v"]) + o.epsilon)
        return w - lr * state["m"]

    def adagrad(self, w: np.ndarray, g: np.ndarray, t: int, lr: float, state: dict) -> np.ndarray:
        g = g + self.optimizer.weight_decay * self.decay_factor * w
        state["v"] = state["v"] + g**2
        return w - lr * g / (np.sqrt(state["v"]) + self.optimizer.epsilon)

    def lion(self, w: np.ndarray, g: np.ndarray, t: int, lr: float, state: dict) -> np.ndarray:
        o = self.optimizer
        direction = np.sign(o.beta1 * state["m"] + (1 - o.beta1) * g)
        state["m"] = o.beta2 * state["m"] + (1 - o.beta2) * g
        return w - lr * (direction + o.weight_decay * self.decay_factor * w)

    def lamb(self, w: np.ndarray, g: np.ndarray, t: int, lr: float, state: dict) -> np.ndarray:
        o = self.optimizer
        state["m"] = o.beta1 * state["m"] + (1 - o.beta1) * g
        state["v"] = o.beta2 * state["v"] + (1 - o.beta2) * g**2
        step = (state["m"] / (1 - o.beta1**t)) / (np.sqrt(state["v"] / (1 - o.beta2**t)) + o.epsilon)
        step = step + o.weight_decay * self.decay_factor * w
        adapted = np.linalg.norm(w) / np.linalg.norm(step) if self.decay_factor else 1.0
        return w - lr * adapted * step

    def lars(self, w: np.ndarray, g: np.ndarray, t: int, lr: float, state: dict) -> np.ndarray:
        o = self.optimizer
        decay = o.weight_decay * self.decay_factor
        adapted = 1.0
        if self.decay_factor:
            adapted = o.trust * np.linalg.norm(w) / (np.linalg.norm(g) + decay * np.linalg.norm(w) + o.epsilon)
        state["m"] = o.momentum * state["m"] + lr * adapted * (g + decay * w)
        return w - state["m"]


OPTIMIZERS = [
    Sgd(),
    Sgd(weight_decay=0.1),
    Sgd(momentum=0.9),
    Sgd(momentum=0.5, weight_decay=0.1),
    Sgd(momentum=0.9, nesterov=True, weight_decay=0.01),
    Adam(),
    Adam(beta1=0.0, beta2=0.9, epsilon=1e-3),
    Adam(beta1=0.5, beta2=0.5, weight_decay=0.1),
    AdamW(),
    AdamW(weight_decay=0.5, beta2=0.95),
    RmsProp(),
    RmsProp(rho=0.9, momentum=0.9, weight_decay=0.1),
    Adagrad(),
    Adagrad(epsilon=1e-3, weight_decay=0.1),
    Lion(),
    Lion(beta1=0.5, beta2=0.25, weight_decay=0.1),
    Lamb(),
    Lamb(beta1=0.5, beta2=0.9, epsilon=1e-3, weight_decay=0.3),
    Lars(),
    Lars(momentum=0.0, trust=0.5, weight_decay=0.1),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize(("real", "close"), [(np.float32, 2e-5), (np.float64, 1e-12)])
def test_follows_the_papers(optimizer: Optimizer, real: type, close: float) -> None:
    random = np.random.default_rng(0)
    layout = Layout([("a", (SIZE,)), ("b", (3, 5)), ("c", (7,))])
    params = random.normal(0, 1, layout.size).astype(real)
    grads = [random.normal(1, 20, layout.size).astype(real) for _ in range(STEPS)]
    rates = [0.02 / (1 + step / 20) for step in range(STEPS)]
    plain = UpdateTable.from_slots(layout)
    factors = {"a": (1.0, 1.0), "b": (0.5, 0.25), "c": (2.0, 0.0)}
    table = UpdateTable(plain.starts, plain.stops, *np.array(list(factors.values()), np.float32).T.copy())
    slots = {name: np.zeros(layout.size, real) for name in optimizer.slots}
    expected = {
        name: Reference(optimizer, *pair).run(layout.view(params, name), [layout.view(g, name) for g in grads], rates)
        for name, pair in factors.items()
    }
    for step, (grad, rate) in enumerate(zip(grads, rates, strict=True)):
        optimizer.update(params, grad, slots, table, rate, step, SCALE)
    for name, wanted in expected.items():
        np.testing.assert_allclose(layout.view(params, name), wanted, rtol=close, atol=close)


def test_adam_moves_by_the_learning_rate_at_first_and_late() -> None:
    """With equal gradients m / sqrt(s) is 1 at every step (Kingma and Ba, section 2.1), the 100,000th included."""
    for step in (0, 1, 100_000):
        params, grads = np.zeros(1, np.float32), np.full(1, 1e-3, np.float32)
        kept = 1 - 0.9**step, 1 - 0.999**step
        slots = {"mean": np.float32(kept[0]) * grads, "square": np.float32(kept[1]) * grads**2}
        table = UpdateTable(np.array([0]), np.array([1]), np.ones(1, np.float32), np.ones(1, np.float32))
        Adam(epsilon=1e-20).update(params, grads, slots, table, 0.25, step, 1.0)
        assert params[0] == pytest.approx(-0.25, rel=1e-5)


def test_small_decoupled_decay_is_not_rounded_to_few_digits() -> None:
    params = np.full(1, 1.0, np.float32)
    table = UpdateTable(np.array([0]), np.array([1]), np.ones(1, np.float32), np.ones(1, np.float32))
    slots = {name: np.zeros(1, np.float32) for name in ("mean", "square")}
    for step in range(1000):
        AdamW(weight_decay=0.01).update(params, np.zeros(1, np.float32), slots, table, 1e-3, step, 1.0)
    assert params[0] == pytest.approx(math.exp(1000 * math.log1p(-1e-5)), rel=3e-5)


def test_lion_stands_still_where_there_is_no_direction() -> None:
    params, table = np.array([1, -2, 3], np.float32), UpdateTable.from_slots([Slot("a", 0, (3,))])
    slots = {"mean": np.zeros(3, np.float32)}
    Lion().update(params, np.array([0, 1e-30, -5], np.float32), slots, table, 0.5, 0, 1.0)
    assert params.tolist() == [1, -2.5, 3.5]


@pytest.mark.parametrize("optimizer", [Lamb(lr=0.1), Lars(lr=1.0, trust=0.1, momentum=0.0, weight_decay=0.0)], ids=str)
def test_steps_are_as_long_as_the_tensor_is(optimizer: Optimizer) -> None:
    """|step| = 0.1 |p| for each tensor, whatever its gradient's length; a tensor of zeros takes the plain step."""
    layout = Layout([("a", (50,)), ("b", (50,)), ("zero", (5,))])
    table = UpdateTable.from_slots(layout)
    random = np.random.default_rng(3)
    params, grads = (random.normal(0, 1, layout.size).astype(np.float32) for _ in range(2))
    grads[layout["b"].offset :] *= 1e6
    layout.view(params, "zero")[:] = 0
    before = params.copy()
    slots = {name: np.zeros(layout.size, np.float32) for name in optimizer.slots}
    optimizer.update(params, grads, slots, table, optimizer.lr, 0, 1.0)
    for name in ("a", "b"):
        step = np.linalg.norm(layout.view(params - before, name))
        assert step == pytest.approx(0.1 * np.linalg.norm(layout.view(before, name)), rel=1e-3)
    zero, plain = layout.view(params, "zero"), layout.view(grads, "zero")
    expected = -plain if isinstance(optimizer, Lars) else -0.1 * np.sign(plain)
    np.testing.assert_allclose(zero, expected, rtol=1e-5)


def test_plain_sgd_needs_no_state() -> None:
    assert Sgd().slots == ()
    assert Sgd(momentum=0.9).slots == ("velocity",)
    assert Adam().slots == AdamW().slots == ("mean", "square")
    assert RmsProp().slots == ("square",)
    assert RmsProp(momentum=0.9).slots == ("square", "velocity")


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        (Sgd, {"lr": -0.1}, r"optimizer.lr = -0.1: .*greater than 0"),
        (Sgd, {"lr": 0}, r"optimizer.lr = 0: .*greater than 0"),
        (Sgd, {"momentum": 1.0}, r"optimizer.momentum = 1.0: .*less than 1"),
        (Sgd, {"nesterov": True}, r"nesterov = true needs momentum above 0"),
        (Sgd, {"weight_decay": -1}, r"optimizer.weight_decay = -1: .*greater than or equal to 0"),
        (Sgd, {"momentun": 0.9}, r"optimizer.momentun.*did you mean 'momentum'"),
        (Adam, {"beta1": 1.0}, r"optimizer.beta1 = 1.0: .*less than or equal to 0.9999999"),
        (Adam, {"beta2": -0.1}, r"optimizer.beta2 = -0.1: .*greater than or equal to 0"),
        (AdamW, {"epsilon": 0}, r"optimizer.epsilon = 0: "),
        (RmsProp, {"rho": 1}, r"optimizer.rho = 1: .*less than or equal to 0.9999999"),
        (Lars, {"trust": 0}, r"optimizer.trust = 0: .*greater than 0"),
        (Lion, {"beta2": 1.5}, r"optimizer.beta2 = 1.5: .*less than or equal to 0.9999999"),
        (Lion, {"ema": 1.0}, r"optimizer.ema = 1.0: .*less than or equal to 0.9999999"),
        (Sgd, {"groups": [{"patern": "a"}]}, r"optimizer.groups.0.patern.*did you mean 'pattern'"),
        (Sgd, {"groups": [{"pattern": "a", "lr_factor": -1}]}, r"optimizer.groups.0.lr_factor = -1: "),
        (AdamW, {"lr": "fast"}, r"optimizer.lr = 'fast': "),
    ],
)
def test_bad_options_name_the_key(part: type[Optimizer], options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        part.checked(options, "optimizer")


def test_table_from_a_layout() -> None:
    layout = Layout([("a", (3, 5)), ("b", ()), ("c", (16,))])
    table = UpdateTable.from_slots(layout)
    assert table.starts.tolist() == [0, 16, 32]
    assert table.stops.tolist() == [15, 17, 48]
    assert table.starts.dtype == table.stops.dtype == np.int64
    assert table.lr_factor.tolist() == table.decay_factor.tolist() == [1, 1, 1]
    assert table.tensors.tolist() == [0, 1, 2]
    assert table.starts.flags.c_contiguous
    assert table.stops.flags.c_contiguous
    assert len(UpdateTable.from_slots([])) == 0


def test_table_without_what_is_frozen() -> None:
    layout = Layout([("a", (3, 5)), ("b", ()), ("c", (16,))])
    table = UpdateTable.from_slots(layout, [1, 2, 3], [4, 5, 6], [True, False, True])
    assert (table.starts.tolist(), table.stops.tolist()) == ([0, 32], [15, 48])
    assert (table.lr_factor.tolist(), table.decay_factor.tolist()) == ([1, 3], [4, 6])
    cut = table.slice(20, 40)
    assert (cut.starts.tolist(), cut.stops.tolist(), cut.lr_factor.tolist()) == ([12], [20], [3])
    # Norms are counted by tensors of the whole model, wherever the slice lies.
    assert (table.tensors.tolist(), cut.tensors.tolist(), cut.tensor_count) == ([0, 2], [2], 3)


def test_slices_of_a_table_cover_each_element_once() -> None:
    random = np.random.default_rng(0)
    bounds = [(0, 15), (16, 17), (32, 48), (48, 80)]
    starts, stops = np.array(bounds).T.copy()
    factors = np.arange(4, dtype=np.float32)
    table = UpdateTable(starts, stops, factors, factors * 10)
    expected = np.full(80, -1.0)
    for (lo, hi), factor in zip(bounds, factors, strict=True):
        expected[lo:hi] = factor
    for _ in range(50):
        cuts = [0, *np.sort(random.integers(0, 81, 5)), 80]
        found = np.full(80, -1.0)
        for lo, hi in zip(cuts, cuts[1:], strict=False):
            part = table.slice(lo, hi)
            assert (part.starts < part.stops).all()
            for start, stop, rate, decay in zip(
                part.starts, part.stops, part.lr_factor, part.decay_factor, strict=True
            ):
                assert (found[lo + start : lo + stop] == -1).all()
                assert decay == 10 * rate
                found[lo + start : lo + stop] = rate
        np.testing.assert_array_equal(found, expected)


def test_slice_of_a_slice() -> None:
    table = UpdateTable.from_slots(Layout([("a", (20,)), ("b", (40,))]))
    once, twice = table.slice(15, 50), table.slice(10, 60).slice(5, 40)
    assert once.starts.tolist() == twice.starts.tolist() == [0, 17]
    assert once.stops.tolist() == twice.stops.tolist() == [5, 35]


def test_adam_keeps_squares_far_below_the_last_ones() -> None:
    """With small betas a small gradient after large ones is still all there, and the step is not m / epsilon."""
    params = np.zeros(1, np.float32)
    table = UpdateTable(np.array([0]), np.array([1]), np.ones(1, np.float32), np.ones(1, np.float32))
    slots = {name: np.zeros(1, np.float32) for name in ("mean", "square")}
    optimizer = Adam(beta1=0.0, beta2=0.0, epsilon=1e-20)
    for step, grad in enumerate((1e4, 1e-4)):
        optimizer.update(params, np.full(1, grad, np.float32), slots, table, 0.5, step, 1.0)
    assert params[0] == pytest.approx(-1.0)


def test_operations_are_rounded_one_by_one() -> None:
    """The bits of float32 numpy: nothing is fused, as a compiler might do in a loop's body and not in its tail."""
    random = np.random.default_rng(5)
    params, grads, velocity = (random.normal(0, 1, 1003).astype(np.float32) for _ in range(3))
    lr, decay, momentum, scale = (np.float32(number) for number in (0.3, 0.07, 0.9, 0.11))
    table = UpdateTable(np.array([0]), np.array([1003]), np.ones(1, np.float32), np.ones(1, np.float32))
    expected_velocity = momentum * velocity + (scale * grads + decay * params)
    expected = params - lr * expected_velocity
    slots = {"velocity": velocity}
    Sgd(momentum=0.9, weight_decay=0.07).update(params, grads, slots, table, 0.3, 3, 0.11)
    np.testing.assert_array_equal(velocity, expected_velocity)
    np.testing.assert_array_equal(params, expected)


@kernel(cache=False)
def fast_step(params, grads, mean, square, starts, stops, lr_factor, decay_factor, numbers):
    """As a generated step calls the update: from compiled code with fast-math, scalars out of an array."""
    adam(
        params,
        grads,
        mean,
        square,
        starts,
        stops,
        lr_factor,
        decay_factor,
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
        numbers[9],
        numbers[10],
    )


def test_a_compiled_caller_gets_the_same_bits() -> None:
    random = np.random.default_rng(8)
    layout = Layout([("a", (1003,)), ("b", (7,))])
    table, optimizer = UpdateTable.from_slots(layout), AdamW(weight_decay=0.1)
    params, grads = (random.normal(0, 1, layout.size).astype(np.float32) for _ in range(2))
    slots = {name: np.zeros(layout.size, np.float32) for name in optimizer.slots}
    other, other_slots = params.copy(), [values.copy() for values in slots.values()]
    ranges = (table.starts, table.stops, table.lr_factor, table.decay_factor)
    for step in range(3):
        optimizer.update(params, grads, slots, table, 0.01, step, 0.03)
        fast_step(other, grads, *other_slots, *ranges, np.array(optimizer.scalars(0.01, step, 0.03)))
    assert params.tobytes() == other.tobytes()
