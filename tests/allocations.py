"""Counts what the steps of a training allocate, with the real trainer, loader, strategy and model."""

from __future__ import annotations

import functools
import gc
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.core.runtime import _nrt_python, rtsys

from hpctrain.comm.group import Group
from hpctrain.data.format import RowFormat
from hpctrain.data.loader import BatchLoader
from hpctrain.data.shard import MemoryShard, Shard
from hpctrain.data.sharding import row_range
from hpctrain.monitor.base import Monitor
from hpctrain.nn import LAYERS
from hpctrain.nn.losses import SoftmaxCrossEntropy
from hpctrain.nn.model import Model
from hpctrain.optim.adam import Adam
from hpctrain.optim.clipping import Clip
from hpctrain.optim.groups import update_table
from hpctrain.options import part_from
from hpctrain.strategies.all_reduce import AllReduce
from hpctrain.training.stop import StopSignal
from hpctrain.training.trainer import Trainer

WARM, COUNTED = 12, 50


class Counter(Monitor):
    """From step `WARM` on notes the most bytes that each step had beyond those before, and numba's allocations."""

    collective = True

    def __init__(self) -> None:
        self.steps: list[int] = []  # bytes at a step's peak beyond its beginning
        self.numba = 0  # arrays that kernels made, in all
        self.kept = 0  # bytes that are there after the last step and were not before the first
        self._step = self._before = self._first = self._start = 0

    def on_step(self, report: Any) -> None:
        """Read the counters between two steps."""
        self._step += 1
        if self._step == WARM:
            gc.collect()
            tracemalloc.start()
            _nrt_python.memsys_enable_stats()
            self._start = rtsys.get_allocation_stats().mi_alloc
            self._first = tracemalloc.get_traced_memory()[0]
        elif WARM < self._step <= WARM + COUNTED:
            now, peak = tracemalloc.get_traced_memory()
            self.steps.append(peak - self._before)
            self.kept = now - self._first
            self.numba = rtsys.get_allocation_stats().mi_alloc - self._start
            if self._step == WARM + COUNTED:
                _nrt_python.memsys_disable_stats()
                tracemalloc.stop()
                return
        if self._step >= WARM:
            tracemalloc.reset_peak()
            self._before = tracemalloc.get_traced_memory()[0]


def count_allocations(
    group: Group,
    layers: Sequence[Any],
    input_shape: tuple[int, ...],
    rows: int,
    shuffle: str,
    collective: str,
    shard: Shard | None = None,
    **options: Any,
) -> Counter:
    """Train for `WARM + COUNTED` steps and more, and return what was counted; `options` are those of the trainer.

    shard  where the rows come from; default: memory
    """
    form = RowFormat(input_shape, "class")
    batches = 8  # an epoch: several of them are counted, and several windows of two steps
    lo, hi = row_range(batches * rows, group.rank, group.size)
    starts = np.array([row_range(batches * rows, rank, group.size)[0] for rank in range(group.size)] + [batches * rows])
    if shard is None:
        random = np.random.default_rng(group.rank)
        inputs = random.normal(size=(hi - lo, *input_shape)).astype(np.float32)
        shard = MemoryShard(form, inputs, random.integers(0, 3, hi - lo), starts, lo)
    combine = AllReduce(collective=collective)
    gradients = functools.partial(combine.allocate_gradients, group)
    model = Model(layers, input_shape, SoftmaxCrossEntropy(), "class", allocate_gradients=gradients)
    model.table = update_table(model.layout, dict.fromkeys((slot.name for slot in model.layout), True), (), False)
    model.initialize()
    optimizer = Adam(lr=0.001, ema=0.99)
    strategy = combine.bind(group, model, optimizer, Clip(value=1.0, norm=1.0))
    window = 2 * rows * (form.row_bytes + 32)
    unit = options.get("micro_batch", 1) if len(model.state_layout) else 1
    loader = BatchLoader(group, shard, rows, 0, shuffle, window_bytes=window, unit=unit, buffer_bytes=8 * window)
    for part in (model, strategy, loader):
        part.warm_up()
    counter = Counter()
    trainer = Trainer(
        group=group,
        model=model,
        strategy=strategy,
        loader=loader,
        learning_rate=lambda step: 0.001,
        total_steps=WARM + COUNTED + 2,
        save=lambda progress, totals: None,
        stop=StopSignal(),
        monitors=[counter],
        **options,
    )
    trainer.run()
    return counter


def layers(*specs: Any) -> list[Any]:
    """Return layers from what a job file would say."""
    return [part_from(LAYERS, spec, "layers", "type") for spec in specs]


DENSE = ({"type": "dense", "units": 32}, "relu")
MLP = layers(*DENSE, {"type": "dropout", "rate": 0.1}, {"type": "dense", "units": 3})
CNN = layers(
    {"type": "conv2d", "channels": 8, "kernel": 3},
    *("batch_norm", "relu", {"type": "max_pool2d", "size": 2}, {"type": "dropout", "rate": 0.1}, "flatten"),
    {"type": "dense", "units": 3},
)
