"""`Evaluator`: loss and metrics of a model on one part of the data, exact over all ranks.

Each rank evaluates the rows it holds.  What metrics keep are float64 sums (or moments); the ranks' are merged in rank
order and only then turned into values: never the mean of the ranks' values.
"""

from __future__ import annotations

import time

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.data.shard import Shard
from hpctrain.monitor.base import EvaluationReport
from hpctrain.nn.metrics import MeanPredictor, Metric
from hpctrain.nn.model import Model

ROWS = 256  # rows of one forward pass


class Evaluator:
    """Evaluates one model; buffers are made once.  `metrics` maps names to `Metric` objects."""

    def __init__(self, group: Group, model: Model, metrics: dict[str, Metric]) -> None:
        self._group = group
        self._model = model
        self._metrics = metrics
        self._width = model.out_shape[-1]
        self._outputs = np.zeros((ROWS, self._width), np.float32)
        self._scratch = np.zeros_like(self._outputs)
        self._sizes = [metric.size(self._width) for metric in metrics.values()]

    def run(self, shard: Shard, part: str, epoch: int = 0, step: int = 0) -> EvaluationReport:
        """Evaluate a part of the data; every rank calls it with its shard.  The metrics begin with "loss"."""
        started = time.perf_counter()
        states = self._empty_states()
        for batch in shard.batches(ROWS):
            outputs = self._outputs[: batch.rows]
            self._model.predict(batch.inputs, outputs)
            self._add_outputs(states, outputs, batch.targets, batch.weight)
        merged = self._merged(states)
        seconds = time.perf_counter() - started
        return EvaluationReport(part, epoch, step, int(merged[0][2]), seconds, self._values(merged))

    def mean_predictor(self, train: Shard, shard: Shard) -> dict[str, float]:
        """Return the metrics on `shard` of a predictor that always says the mean of the training targets.  Collective.

        For real targets: what any network must beat.
        """
        predictor = MeanPredictor()
        state = np.zeros(predictor.size(self._width))
        for batch in train.batches(ROWS):
            predictor.update(state, batch.targets, batch.weight)
        gathered = self._group.all_gather_objects(state)
        for other in gathered[1:]:
            predictor.merge(gathered[0], other)
        outputs = np.zeros_like(self._outputs)
        predictor.fill(gathered[0], outputs)
        states = self._empty_states()
        for batch in shard.batches(ROWS):
            self._add_outputs(states, outputs[: batch.rows], batch.targets, batch.weight)
        return self._values(self._merged(states))

    def warm_up(self) -> None:
        """Run every kernel of an evaluation on one dummy row."""
        is_class = self._model.target_kind == "class"
        targets = np.zeros(1, np.int64) if is_class else np.zeros((1, self._width), np.float32)
        self._model.predict(np.zeros((1, *self._model.input_shape), np.float32), self._outputs[:1])
        self._add_outputs(self._empty_states(), self._outputs[:1], targets, np.ones(1, np.float32))

    def _empty_states(self) -> list[np.ndarray]:
        return [np.zeros(size, np.float64) for size in (3, *self._sizes)]

    def _add_outputs(
        self, states: list[np.ndarray], outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray
    ) -> None:
        """Add rows to the states: the first holds the sums of losses, weights and rows, then one for each metric."""
        rows, loss = len(outputs), self._model.loss
        kernel = loss.kernel_for(self._model.target_kind)
        loss_sum = kernel(outputs, targets, weight, self._scratch[:rows], *loss.constants())
        states[0] += (loss_sum, weight.sum(dtype="f8"), rows)
        for metric, state in zip(self._metrics.values(), states[1:], strict=True):
            metric.update(state, outputs, targets, weight)

    def _merged(self, states: list[np.ndarray]) -> list[np.ndarray]:
        """Merge all ranks' states, in rank order."""
        gathered = [self._split(flat) for flat in self._group.all_gather_objects(np.concatenate(states))]
        merged = gathered[0]
        for other in gathered[1:]:
            merged[0] += other[0]
            for metric, into, state in zip(self._metrics.values(), merged[1:], other[1:], strict=True):
                metric.merge(into, state)
        return merged

    def _values(self, merged: list[np.ndarray]) -> dict[str, float]:
        loss_sum, weight_sum, _ = merged[0]
        values = {"loss": float(loss_sum / weight_sum) if weight_sum else float("nan")}
        for (name, metric), state in zip(self._metrics.items(), merged[1:], strict=True):
            values[name] = metric.result(state)
        return values

    def _split(self, flat: np.ndarray) -> list[np.ndarray]:
        return np.split(flat, np.cumsum([3, *self._sizes])[:-1])
