"""Every registered metric: the same value however the rows are cut and merged, weights, NaN, and its checks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.nn import METRICS
from hpctrain.nn.metrics import Metric
from hpctrain.options import part_from, spec_of

CASES = [(name, kind) for name in METRICS for kind in METRICS.get(name)().target_kinds]
WIDTH = 8


def example(kind: str, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(rows)
    outputs = random.normal(3, 2, (rows, WIDTH)).astype(np.float32)
    targets = random.integers(0, WIDTH, rows) if kind == "class" else random.normal(3, 2, (rows, WIDTH)).astype("f4")
    return outputs, targets, random.uniform(0.5, 2, rows).astype(np.float32)


def state_of(metric: Metric, *rows: np.ndarray) -> np.ndarray:
    state = metric.start(WIDTH, 100)
    metric.update(state, *rows)
    return state


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("cuts", [[0, 50, 100], [0, 0, 1, 99, 100, 100], [0, 20, 40, 60, 80, 100]])
def test_merged_parts_give_the_value_of_the_whole(name: str, kind: str, cuts: list[int]) -> None:
    metric = METRICS.get(name)()
    rows = example(kind, 100)
    merged = metric.start(WIDTH, 100)
    for lo, hi in zip(cuts, cuts[1:], strict=False):
        part = pickle.loads(pickle.dumps(state_of(metric, *(array[lo:hi] for array in rows))))  # as between ranks
        metric.merge(merged, part)
    blocks = metric.start(WIDTH, 100)
    for lo, hi in zip(cuts, cuts[1:], strict=False):
        metric.update(blocks, *(array[lo:hi] for array in rows))
    whole = metric.result(state_of(metric, *rows))
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(metric.result(merged), whole, rtol=1e-12)
    np.testing.assert_allclose(metric.result(blocks), whole, rtol=1e-12)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_weights_count_rows(name: str, kind: str) -> None:
    metric = METRICS.get(name)()
    outputs, targets, _ = example(kind, 30)
    times = np.random.default_rng(0).integers(0, 4, 30)
    outputs[np.flatnonzero(times == 0)[0]] = np.nan  # a row of weight 0 does not count, whatever it holds
    weighted = state_of(metric, outputs, targets, times.astype(np.float32))
    ones = np.ones(times.sum(), np.float32)
    repeated = state_of(metric, np.repeat(outputs, times, 0), np.repeat(targets, times, 0), ones)
    np.testing.assert_allclose(metric.result(weighted), metric.result(repeated), rtol=1e-12)


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("column", [0, WIDTH - 1])
def test_nan_is_never_right(name: str, kind: str, column: int) -> None:
    metric = METRICS.get(name)()
    outputs, targets, weight = example(kind, 30)
    outputs[4, column] = np.nan
    assert np.isnan(metric.result(state_of(metric, outputs, targets, weight))).all()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_nothing_has_no_value(name: str, kind: str) -> None:
    metric = METRICS.get(name)()
    empty = state_of(metric, *example(kind, 0))
    assert np.isnan(metric.result(empty)).all()
    metric.merge(empty, metric.start(WIDTH, 0))
    assert np.isnan(metric.result(empty)).all()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_perfect_network_is_better(name: str, kind: str) -> None:
    metric = METRICS.get(name)()
    outputs, targets, weight = example(kind, 60)
    perfect = 1000 * np.eye(WIDTH, dtype=np.float32)[targets] if kind == "class" else targets
    best = metric.result(state_of(metric, perfect, targets, weight))
    other = metric.result(state_of(metric, outputs, targets, weight))
    if not metric.is_number:
        best, other = (np.trace(table) / np.sum(table) for table in (best, other))
    assert metric.better in ("higher", "lower")
    assert best == pytest.approx(1.0 if metric.better == "higher" or name == "perplexity" else 0.0, abs=1e-12)
    assert (best > other) == (metric.better == "higher")


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_checks_and_job_file(name: str, kind: str) -> None:
    metric = METRICS.get(name)()
    metric.check_outputs(WIDTH, kind)
    metric.warm_up(WIDTH, kind)
    for other in {"class", "real"} - set(metric.target_kinds):
        with pytest.raises(UserError, match=f"{name} does not fit the targets"):
            metric.check_outputs(WIDTH, other)
    assert metric.name == name
    assert part_from(METRICS, spec_of(METRICS, metric), "metrics.names.0") == metric
