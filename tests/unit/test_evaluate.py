"""The evaluator against plain numpy: weights, positions, class weights.  Several ranks: tests/mpi/test_evaluate.py.

The model is one that says what its inputs say, so that nothing has to be compiled but the losses and metrics.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.format import RowFormat
from hpctrain.data.shard import MemoryShard
from hpctrain.nn.losses import BinaryCrossEntropy, Loss, MeanSquaredError, Poisson, Quantile, SoftmaxCrossEntropy
from hpctrain.nn.metrics import Accuracy, Auc, ConfusionMatrix, MeanAbsoluteErrorMetric, Metric, Perplexity
from hpctrain.training import evaluate
from hpctrain.training.evaluate import Evaluator

ROWS = 23


def model_of(loss: Loss, kind: str, out_shape: tuple[int, ...]) -> SimpleNamespace:
    def predict(inputs: np.ndarray, outputs: np.ndarray) -> None:
        outputs[...] = inputs

    plan = SimpleNamespace(row_floats=10)
    shapes = {"out_shape": out_shape, "input_shape": out_shape}
    return SimpleNamespace(loss=loss, target_kind=kind, plan=plan, predict=predict, **shapes)


def shard_of(outputs: np.ndarray, targets: np.ndarray, kind: str, weight: np.ndarray | None = None) -> MemoryShard:
    target_shape = targets.shape[1:] or (() if kind == "class" else (1,))
    form = RowFormat(outputs.shape[1:], kind, target_shape, None if weight is None else weight.shape[1:])
    stored = np.empty((len(outputs), form.weight_words), np.float32)
    if weight is not None:
        stored[:] = weight.reshape(len(outputs), -1)
    flat = targets if kind == "class" and targets.ndim == 1 else targets.reshape(len(targets), -1)
    return MemoryShard(form, outputs, flat, np.array([0, len(outputs)]), 0, stored)


def evaluated(loss: Loss, shard: MemoryShard, metrics: dict[str, Metric], monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.setattr(evaluate, "ROWS", 5)
    evaluator = Evaluator(SingleGroup(), model_of(loss, shard.format.target_kind, shard.inputs.shape[1:]), metrics)
    evaluator.warm_up()
    report = evaluator.run(shard, "test", 3, 70)
    assert (report.part, report.epoch, report.step, report.examples) == ("test", 3, 70, len(shard))
    return report.metrics


@pytest.fixture
def sequences() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    outputs = random.normal(0, 2, (ROWS, 4, 3)).astype(np.float32)
    weight = random.uniform(0, 2, (ROWS, 4)) * random.integers(0, 2, (ROWS, 4))
    return outputs, random.integers(0, 3, (ROWS, 4)), weight.astype(np.float32)


def cross_entropy(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    exact = outputs.astype(np.float64)
    logs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, targets[..., None], -1)[..., 0]


def test_positions_count_by_their_weights(sequences, monkeypatch):
    outputs, targets, weight = sequences
    metrics = {"accuracy": Accuracy(), "perplexity": Perplexity(), "table": ConfusionMatrix()}
    found = evaluated(SoftmaxCrossEntropy(), shard_of(outputs, targets, "class", weight), metrics, monkeypatch)
    mean = np.average(cross_entropy(outputs, targets), weights=weight.astype(np.float64))
    assert found["loss"] == pytest.approx(mean, rel=1e-6)
    assert found["perplexity"] == pytest.approx(np.exp(mean), rel=1e-6)
    right = outputs.argmax(-1) == targets
    assert found["accuracy"] == pytest.approx(np.average(right, weights=weight.astype(np.float64)), rel=1e-9)
    assert np.sum(found["table"]) == pytest.approx(weight.sum(), rel=1e-6)


def test_weights_of_examples_count_for_all_their_positions(sequences, monkeypatch):
    outputs, targets, weight = sequences
    found = evaluated(SoftmaxCrossEntropy(), shard_of(outputs, targets, "class", weight[:, 0]), {}, monkeypatch)
    losses = cross_entropy(outputs, targets).mean(1)
    assert found["loss"] == pytest.approx(np.average(losses, weights=weight[:, 0].astype("f8")), rel=1e-6)


def test_class_weights_are_the_loss_s_alone(sequences, monkeypatch):
    outputs, targets, weight = sequences
    loss, shard = SoftmaxCrossEntropy(class_weights=[1, 0.25, 3]), shard_of(outputs, targets, "class", weight)
    found = evaluated(loss, shard, {"accuracy": Accuracy()}, monkeypatch)
    both = weight * np.array([1, 0.25, 3])[targets]
    assert found["loss"] == pytest.approx(np.average(cross_entropy(outputs, targets), weights=both), rel=1e-6)
    plain = evaluated(SoftmaxCrossEntropy(), shard, {"accuracy": Accuracy()}, monkeypatch)
    assert found["accuracy"] == plain["accuracy"]


def test_many_labels_an_example_are_judged_one_by_one(monkeypatch):
    random = np.random.default_rng(1)
    outputs, targets = random.normal(size=(ROWS, 6)).astype(np.float32), random.integers(0, 2, (ROWS, 6))
    metrics = {"accuracy": Accuracy(), "auc": Auc()}
    found = evaluated(BinaryCrossEntropy(), shard_of(outputs, targets, "class"), metrics, monkeypatch)
    assert found["accuracy"] == pytest.approx(((outputs > 0) == targets).mean())
    sigmoid = 1 / (1 + np.exp(-outputs.astype(np.float64)))
    assert found["loss"] == pytest.approx(-np.log(np.where(targets, sigmoid, 1 - sigmoid)).mean(), rel=1e-6)
    assert 0 < found["auc"] < 1


@pytest.mark.parametrize("masked", [False, True])
def test_metrics_judge_what_a_loss_predicts(monkeypatch, masked):
    random = np.random.default_rng(2)
    outputs = random.uniform(0.1, 2, (ROWS, 4, 3)).astype(np.float32)
    weight = random.integers(0, 2, (ROWS, 4)).astype(np.float32) if masked else None
    metrics = {"mae": MeanAbsoluteErrorMetric()}
    cases = [
        (MeanSquaredError(), (ROWS, 4, 3), outputs),
        (Poisson(), (ROWS, 4, 3), np.exp(outputs)),
        (BinaryCrossEntropy(), (ROWS, 4, 3), 1 / (1 + np.exp(-outputs))),
        (Quantile(levels=[0.2, 0.6, 0.9]), (ROWS, 4), outputs[:, :, 1]),
    ]
    for loss, shape, predicted in cases:
        targets = random.uniform(0, 1, shape).astype(np.float32)
        found = evaluated(loss, shard_of(outputs, targets, "real", weight), metrics, monkeypatch)
        errors = abs(predicted.astype(np.float64) - targets).reshape(ROWS, 4, -1).mean(2)
        assert found["mae"] == pytest.approx(np.average(errors, weights=weight), rel=1e-5)
        shard = shard_of(outputs, targets, "real", weight)
        mean = Evaluator(SingleGroup(), model_of(loss, "real", outputs.shape[1:]), metrics).mean_predictor(shard, shard)
        flat = targets.reshape(ROWS * 4, -1)[weight.ravel() > 0] if masked else targets.reshape(ROWS, -1)
        assert mean["mae"] == pytest.approx(abs(flat - flat.mean(0)).mean(), rel=1e-4)
        assert np.isfinite(mean["loss"])


@pytest.mark.parametrize(("row_floats", "rows"), [(10, 256), (1 << 17, 32), (1 << 30, 16)])
def test_large_networks_are_evaluated_in_small_passes(row_floats, rows):
    seen = []
    model = model_of(MeanSquaredError(), "real", (1,))
    model.plan.row_floats = row_floats
    model.predict = lambda inputs, outputs: seen.append(len(outputs))
    Evaluator(SingleGroup(), model, {}).run(
        shard_of(np.zeros((300, 1), "f4"), np.zeros((300, 1), "f4"), "real"), "test"
    )
    assert max(seen) == rows
    assert sum(seen) == 300
