"""The sharded optimizer makes the weights of the all-reduce, with a part of the optimizer's state on each rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.errors import UserError
from hpctrain.memory import aligned_zeros
from hpctrain.nn.flat import CHECKPOINT, LOSS, ROWS, STOP, TAIL, WEIGHT, Layout
from hpctrain.optim import OPTIMIZERS
from hpctrain.optim.averaging import SLOT
from hpctrain.optim.clipping import Clip
from hpctrain.optim.table import UpdateTable
from hpctrain.strategies import STRATEGIES

pytestmark = pytest.mark.mpi(min_size=1)

LAYOUT = Layout([("kernel", (31,)), ("bias", (5,)), ("frozen", (2,)), ("last", (3,))])  # cut anywhere by the ranks
STEPS = 50
STATISTICS = 3  # sums of running statistics beside the gradients
OPTIONS = {
    "sgd": {"lr": 0.05, "weight_decay": 0.01},
    "momentum": {"name": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 0.01, "ema": 0.5},
    "adamw": {"lr": 0.02, "weight_decay": 0.1},
    "lamb": {"lr": 0.02, "weight_decay": 0.1},
    "lars": {"lr": 0.5},
}


def optimizer_of(name: str) -> Any:
    options = {"name": name, **OPTIONS[name]}
    return OPTIMIZERS.get(options.pop("name"))(**options)


class Model:
    """Least squares, the loss weighted by example: weight (x w - t)^2 / 2."""

    fixed = None
    layout = LAYOUT
    seed = 0

    def __init__(self, strategy: Any, group: Any) -> None:
        self.params = np.linspace(-1, 1, LAYOUT.size).astype(np.float32)
        self.grad_buffer = strategy.allocate_gradients(group, LAYOUT.size + STATISTICS + TAIL)
        self.grads, self.tail = self.grad_buffer[: LAYOUT.size], self.grad_buffer[-TAIL:]
        self.table = UpdateTable.from_slots(LAYOUT, None, [1, 0, 1, 1], [True, True, False, True])
        self.ready_offsets = (0,)
        self.rows = 0.0

    def update_state(self, rows: float) -> None:
        self.rows += rows
        self.statistics = self.grad_buffer[LAYOUT.size : -TAIL].copy()

    def sum_up(self, group: Any, step: int) -> None:
        """Sum over this rank's part of the step's batch; parts differ in size, and some are empty."""
        random = np.random.default_rng(step)
        rows = 1 if step % 7 == 6 else 11
        inputs, targets = random.normal(size=(rows, LAYOUT.size)), random.normal(size=rows)
        weight = random.uniform(0.5, 2, rows)
        mine = slice(group.rank, None, group.size)
        errors = inputs[mine] @ self.params.astype(np.float64) - targets[mine]
        self.grads[:] = inputs[mine].T @ (weight[mine] * errors)
        self.grad_buffer[LAYOUT.size : -TAIL] = len(errors)
        self.tail[:] = 0
        self.tail[WEIGHT], self.tail[ROWS] = weight[mine].sum(), len(errors)
        self.tail[LOSS] = np.sum(weight[mine] * errors**2) / 2


class Training:
    """A model and its strategy at work."""

    def __init__(self, strategy: str, optimizer: str, collective: str = "native", clip: Any = None) -> None:
        self.group = join()
        made = STRATEGIES.get(strategy)(collective=collective)
        self.model = Model(made, self.group)
        self.run = made.bind(self.group, self.model, optimizer_of(optimizer), clip)

    def go(self, first: int, last: int) -> list:
        outcomes = []
        for step in range(first, last):
            self.model.sum_up(self.group, step)
            outcome = self.run.step(step, 0.02)
            assert self.model.statistics.tolist() == [1 if step % 7 == 6 else 11] * STATISTICS
            outcomes.append((outcome.weight, outcome.loss, outcome.grad_norm or 0.0))
        return outcomes

    def checkpoint(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """What rank 0 would write, on every rank."""
        self.run.settle()
        state = {name: values.copy() for name, values in self.run.state_dict().items()} if not self.group.rank else None
        return self.model.params.copy(), self.group.broadcast_object(state)


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("clip", [Clip(), Clip(norm=1.0), Clip(value=0.4, norm=1.0)], ids=["free", "norm", "value"])
@pytest.mark.parametrize("optimizer", OPTIONS)
def test_the_weights_of_the_all_reduce(optimizer: str, clip: Clip) -> None:
    summed, sharded = (Training(name, optimizer, clip=clip) for name in ("all_reduce", "sharded_optimizer"))
    np.testing.assert_allclose(sharded.go(0, STEPS), summed.go(0, STEPS), rtol=1e-4, atol=1e-6)
    assert apart(sharded.model.params, summed.model.params) <= 1e-5
    assert sharded.model.rows == summed.model.rows
    (params, state), (_, wanted) = sharded.checkpoint(), summed.checkpoint()
    assert sharded.group.all_gather_objects(params.tobytes()) == [params.tobytes()] * sharded.group.size
    assert state.keys() == wanted.keys()
    for name, values in state.items():
        assert apart(values + 1, wanted[name] + 1) <= 1e-5, name


@pytest.mark.parametrize("collective", [*COLLECTIVES, "auto"])
def test_every_collective(collective: str) -> None:
    one, other = (
        Training("sharded_optimizer", "momentum", collective, Clip(norm=1.0)),
        Training("all_reduce", "momentum", "native", Clip(norm=1.0)),
    )
    one.go(0, 20)
    other.go(0, 20)
    assert apart(one.model.params, other.model.params) <= 1e-5
    one.run.close()


@pytest.mark.parametrize(("first", "then"), [("sharded_optimizer", "all_reduce"), ("all_reduce", "sharded_optimizer")])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_checkpoints_go_from_one_to_the_other(optimizer: str, first: str, then: str) -> None:
    before, after, whole = Training(first, optimizer), Training(then, optimizer), Training("all_reduce", optimizer)
    before.go(0, 20)
    before.checkpoint()
    before.go(20, 25)  # what was gathered once is not what is written the next time
    params, state = before.checkpoint()
    after.model.params[:] = params
    after.run.load_state_dict(state)
    after.go(25, STEPS)
    whole.go(0, STEPS)
    assert apart(after.model.params, whole.model.params) <= 1e-5
    assert (SLOT in state) == (optimizer == "momentum")
    if SLOT in state:
        kept = {name: training.checkpoint()[1][SLOT] for name, training in (("after", after), ("whole", whole))}
        assert apart(kept["after"], kept["whole"]) <= 1e-5


def test_a_rank_holds_its_part_of_the_state_alone() -> None:
    allocated = []
    group = join()
    made = STRATEGIES.get("sharded_optimizer")(collective="native")
    model = Model(made, group)
    before = group.allocate
    group.allocate = lambda count, dtype=np.float32: allocated.append(count) or aligned_zeros(count, dtype)
    try:
        run = made.bind(group, model, optimizer_of("adamw"), None)
    finally:
        group.allocate = before
    mine = group.all_gather_objects(sum(allocated))
    assert sum(mine) == 2 * LAYOUT.size
    assert max(mine) <= 2 * -(-LAYOUT.size // group.size)
    assert run.describe() == "sharded_optimizer (native)"
    with pytest.raises(UserError, match=rf"mean \({LAYOUT.size} numbers\), square \({LAYOUT.size} numbers\)"):
        run.load_state_dict({"velocity": np.zeros(LAYOUT.size, np.float32)})


def test_wishes_are_everybody_s_and_nothing_happens_without_weight() -> None:
    training = Training("sharded_optimizer", "momentum", "auto")
    model, group = training.model, training.group
    params = model.params.copy()
    model.grad_buffer[:] = 0
    model.grads[:] = 1
    model.tail[STOP], model.tail[CHECKPOINT] = group.rank == group.size - 1, group.rank == 0
    outcome = training.run.step(0, 1.0)
    assert (outcome.stop, outcome.checkpoint, outcome.weight) == (True, True, 0)
    np.testing.assert_array_equal(model.params, params)
