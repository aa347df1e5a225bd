"""Every registered optimizer: a slice cut anywhere gives the bits of the whole, padding stays, nothing is allocated.

A newly registered optimizer is tested with its default options; `OPTIONS` adds further ones worth testing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

from hpctrain.nn.flat import Slot
from hpctrain.optim import OPTIMIZERS
from hpctrain.optim.adaptive import Adagrad
from hpctrain.optim.base import Optimizer
from hpctrain.optim.table import UpdateTable
from hpctrain.options import part_from, spec_of

OPTIONS: dict[str, list[dict]] = {
    "sgd": [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"weight_decay": 0.01},
    ],
    "adagrad": [{"weight_decay": 0.01}],
    "adam": [{"weight_decay": 0.01, "beta1": 0.0}],
    "adamw": [{"weight_decay": 0.1, "beta2": 0.95}],
    "lars": [{"trust": 0.1, "momentum": 0.0, "decay_all": True}],
    "lion": [{"weight_decay": 0.1, "lr": 0.01}],
    "rmsprop": [{"momentum": 0.9, "weight_decay": 0.01, "rho": 0.9}],
}
CASES = [(name, options) for name in OPTIMIZERS for options in [{}, *OPTIONS.get(name, [])]]
IDS = [f"{name}-{'-'.join(options) or 'default'}" for name, options in CASES]
every_optimizer = pytest.mark.parametrize(
    "optimizer", [OPTIMIZERS.get(name)(**options) for name, options in CASES], ids=IDS
)

SIZE = 4099
# Tensors of odd sizes with padding between them, as a flat buffer has; the last range has no padding behind it.
BOUNDS = [(0, 5), (16, 17), (32, 1000), (1008, 1011), (1024, 4000), (4001, SIZE)]


def table() -> UpdateTable:
    starts, stops = np.array(BOUNDS).T.copy()
    factors = np.array([1, 0.5, 1, 0, 2, 1], np.float32)
    return UpdateTable(starts, stops, factors, np.array([1, 0, 1, 1, 0.25, 1], np.float32))


def fresh(optimizer: Optimizer, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray], dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    params = random.normal(0, 1, SIZE).astype(np.float32)
    grads = [random.normal(0, 30, SIZE).astype(np.float32) for _ in range(5)]
    return params, grads, {name: np.zeros(SIZE, np.float32) for name in optimizer.slots}


@every_optimizer
@pytest.mark.parametrize("seed", range(4))
def test_slices_give_the_bits_of_the_whole(optimizer: Optimizer, seed: int) -> None:
    params, grads, slots = fresh(optimizer)
    whole = params.copy()
    whole_slots = {name: values.copy() for name, values in slots.items()}
    cuts = np.sort(np.random.default_rng(seed).integers(0, SIZE + 1, 12))
    bounds = [0, *cuts, SIZE]
    for step, grad in enumerate(grads):
        norms = optimizer.norms(whole, grad, whole_slots, table(), 0.01, step, 0.03)
        optimizer.update(whole, grad, whole_slots, table(), 0.01, step, 0.03)
        parts = []
        for lo, hi in zip(bounds, bounds[1:], strict=False):
            part = {name: values[lo:hi] for name, values in slots.items()}
            parts.append((params[lo:hi], grad[lo:hi], part, table().slice(lo, hi), 0.01, step, 0.03))
        if norms is not None:  # those of the slices add up to the whole's
            np.testing.assert_allclose(sum(optimizer.norms(*part) for part in parts), norms, rtol=1e-12)
        for part in parts:
            optimizer.update(*part, norms)
    assert params.tobytes() == whole.tobytes()
    for name in optimizer.slots:
        assert slots[name].tobytes() == whole_slots[name].tobytes()
        assert slots[name].any()


@every_optimizer
def test_only_what_the_table_names_changes(optimizer: Optimizer) -> None:
    params, grads, slots = fresh(optimizer)
    before = params.copy()
    for step, grad in enumerate(grads):
        kept = grad.copy()
        optimizer.update(params, grad, slots, table(), 0.01, step, 0.03)
        np.testing.assert_array_equal(grad, kept)
    padding = np.ones(SIZE, bool)
    for lo, hi in BOUNDS:
        padding[lo:hi] = False
    np.testing.assert_array_equal(params[padding], before[padding])
    for values in slots.values():
        assert not values[padding].any()
    frozen = slice(1008, 1011)  # its factor of the learning rate is 0
    np.testing.assert_array_equal(params[frozen], before[frozen])
    changed = ~padding
    changed[frozen] = False
    assert (params[changed] != before[changed]).mean() > 0.99


@every_optimizer
def test_scale_multiplies_the_gradients(optimizer: Optimizer) -> None:
    params, grads, slots = fresh(optimizer)
    other, _, other_slots = fresh(optimizer)
    for step, grad in enumerate(grads):
        optimizer.update(params, grad, slots, table(), 0.01, step, 0.125)
        optimizer.update(other, grad * np.float32(0.125), other_slots, table(), 0.01, step, 1.0)
    assert params.tobytes() == other.tobytes()


@every_optimizer
def test_nothing_is_allocated(optimizer: Optimizer) -> None:
    params, grads, slots = fresh(optimizer)
    ranges = table()
    optimizer.update(params, grads[0], slots, ranges, 0.01, 0, 0.03)
    _nrt_python.memsys_enable_stats()
    before = rtsys.get_allocation_stats().alloc
    tracemalloc.start()
    try:
        optimizer.update(params, grads[1], slots, ranges, 0.01, 1, 0.03)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < SIZE  # bytes: a quarter of one buffer; numbers and call frames take some
    # Numba makes a header for each array that comes in (and none for their slices): nothing beyond those.
    arrays = 2 + len(slots) + 4
    if optimizer.norms_kernel is not None:
        arrays = 2 * (arrays + 2)
    assert rtsys.get_allocation_stats().alloc - before == arrays


@every_optimizer
def test_finds_the_bottom_of_a_bowl(optimizer: Optimizer) -> None:
    params, _, slots = fresh(optimizer)
    everything = UpdateTable(np.zeros(1, int), np.full(1, SIZE), np.ones(1, np.float32), np.zeros(1, np.float32))
    start = np.square(params).mean()
    rate = 0.5 if isinstance(optimizer, Adagrad) else 0.05  # its steps shrink by themselves
    for step in range(100):
        optimizer.update(params, params.copy(), slots, everything, rate, step, 1.0)
    assert np.square(params).mean() < 0.05 * start


@every_optimizer
def test_the_fused_call_is_the_update(optimizer: Optimizer) -> None:
    """A generated step calls the kernel by the names of its arguments, with scalars made beforehand."""
    params, grads, slots = fresh(optimizer)
    other, _, other_slots = fresh(optimizer)
    ranges, call = table(), optimizer.fused_call()
    for step, grad in enumerate(grads[:2]):
        optimizer.update(params, grad, slots, ranges, 0.01, step, 0.03)
        scalars = optimizer.scalars(0.01, step, 0.03)
        assert {type(number) for number in scalars} == {np.float32}
        values = {"params": other, "grads": grad, **other_slots, **vars(ranges), "norms": np.empty((len(BOUNDS), 2))}
        values.update(zip(optimizer.scalar_names, scalars, strict=True))
        arguments = [values[name] for name in call.args]
        if call.norms is not None:
            call.norms(*arguments)
        call.kernel(*arguments)
    assert params.tobytes() == other.tobytes()
    for name in optimizer.slots:
        assert slots[name].tobytes() == other_slots[name].tobytes()


@every_optimizer
def test_what_is_frozen_stays_whatever_its_gradient(optimizer: Optimizer) -> None:
    params, grads, slots = fresh(optimizer)
    before = params.copy()
    ranges = [Slot("", lo, (hi - lo,)) for lo, hi in BOUNDS]
    frozen = UpdateTable.from_slots(ranges, trained=[True, True, False, True, True, True])
    grads[0][32:1000] = np.nan
    optimizer.update(params, grads[0], slots, frozen, 0.01, 0, 0.03)
    np.testing.assert_array_equal(params[32:1000], before[32:1000])
    assert not any(values[32:1000].any() for values in slots.values())
    assert np.isfinite(params).all()
    assert (params[1024:4000] != before[1024:4000]).mean() > 0.99


@every_optimizer
def test_nan_reaches_the_weights(optimizer: Optimizer) -> None:
    params, grads, slots = fresh(optimizer)
    grads[0][40] = np.nan
    optimizer.update(params, grads[0], slots, table(), 0.01, 0, 1.0)
    # Where norms of tensors matter, the whole tensor is broken, and no other.
    expected = [40] if optimizer.norms_kernel is None else list(range(32, 1000))
    assert np.flatnonzero(np.isnan(params)).tolist() == expected


@every_optimizer
def test_job_file(optimizer: Optimizer) -> None:
    assert part_from(OPTIMIZERS, spec_of(OPTIMIZERS, optimizer), "optimizer") == optimizer


WARM_UP = """
import json, sys
import numba.core.dispatcher, numpy as np
from hpctrain.optim import OPTIMIZERS
from hpctrain.optim.averaging import WeightAverage
from hpctrain.optim.clipping import Clip
from hpctrain.optim.table import UpdateTable
compiled = []
add = numba.core.dispatcher.Dispatcher.add_overload
numba.core.dispatcher.Dispatcher.add_overload = lambda self, result: (compiled.append(self.__name__), add(self, result))
late = []
for name, options in json.loads(sys.argv[1]):
    optimizer = OPTIMIZERS.get(name)(**options)
    optimizer.warm_up()
    compiled.clear()
    buffer = np.zeros(64 * 4, np.uint8).view(np.float32)
    table = UpdateTable.from_slots([]).slice(0, 10)
    optimizer.update(buffer[3:60], buffer[3:60], {slot: buffer[3:60] for slot in optimizer.slots}, table, 0.1, 7, 0.5)
    late += compiled
for clip in (Clip(norm=1.0), Clip(value=1.0), Clip(value=1.0, norm=1.0)):
    clip.warm_up()
    compiled.clear()
    clip.factor(buffer[3:60], 0.5, table)
    late += compiled
average = WeightAverage(buffer[3:60], buffer[73:130], 0.9)
average.warm_up()
compiled.clear()
average.add(3)
average.swap()
print(json.dumps(late + compiled))
"""


def test_warm_up_leaves_nothing_to_compile() -> None:
    command = [sys.executable, "-c", WARM_UP, json.dumps(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
