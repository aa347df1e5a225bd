"""The all-reduce strategy on one rank: what it does with the sums, the tail, clipping and the optimizer's state."""

import math

import numpy as np
import pydantic
import pytest

from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.single_group import SingleGroup
from hpctrain.errors import UserError
from hpctrain.nn.flat import CHECKPOINT, LOSS, ROWS, STOP, TAIL, WEIGHT
from hpctrain.options import part_from, spec_of
from hpctrain.strategies import STRATEGIES
from hpctrain.strategies.all_reduce import AllReduce
from hpctrain.strategies.choosing import Choice


class Model:
    def __init__(self, params):
        self.params = np.array(params, np.float32)
        self.grad_buffer = np.zeros(len(self.params) + TAIL, np.float32)
        self.grads = self.grad_buffer[:-TAIL]
        self.tail = self.grad_buffer[-TAIL:]
        self.table = object()
        self.rows = []

    def update_state(self, rows):
        self.rows.append(rows)


class Recorder:
    """An optimizer that writes down what it is asked for: w <- w - lr scale g, and counts its updates in a slot."""

    slots = ("count", "last")
    ema = None

    def __init__(self):
        self.calls = []
        self.warm = 0

    def bound(self, params, grads, slots, table):
        return lambda lr, step, scale: self.update(params, grads, slots, table, lr, step, scale)

    def update(self, params, grads, slots, table, lr, step, scale):
        self.calls.append((table, lr, step, scale))
        params -= np.float32(lr * scale) * grads
        slots["count"] += 1
        slots["last"][:] = grads

    def warm_up(self):
        self.warm += 1


class Clip:
    """Clips to norm 1, and remembers the scale."""

    def factor(self, grads, scale, table):
        norm = scale * math.sqrt(float(np.sum(grads.astype(np.float64) ** 2)))
        return min(1.0, 1.0 / norm), norm

    def warm_up(self):
        pass


@pytest.fixture(params=["auto", *COLLECTIVES])
def strategy(request):
    return AllReduce(collective=request.param)


def bound(strategy, clip=None):
    model, optimizer = Model([1.0, 2.0, 3.0]), Recorder()
    return model, optimizer, strategy.bind(SingleGroup(), model, optimizer, clip)


def test_it_divides_once_by_the_weight(strategy):
    model, optimizer, run = bound(strategy)
    model.grads[:] = [4, 8, -4]
    model.tail[[WEIGHT, LOSS, ROWS]] = 4, 10, 3
    outcome = run.step(7, 0.5)
    np.testing.assert_array_equal(model.params, [0.5, 1.0, 3.5])
    assert optimizer.calls == [(model.table, 0.5, 7, 0.25)]
    assert (outcome.weight, outcome.loss, outcome.grad_norm) == (4.0, 2.5, None)
    assert model.rows == [3.0]  # running statistics follow the examples, not their weight
    assert (outcome.stop, outcome.checkpoint) == (False, False)


def test_the_wishes_in_the_tail_come_out(strategy):
    model, _, run = bound(strategy)
    model.tail[[WEIGHT, STOP]] = 1, 1
    assert run.step(0, 0.1).stop is True
    model.grad_buffer[:] = 0
    model.tail[[WEIGHT, CHECKPOINT]] = 1, 3
    outcome = run.step(1, 0.1)
    assert (outcome.stop, outcome.checkpoint) == (False, True)


def test_nothing_is_updated_without_weight(strategy):
    model, optimizer, run = bound(strategy, Clip())
    model.tail[STOP] = 1
    outcome = run.step(0, 0.1)
    assert optimizer.calls == []
    np.testing.assert_array_equal(model.params, [1, 2, 3])
    assert (outcome.weight, outcome.loss, outcome.grad_norm, outcome.stop) == (0.0, 0.0, None, True)


def test_clipping_sees_the_mean_gradient(strategy):
    model, optimizer, run = bound(strategy, Clip())
    model.grads[:] = [6, 8, 0]
    model.tail[WEIGHT] = 2
    outcome = run.step(0, 1.0)
    assert outcome.grad_norm == pytest.approx(5.0)
    assert optimizer.calls[0][3] == pytest.approx(0.5 / 5)
    np.testing.assert_allclose(model.params, [1 - 0.6, 2 - 0.8, 3], rtol=1e-6)


