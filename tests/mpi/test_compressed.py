"""Compressed sums on several ranks: what arrives, the same bits everywhere, and residuals that are never lost."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from hpctrain import Job, train
from hpctrain.comm import join
from hpctrain.comm.collectives.choice import collective_for
from hpctrain.comm.mpi_group import MpiGroup
from hpctrain.compress import COMPRESSIONS
from hpctrain.nn.flat import TAIL, WEIGHT, Layout
from hpctrain.strategies.all_reduce import AllReduce
from hpctrain.strategies.reducers.compressed import RESIDUAL, Compressed

pytestmark = pytest.mark.mpi(min_size=1)

SEED = 7
LAYOUT = Layout([("a", (37, 41)), ("bias", (41,)), ("b", (5, 7, 100)), ("small", (2, 3)), ("c", (64, 32))])
STATISTICS = 19  # running statistics behind the gradients
ENCODED = ("a", "b", "c")
every_kind = pytest.mark.parametrize("kind", list(COMPRESSIONS))


class Model:
    """Flat buffers as a network has them."""

    def __init__(self, layout=LAYOUT, allocate=None):
        length = layout.size + STATISTICS + TAIL
        self.layout, self.seed = layout, np.uint64(SEED)
        self.params = np.zeros(layout.size, np.float32)
        self.grad_buffer = allocate(length) if allocate else np.zeros(length, np.float32)
        self.grads, self.tail = self.grad_buffer[: layout.size], self.grad_buffer[-TAIL:]
        self.ready_offsets = tuple(slot.offset for slot in reversed(layout.slots))


def mine(rank, step, length):
    return np.random.default_rng([rank, step]).standard_normal(length).astype(np.float32)


def encoded(layout=LAYOUT):
    inside = np.zeros(layout.size + STATISTICS + TAIL, bool)
    for name in ENCODED:
        inside[layout[name].offset : layout[name].stop] = True
    return inside


def weight_of(rank, step):
    return (rank + 1) * (1 + step % 3)


def fill(model, group, step):
    """Put this rank's gradients in; return the sums over all ranks, from all ranks' numbers in float64."""
    length, total = len(model.grad_buffer), np.zeros(len(model.grad_buffer))
    for rank in range(group.size):
        values = mine(rank, step, length)
        values[-TAIL + WEIGHT] = weight_of(rank, step)
        total += values
        if rank == group.rank:
            model.grad_buffer[:] = values
    return total


def reducer_of(group, model, compression, cuts=None):
    group = group.apart() if cuts is not None else group
    return Compressed(*collective_for("auto", group, model.grad_buffer), model, compression, cuts)


def same_everywhere(group, array):
    return len(set(group.all_gather_objects(array.tobytes()))) == 1


CUTS = (LAYOUT["c"].offset, LAYOUT["b"].offset)


@pytest.mark.parametrize(
    ("kind", "cuts"),
    [*((kind, CUTS) for kind in COMPRESSIONS), ("int8", None), ("power_sgd", None)],
    ids=lambda value: value if isinstance(value, str) else "buckets" if value else "whole",
)
def test_what_arrives_and_what_is_kept_are_what_was_sent(kind, cuts):
    group = join()
    model = Model(allocate=lambda count: AllReduce().allocate_gradients(group, count))
    compression = COMPRESSIONS.get(kind)(error_feedback=True, warm_up_steps=2)
    reducer = reducer_of(group, model, compression, cuts)
    inside = encoded()
    sent, arrived = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    for step in range(7):
        total = fill(model, group, step)
        weight = sum(weight_of(rank, step) for rank in range(group.size))
        for lo in cuts or ():
            if group.rank or step % 2:  # one rank has no rows in every other step
                reducer.ready(lo, step)
        reducer.reduce(step)
        assert same_everywhere(group, model.grad_buffer)
        exact = ~inside if step >= 2 else np.ones_like(inside)
        np.testing.assert_allclose(model.grad_buffer[exact], total[exact], rtol=1e-5, atol=1e-5)
        # Means: batches differ in weight.
        sent += total[: LAYOUT.size] / weight
        arrived += model.grads.astype(np.float64) / weight
        if step == 4:
            reducer.settle()
    reducer.settle()
    kept = reducer.state_dict()[RESIDUAL]
    assert same_everywhere(group, kept)
    np.testing.assert_allclose((arrived + kept)[inside[: LAYOUT.size]], sent[inside[: LAYOUT.size]], atol=2e-5)
    assert not kept[~inside[: LAYOUT.size]].any()
    reducer.close()


@every_kind
def test_going_on_from_a_checkpoint_has_the_bits_of_going_on(kind):
    group, first, second = join(), Model(), Model()
    compression = COMPRESSIONS.get(kind)(error_feedback=True, warm_up_steps=0)
    before = reducer_of(group, first, compression)
    for step in range(3):
        fill(first, group, step)
        before.reduce(step)
    before.settle()
    after = reducer_of(group, second, compression)
    kept = {name: values.copy() for name, values in before.state_dict().items()}
    assert kept.keys() == after.state_dict().keys()
    for name, values in after.state_dict().items():
        values[:] = kept[name]
    after.restored()
    after.load_records({name: values.copy() for name, values in before.records().items()})
    for step in range(3, 5):
        for model, reducer in ((first, before), (second, after)):
            fill(model, group, step)
            reducer.reduce(step)
        assert first.grad_buffer.tobytes() == second.grad_buffer.tobytes()


@every_kind
def test_a_checkpoint_of_another_world_size_keeps_the_sum(kind):
    group, model = join(), Model()
    compression = COMPRESSIONS.get(kind)(error_feedback=True, warm_up_steps=0)
    reducer = reducer_of(group, model, compression)
    told = mine(99, 0, LAYOUT.size) * encoded()[: LAYOUT.size]  # by any number of ranks, in units of the mean
    reducer.state_dict()[RESIDUAL][:] = told
    reducer.restored()
    model.grad_buffer[:] = 0
    model.tail[WEIGHT] = 2
    reducer.reduce(0)
    arrived = model.grads / np.float32(2 * group.size)
    reducer.settle()
    np.testing.assert_allclose(arrived + reducer.state_dict()[RESIDUAL], told, atol=1e-5)


@every_kind
def test_a_step_without_weight_keeps_the_residual(kind):
    group, model = join(), Model()
    reducer = reducer_of(group, model, COMPRESSIONS.get(kind)(error_feedback=True, warm_up_steps=0))
    fill(model, group, 0)
    reducer.reduce(0)
    before = reducer.state_dict()[RESIDUAL].copy()
    model.grad_buffer[:] = 0
    reducer.reduce(1)
    np.testing.assert_array_equal(reducer.state_dict()[RESIDUAL], before)
    assert not model.tail.any()


@every_kind
def test_nan_and_infinity_reach_everybody(kind):
    group = join()
    for broken, feedback in ((np.nan, True), (np.inf, False)):
        model = Model()
        reducer = reducer_of(group, model, COMPRESSIONS.get(kind)(error_feedback=feedback, warm_up_steps=0))
        fill(model, group, 0)
        if group.rank == group.size - 1:
            model.grads[LAYOUT["b"].offset + 1000] = broken
        reducer.reduce(0)
        assert not np.isfinite(model.grads).all()


@every_kind
def test_few_numbers_and_none(kind):
    """Fewer numbers than ranks; tensors that are all sent as they are; no tensors."""
    group = join()
    for layout in (Layout([("w", (1, 1))]), Layout([("w", (1, 3)), ("v", (2, 1))]), Layout([("b", (30,))]), Layout([])):
        model = Model(layout)
        reducer = reducer_of(group, model, COMPRESSIONS.get(kind)(min_size=1, error_feedback=True, warm_up_steps=0))
        sent, arrived = np.zeros(layout.size), np.zeros(layout.size)
        for step in range(3):
            total = fill(model, group, step)
            weight = sum(weight_of(rank, step) for rank in range(group.size))
            reducer.reduce(step)
            assert same_everywhere(group, model.grad_buffer)
            padded = np.ones(len(total), bool)
            for slot in layout:
                padded[slot.offset : slot.stop] = False
            np.testing.assert_allclose(model.tail, total[-TAIL:], rtol=1e-5, atol=1e-5)
            sent += np.where(padded, 0, total)[: layout.size] / weight
            arrived += np.where(padded[: layout.size], 0, model.grads.astype(np.float64)) / weight
        reducer.settle()
        np.testing.assert_allclose(arrived + reducer.state_dict()[RESIDUAL], sent, atol=1e-5)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("kind", ["int8", "top_k"])
def test_nodes_sum_first(kind):
    """Nodes of two ranks (the last of five would make them uneven: then every rank encodes)."""
    from mpi4py import MPI

    world = join()
    group = MpiGroup(MPI.COMM_WORLD, ranks_a_node=2)
    assert group.nodes == (world.size + 1) // 2
    model = Model(allocate=lambda count: AllReduce().allocate_gradients(group, count))
    reducer = reducer_of(group, model, COMPRESSIONS.get(kind)(warm_up_steps=0))
    inside, sent, arrived = encoded()[: LAYOUT.size], np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    for step in range(6):
        total = fill(model, group, step)
        weight = sum(weight_of(rank, step) for rank in range(group.size))
        reducer.reduce(step)
        assert same_everywhere(group, model.grad_buffer)
        np.testing.assert_allclose(model.tail, total[-TAIL:], rtol=1e-5, atol=1e-5)
        sent += total[: LAYOUT.size] / weight
        arrived += model.grads.astype(np.float64) / weight
        if step in (2, 3):
            reducer.settle()
    reducer.settle()
    np.testing.assert_allclose((arrived + reducer.state_dict()[RESIDUAL])[inside], sent[inside], atol=2e-5)


@pytest.mark.mpi(min_size=2)
def test_a_run_goes_on_with_the_bits_of_one_that_was_never_stopped(tmp_path_factory):
    group, told = join(), None
    if group.rank == 0:
        told = tmp_path_factory.mktemp("runs")
    folder = group.broadcast_object(told)
    every = ["run.steps=16", "run.checkpoint_every=8 steps", "run.progress=none", "model.layers.1.units=32"]
    job = Job.builtin(["strategy.compression=int4", "strategy.overlap=true", "strategy.bucket=8 kB", *every])
    whole = train(job, run_dir=folder / "whole").model.sha256
    if group.rank == 0:
        shutil.copytree(folder / "whole", folder / "cut")
        for name in ("summary.json", "model.h5", "checkpoints/step-00000016.h5"):
            (folder / "cut" / name).unlink()
    group.barrier()
    result = train(job, run_dir=folder / "cut", resume=True)
    assert result.model.sha256 == whole
    assert group.broadcast_object(result.summary)["resumed_from_step"] == 8
