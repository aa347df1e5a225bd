"""Metrics over several ranks are those of all rows in one: states are merged, values never averaged."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.format import RowFormat
from hpctrain.data.shard import MemoryShard
from hpctrain.nn import METRICS
from hpctrain.nn.losses import MeanSquaredError, SoftmaxCrossEntropy
from hpctrain.nn.metrics import auc
from hpctrain.training.evaluate import Evaluator

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.timeout(120)]

ROWS, T, K = 41, 3, 6


def predict(inputs, outputs):
    outputs[...] = inputs


@pytest.mark.parametrize("kind", ["class", "real"])
@pytest.mark.parametrize("exact_scores", [1 << 22, 10])
def test_every_metric_is_that_of_all_rows(kind, exact_scores, monkeypatch):
    monkeypatch.setattr(auc, "EXACT_SCORES", exact_scores)
    group = join()
    random = np.random.default_rng(0)
    outputs = random.normal(size=(ROWS, T, K)).astype(np.float32)
    targets = random.integers(0, K, (ROWS, T)) if kind == "class" else random.normal(size=(ROWS, T * K)).astype("f4")
    weight = (random.uniform(0, 2, (ROWS, T)) * random.integers(0, 2, (ROWS, T))).astype(np.float32)
    form = RowFormat((T, K), kind, (T,) if kind == "class" else (T, K), (T,))
    loss = SoftmaxCrossEntropy() if kind == "class" else MeanSquaredError()
    plan, shapes = SimpleNamespace(row_floats=10), {"out_shape": (T, K), "input_shape": (T, K)}
    model = SimpleNamespace(loss=loss, target_kind=kind, plan=plan, predict=predict, **shapes)
    metrics = {name: METRICS.get(name)() for name in METRICS if kind in METRICS.get(name).target_kinds}

    starts = np.array([0, *(5 * rank**2 for rank in range(group.size - 1)), ROWS])  # the first rank has nothing
    own = slice(starts[group.rank], starts[group.rank + 1])
    shard = MemoryShard(form, outputs[own], targets[own], starts, int(starts[group.rank]), weight[own])
    report = Evaluator(group, model, metrics).run(shard, "test")
    whole = MemoryShard(form, outputs, targets, np.array([0, ROWS]), 0, weight)
    expected = Evaluator(SingleGroup(), model, metrics).run(whole, "test")
    assert report.examples == ROWS
    assert list(report.metrics) == list(expected.metrics)
    for name, value in expected.metrics.items():
        np.testing.assert_allclose(report.metrics[name], value, rtol=1e-12, err_msg=name)