def test_a_broken_gradient_is_not_hidden(strategy):
    model, _, run = bound(strategy)
    model.grads[1] = np.nan
    model.tail[[WEIGHT, LOSS]] = 2, np.nan
    outcome = run.step(0, 1.0)
    assert math.isnan(outcome.loss)
    assert np.isnan(model.params[1])


def test_state_goes_into_a_checkpoint_and_back(strategy):
    model, _, run = bound(strategy)
    for step in range(3):
        model.grads[:] = step
        model.tail[WEIGHT] = 1
        run.step(step, 0.1)
    state = {name: values.copy() for name, values in run.state_dict().items()}
    np.testing.assert_array_equal(state["count"], [3, 3, 3])
    np.testing.assert_array_equal(state["last"], [2, 2, 2])
    _, _, fresh = bound(strategy)
    fresh.load_state_dict(state)
    for name, values in fresh.state_dict().items():
        np.testing.assert_array_equal(values, state[name])
    state["count"][:] = 0  # loading copies
    np.testing.assert_array_equal(fresh.state_dict()["count"], [3, 3, 3])


@pytest.mark.parametrize(
    "state",
    [{}, {"count": np.zeros(3, np.float32)}, {"count": np.zeros(3, np.float32), "last": np.zeros(4, np.float32)}],
    ids=["nothing", "a slot missing", "another length"],
)
def test_state_of_another_job_is_refused(strategy, state):
    _, _, run = bound(strategy)
    with pytest.raises(UserError, match="does not fit") as caught:
        run.load_state_dict(state)
    assert "count (3 numbers), last (3 numbers)" in caught.value.message


def test_warm_up_changes_nothing(strategy):
    model, optimizer, run = bound(strategy, Clip())
    run.warm_up()
    assert optimizer.warm == 1
    assert optimizer.calls == []
    np.testing.assert_array_equal(model.params, [1, 2, 3])
    run.close()


def test_the_job_file_names_it():
    strategy = part_from(STRATEGIES, {"name": "all_reduce", "collective": "native"}, "strategy")
    assert strategy == AllReduce(collective="native")
    assert spec_of(STRATEGIES, strategy) == {
        "name": "all_reduce",
        "collective": "native",
        "overlap": "auto",
        "bucket": "auto",
    }
    assert part_from(STRATEGIES, "all_reduce", "strategy").collective == "auto"


def test_a_resumed_run_goes_on_with_what_was_chosen():
    chosen = {"collective": "ring", "chunk_bytes": 4096, "ranks": "4 x 1"}
    before = part_from(STRATEGIES, {"name": "all_reduce", "chosen": chosen}, "strategy")
    now = AllReduce(bucket="2 MB")
    assert now.goes_on_from(before) == AllReduce(bucket="2 MB", chosen=before.chosen)
    other = AllReduce(chosen=Choice(collective="tree", ranks="2 x 1"))
    assert other.goes_on_from(before) == other


def test_a_misspelled_collective_is_refused():
    with pytest.raises(UserError) as caught:
        part_from(STRATEGIES, {"name": "all_reduce", "collective": "rng"}, "strategy")
    for words in ("strategy.collective", "'rng'", "native, ring", "did you mean 'ring'?"):
        assert words in caught.value.message


def test_compression_can_be_taken_away():
    assert AllReduce(compression="int8").compression is not None
    for nothing in ("none", False, None):
        assert AllReduce(compression=nothing).compression is None


@pytest.mark.parametrize("chosen", [{"collective": "foo"}, {"collective": "ring", "chunk_bytes": -5}, {"bucket": -3}])
def test_what_was_chosen_is_checked(chosen):
    with pytest.raises(pydantic.ValidationError):
        AllReduce(chosen={"collective": "ring", "ranks": "1 x 2", **chosen})


@pytest.mark.parametrize("overlap", ["maybe", 1, "true"])
def test_overlap_is_yes_no_or_auto(overlap):
    with pytest.raises(UserError) as caught:
        part_from(STRATEGIES, {"name": "all_reduce", "overlap": overlap}, "strategy")
    assert caught.value.message == f'strategy.overlap = {overlap!r}: must be true, false or "auto"'


@pytest.mark.parametrize("ratio", [0.5, 1])
def test_what_is_sent_with_its_places_is_less_than_half(ratio):
    with pytest.raises(UserError, match=r"compression.ratio = .*: must be less than 0.5"):
        AllReduce(compression={"type": "top_k", "ratio": ratio})
