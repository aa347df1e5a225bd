"""`Evaluator`: loss and metrics of a model on one part of the data, exact over all ranks.

Rows are judged in blocks (see `blocks`): each rank the rows it holds, or blocks that are the same at every world size.
What metrics keep are sums, moments or counts; the blocks' are merged in order and only then turned into values: never
the mean of the ranks' values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpctrain.batch import Batch
from hpctrain.comm.group import Group
from hpctrain.data.prepare.chain import Chain
from hpctrain.data.shard import Shard
from hpctrain.monitor.base import EvaluationReport
from hpctrain.nn.metrics import MeanPredictor, Metric
from hpctrain.nn.model import Model
from hpctrain.training.blocks import EqualBlocks, OwnBlocks

ROWS = 256  # rows of one forward pass at most ...
WORKSPACE_BYTES = 16 << 20  # ... and fewer where they need more workspace than this: evaluating must not need more than
LEAST_ROWS = 16  # training with small batches does.  A function of the network alone, the same at every world size.


def rows_a_pass(row_floats: int) -> int:
    """Return the most rows of a forward pass of a network whose workspace has so many floats for each."""
    return min(ROWS, max(LEAST_ROWS, WORKSPACE_BYTES // (4 * max(1, row_floats))))


class Evaluator:
    """Evaluates one model; buffers are made once.

    metrics  names -> `Metric` objects
    targets  what was done to real targets: the loss is that of prepared ones, metrics judge in the targets' own units
    in_order  results have the same bits at every world size; rows are sent for that
    """

    def __init__(
        self,
        group: Group,
        model: Model,
        metrics: dict[str, Metric],
        targets: Chain | None = None,
        in_order: bool = False,
    ) -> None:
        self._group = group
        self._model = model
        self._metrics = metrics
        self._targets = targets
        self._rows = rows_a_pass(model.plan.row_floats)
        self._blocks = (EqualBlocks if in_order else OwnBlocks)(group, self._rows)
        self._outputs = np.zeros((self._rows, *model.out_shape), np.float32)
        self._scratch = np.zeros(self._outputs.size, np.float32)

    def run(self, shard: Shard, part: str, epoch: int = 0, step: int = 0) -> EvaluationReport:
        """Evaluate a part of the data; every rank calls it with its shard.  The metrics begin with "loss"."""
        started = time.perf_counter()

        def judge(states: list[Any], batch: Batch) -> None:
            outputs = self._outputs[: batch.rows]
            self._model.predict(batch.inputs, outputs)
            self._add_outputs(states, outputs, batch.targets, batch.weight)

        sums, values = self._judge(shard, judge)
        seconds = time.perf_counter() - started
        return EvaluationReport(part, epoch, step, int(sums[2]), seconds, values)

    def mean_predictor(self, train: Shard, shard: Shard) -> dict[str, Any]:
        """Return the metrics on `shard` of a predictor that always says the mean of the training targets.  Collective.

        For real targets: what any network must beat.  Each target number has a mean of its own over the examples, or,
        where positions have weights, over examples and positions; the mean is that of targets in their own units.
        """
        predictor = MeanPredictor()
        positions = train.format.positions
        width = train.format.target_width // positions
        kept = []
        for number, batches in self._blocks.of(train):
            state = np.zeros(predictor.size(width))
            for batch in batches:
                weight = batch.weight.reshape(-1)
                predictor.update(state, self._own_units(batch.targets, len(weight)), weight)
            kept.append((number, state))
        total, *others = self._in_order(kept)
        for other in others:
            predictor.merge(total, other)
        means = np.zeros((self._rows * positions, width), np.float64 if self._targets else np.float32)
        predictor.fill(total, means)
        if self._targets:
            prepared = np.empty(means.shape, np.float32)
            self._targets.apply(means.reshape(self._rows, -1), prepared.reshape(self._rows, -1))
            means = prepared
        outputs = self._model.loss.outputs_saying(means).astype(np.float32).reshape(self._rows, -1)

        def judge(states: list[Any], batch: Batch) -> None:
            self._add_outputs(states, outputs[: batch.rows], batch.targets, batch.weight)

        return self._judge(shard, judge)[1]

    def warm_up(self) -> None:
        """Run every kernel of an evaluation on one dummy row."""
        model = self._model
        targets, weight = model.loss.dummy_rows(model.target_kind, model.out_shape)
        model.predict(np.zeros((1, *model.input_shape), np.float32), self._outputs[:1])
        self._add_outputs(self._empty_states(1, len(weight)), self._outputs[:1], targets, weight)

    def _empty_states(self, examples: int, positions: int) -> list[Any]:
        """Return the states: the sums of losses, their weights and examples, then one for each metric."""
        model = self._model
        width = model.loss.judged_width(model.target_kind, model.out_shape, positions)
        return [np.zeros(3), *(metric.start(width, examples * positions) for metric in self._metrics.values())]

    def _add_outputs(self, states: list[Any], outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Add examples to the states; what has a weight of its own is a row."""
        loss, kind, examples = self._model.loss, self._model.target_kind, len(outputs)
        weight = weight.reshape(-1)
        rows = len(weight)
        outputs = outputs.reshape(rows, outputs.size // max(rows, 1))
        targets = targets.reshape(-1) if kind == "class" else targets.reshape(rows, targets.size // max(rows, 1))
        weighed = loss.weigh(targets, weight)
        scratch = self._scratch[: outputs.size].reshape(outputs.shape)
        loss_sum = loss.kernel_for(kind)(outputs, targets, weighed, scratch, *loss.constants())
        states[0] += (loss_sum, weighed.sum(dtype="f8"), examples)
        judged = loss.predictions(outputs, kind)
        if self._targets:
            judged = self._own_units(judged.reshape(examples, -1), rows)
            targets = self._own_units(targets.reshape(examples, -1), rows)
        for metric, state in zip(self._metrics.values(), states[1:], strict=True):
            metric.update(state, judged, targets, weight)

    def _own_units(self, values: np.ndarray, rows: int) -> np.ndarray:
        """Return real targets or predictions (examples, numbers) as so many rows; where prepared, turned back."""
        values = self._targets.invert(values) if self._targets else values
        return values.reshape(rows, values.size // max(rows, 1))

    def _in_order(self, kept: list[tuple[int, Any]]) -> list[Any]:
        """Return what all ranks kept of their blocks, in the order of the blocks' numbers.  Collective."""
        gathered = [entry for entries in self._group.all_gather_objects(kept) for entry in entries]
        return [state for _, state in sorted(gathered, key=lambda entry: entry[0])]

    def _judge(self, shard: Shard, judge: Callable[[list[Any], Batch], None]) -> tuple[np.ndarray, dict[str, Any]]:
        """Go through a part, and merge the blocks' states in order; return the sums of the loss, and the values."""
        kept = []
        for number, batches in self._blocks.of(shard):
            states = self._empty_states(shard.total, shard.format.positions)
            for batch in batches:
                judge(states, batch)
            kept.append((number, states))
        merged, *others = self._in_order(kept)
        for other in others:
            merged[0] += other[0]
            for metric, into, state in zip(self._metrics.values(), merged[1:], other[1:], strict=True):
                metric.merge(into, state)
        loss_sum, weight_sum, _ = merged[0]
        values: dict[str, Any] = {"loss": float(loss_sum / weight_sum) if weight_sum else float("nan")}
        for (name, metric), state in zip(self._metrics.items(), merged[1:], strict=True):
            values[name] = metric.result(state)
        return merged[0], values
