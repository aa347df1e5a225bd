"""Metrics against their definitions in float64 numpy, and what they do at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.nn import metrics
from hpctrain.nn.metrics import (
    F1,
    R2,
    Accuracy,
    Auc,
    BalancedAccuracy,
    ConfusionMatrix,
    MeanAbsoluteErrorMetric,
    MeanPredictor,
    Metric,
    Perplexity,
    Precision,
    Recall,
    RootMeanSquaredError,
    TopK,
    auc,
)


def value(metric: Metric, outputs: object, targets: object, weight: object = None) -> float:
    outputs = np.array(outputs, np.float32)
    targets = np.array(targets)
    targets = targets.astype(np.int64 if targets.dtype.kind == "i" else np.float32)
    weight = np.ones(len(outputs), np.float32) if weight is None else np.array(weight, np.float32)
    state = metric.start(outputs.shape[1], len(outputs))
    metric.update(state, outputs, targets, weight)
    return metric.result(state)


def test_accuracy() -> None:
    random = np.random.default_rng(0)
    outputs, labels = random.normal(size=(50, 4)).astype(np.float32), random.integers(0, 4, 50)
    weight = random.uniform(0, 1, 50).astype(np.float32)
    right = outputs.argmax(1) == labels
    assert value(Accuracy(), outputs, labels, weight) == pytest.approx(weight[right].sum() / weight.sum(), rel=1e-6)


def test_accuracy_takes_the_first_of_equal_outputs() -> None:
    assert value(Accuracy(), [[1, 1, 0], [0, 2, 2]], [0, 2]) == 0.5


def test_accuracy_of_one_logit() -> None:
    assert value(Accuracy(), [[0.1], [-0.1], [0.0], [5.0]], [1, 0, 0, 0]) == 0.75


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_top_k(k: int) -> None:
    random = np.random.default_rng(0)
    outputs, labels = random.normal(size=(60, 6)).astype(np.float32), random.integers(0, 6, 60)
    largest = np.argsort(-outputs, 1)[:, :k]
    assert value(TopK(k=k), outputs, labels) == pytest.approx((largest == labels[:, None]).any(1).mean())


def test_top_k_counts_equal_outputs_in_favour_of_the_class() -> None:
    outputs, labels = [[3, 2, 2, 2, 1]] * 5, [0, 1, 2, 3, 4]
    assert [value(TopK(k=k), outputs, labels) for k in (1, 2, 3, 4, 5)] == [0.2, 0.8, 0.8, 0.8, 1.0]


def test_top_k_of_a_class_without_an_output_shows() -> None:
    assert math.isnan(value(TopK(k=2), np.zeros((2, 3)), [0, 3]))
    assert math.isnan(value(TopK(k=2), np.zeros((2, 3)), [0, -1]))


@pytest.fixture
def classes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs and labels of four classes, of which the last never occurs and is never said."""
    random = np.random.default_rng(4)
    labels = random.integers(0, 3, 90)
    outputs = random.normal(0, 1, (90, 4)) + 1.2 * np.eye(4)[labels]
    outputs[:, 3] = -9
    return outputs.astype(np.float32), labels, random.integers(0, 5, 90).astype(np.float32)


def table(outputs: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
    said = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).astype(int)
    matrix = np.zeros((max(2, outputs.shape[1]),) * 2)
    np.add.at(matrix, (labels, said), weight.astype(np.float64))
    return matrix


@pytest.mark.parametrize("average", ["auto", "macro", "micro"])
def test_precision_recall_and_f1_of_several_classes(classes: tuple, average: str) -> None:
    matrix = table(*classes)[:3, :3]
    right, said, actual = np.diag(matrix), matrix.sum(0), matrix.sum(1)
    if average == "micro":
        right, said, actual = right.sum(keepdims=True), said.sum(keepdims=True), actual.sum(keepdims=True)
    precision, recall = right / said, right / actual
    f1 = 2 * precision * recall / (precision + recall)
    for metric, expected in ((Precision, precision), (Recall, recall), (F1, f1)):
        assert value(metric(average=average), *classes) == pytest.approx(expected.mean(), rel=1e-12)


@pytest.mark.parametrize("width", [1, 2])
def test_precision_recall_and_f1_of_two_classes_are_those_of_class_1(classes: tuple, width: int) -> None:
    outputs, labels, weight = classes[0][:, :width], classes[1] % 2, classes[2]
    matrix = table(outputs, labels, weight)
    assert value(ConfusionMatrix(), outputs, labels, weight) == matrix.tolist()
    precision, recall = matrix[1, 1] / matrix[:, 1].sum(), matrix[1, 1] / matrix[1].sum()
    for average in ("auto", "binary"):
        assert value(Precision(average=average), outputs, labels, weight) == pytest.approx(precision, rel=1e-12)
        assert value(Recall(average=average), outputs, labels, weight) == pytest.approx(recall, rel=1e-12)
        expected = 2 / (1 / precision + 1 / recall)
        assert value(F1(average=average), outputs, labels, weight) == pytest.approx(expected, rel=1e-12)


def test_a_class_that_is_never_said_counts_as_0() -> None:
    outputs = 9 * np.eye(3)[[0, 0, 2, 2]]
    assert value(Precision(), outputs, [0, 1, 2, 2]) == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert value(F1(), outputs, [0, 1, 2, 2]) == pytest.approx((2 / 3 + 0 + 1) / 3)
    # Class 1 occurs neither as a label nor as a prediction: it is left out.
    assert value(Precision(), outputs, [0, 0, 2, 2]) == 1
    assert value(BalancedAccuracy(), outputs, [0, 0, 2, 0]) == pytest.approx((2 / 3 + 1) / 2)


def test_balanced_accuracy_and_confusion_matrix(classes: tuple) -> None:
    matrix = table(*classes)
    found = value(ConfusionMatrix(), *classes)
    assert found == matrix.tolist()
    assert isinstance(found[0][0], int)
    expected = (np.diag(matrix)[:3] / matrix.sum(1)[:3]).mean()
    assert value(BalancedAccuracy(), *classes) == pytest.approx(expected, rel=1e-12)
    half = value(ConfusionMatrix(), *classes[:2], classes[2] / 2)
    assert half == (matrix / 2).tolist()


def test_perplexity_is_exp_of_the_mean_cross_entropy(classes: tuple) -> None:
    outputs, labels, weight = classes
    exact = outputs.astype(np.float64)
    loss = np.log(np.exp(exact).sum(1)) - exact[np.arange(90), labels]
    expected = np.exp(np.average(loss, weights=weight.astype(np.float64)))
    assert value(Perplexity(), *classes) == pytest.approx(expected, rel=1e-12)
    assert value(Perplexity(), np.zeros((5, 7)), np.arange(5)) == pytest.approx(7)
    assert value(Perplexity(), [[1e6, 0.0]], [1]) == math.inf
    assert math.isnan(value(Perplexity(), np.zeros((2, 3)), [0, 3]))


def area(scores: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> float:
    """The part of all pairs of a positive and a negative in which the positive has more; ties count half."""
    scores, weight = scores.astype(np.float64), weight.astype(np.float64)
    above = np.sign(scores[positive][:, None] - scores[~positive][None]) / 2 + 0.5
    pairs = weight[positive][:, None] * weight[~positive][None]
    return float((above * pairs).sum() / pairs.sum())


@pytest.mark.parametrize("width", [1, 2, 4])
def test_auc_counts_pairs(classes: tuple, width: int) -> None:
    outputs, labels, weight = np.round(classes[0] * 4) / 4, classes[1], classes[2]  # with ties, and -0
    outputs[::7] *= -1
    if width < 3:
        labels = labels % 2
    outputs = outputs[:, :width].astype(np.float32)
    if width < 3:
        scores = outputs[:, -1] - (outputs[:, 0] if width == 2 else 0)
        expected = area(scores, labels == 1, weight)
    else:
        exact = outputs.astype(np.float64)
        logs = (exact - np.log(np.exp(exact).sum(1, keepdims=True))).astype(np.float32)
        expected = np.mean([area(logs[:, c], labels == c, weight) for c in range(3)])  # class 3 does not occur
    assert value(Auc(), outputs, labels, weight) == pytest.approx(expected, rel=1e-12)


def test_auc_tells_close_scores_apart() -> None:
    close = np.array([[1.0], [np.nextafter(np.float32(1), np.float32(2))]], np.float32)
    assert value(Auc(), close, [0, 1]) == 1
    assert value(Auc(), close, [1, 0]) == 0
    assert value(Auc(), [[-1e-45], [0.0]], [0, 1]) == 1
    assert value(Auc(), [[-0.0], [0.0]], [0, 1]) == 0.5
    assert value(Auc(), [[-np.inf], [np.inf], [5.0]], [0, 1, 1]) == 1


def test_auc_of_one_class_has_no_value() -> None:
    assert math.isnan(value(Auc(), [[0.1], [0.2]], [1, 1]))
    assert math.isnan(value(Auc(), [[0.1], [0.2]], [0, 2]))


def test_auc_of_very_many_scores_is_close_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auc, "EXACT_SCORES", 1000)
    monkeypatch.setattr(auc, "_PENDING", 500)
    random = np.random.default_rng(6)
    labels = random.integers(0, 2, 4000)
    scores = (random.normal(0, 1, 4000) + labels).astype(np.float32)
    weight = random.uniform(0, 2, 4000).astype(np.float32)
    metric, states = Auc(), []
    for rows in np.array_split(np.arange(4000), 3):
        states.append(metric.start(1, 4000))
        for block in np.array_split(rows, 9):
            metric.update(states[-1], scores[block, None], labels[block], weight[block])
    for other in states[1:]:
        metric.merge(states[0], other)
    keys = scores.view(np.uint32) >> 16
    ties = keys[labels == 1][:, None] == keys[labels == 0][None]
    pairs = weight[labels == 1][:, None].astype(np.float64) * weight[labels == 0]
    bound = 0.5 * (ties * pairs).sum() / pairs.sum()
    assert 0 < bound < 0.005
    assert metric.result(states[0]) == pytest.approx(area(scores, labels == 1, weight), abs=bound)
    assert len(states[0]["curves"][0].keys) < 2500


@pytest.fixture
def numbers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    targets = random.normal([0, 5, -100], [1, 10, 0.1], (80, 3)).astype(np.float32)
    outputs = (targets + random.normal(0, [0.5, 4, 0.2], (80, 3))).astype(np.float32)
    return outputs, targets, random.uniform(0, 2, 80).astype(np.float32)


def test_mean_errors(numbers: tuple) -> None:
    outputs, targets, weight = numbers
    difference = outputs.astype(np.float64) - targets
    exact = weight.astype(np.float64)
    absolute = np.average(abs(difference).mean(1), weights=exact)
    square = np.average((difference**2).mean(1), weights=exact)
    assert value(MeanAbsoluteErrorMetric(), *numbers) == pytest.approx(absolute, rel=1e-12)
    assert value(RootMeanSquaredError(), *numbers) == pytest.approx(math.sqrt(square), rel=1e-12)


def r2(outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> float:
    """The textbook's two passes in extended precision."""
    outputs, targets, weight = (np.asarray(array, np.longdouble) for array in (outputs, targets, weight))
    mean = np.average(targets, 0, weights=weight)
    left = (weight[:, None] * (outputs - targets) ** 2).sum(0)
    return float((1 - left / (weight[:, None] * (targets - mean) ** 2).sum(0)).mean())


def test_r2_is_the_mean_over_columns(numbers: tuple) -> None:
    assert value(R2(), *numbers) == pytest.approx(r2(*numbers), rel=1e-12)


@pytest.mark.parametrize("mean", [1e4, -1e7])
def test_r2_of_targets_far_from_zero(mean: float) -> None:
    random = np.random.default_rng(3)
    targets = (mean + random.normal(0, 3, (500, 2))).astype(np.float32)
    outputs = targets + np.float32(1)
    weight = random.uniform(0.1, 1, 500).astype(np.float32)
    exact = r2(outputs, targets, weight)
    assert value(R2(), outputs, targets, weight) == pytest.approx(exact, rel=1e-9)
    merged = np.zeros(R2().size(2))
    for lo in range(0, 500, 70):
        part = np.zeros_like(merged)
        R2().update(part, outputs[lo : lo + 70], targets[lo : lo + 70], weight[lo : lo + 70])
        R2().merge(merged, part)
    assert R2().result(merged) == pytest.approx(exact, rel=1e-9)


def test_r2_of_constant_targets_is_zero() -> None:
    constant = np.full((30, 1), 0.1)
    assert value(R2(), constant + 1, constant) == 0
    assert value(R2(), constant, constant) == 0
    varied = np.arange(30.0)[:, None]
    both = np.hstack([constant, varied])
    assert value(R2(), np.hstack([constant + 7, varied]), both, np.linspace(0.3, 2, 30)) == 0.5
    parts = np.zeros((2, R2().size(1)))
    for part, rows in zip(parts, (7, 23), strict=True):
        R2().update(part, np.ones((rows, 1), np.float32), np.full((rows, 1), 0.1, np.float32), np.full(rows, 0.3, "f4"))
    R2().merge(parts[0], parts[1])
    assert R2().result(parts[0]) == 0


def test_r2_of_constant_targets_and_broken_outputs_shows() -> None:
    assert math.isnan(value(R2(), [[np.nan], [1.0]], [[2.0], [2.0]]))


def test_mean_predictor_is_judged_like_a_network(numbers: tuple) -> None:
    _, targets, weight = numbers
    predictor = MeanPredictor()
    states = np.zeros((3, predictor.size(3)))
    for state, rows in zip(states, (slice(0, 0), slice(0, 30), slice(30, 80)), strict=True):
        predictor.update(state, targets[rows], weight[rows])
    predictor.merge(states[0], states[1])
    predictor.merge(states[0], states[2])
    mean = np.average(targets.astype(np.float64), 0, weights=weight.astype(np.float64))
    np.testing.assert_allclose(predictor.mean(states[0]), mean, rtol=1e-12)
    outputs = np.empty_like(targets)
    predictor.fill(states[0], outputs)
    assert value(R2(), outputs, targets, weight) == pytest.approx(0, abs=1e-6)
    absolute = np.average(abs(targets - mean).mean(1), weights=weight)
    assert value(MeanAbsoluteErrorMetric(), outputs, targets, weight) == pytest.approx(absolute, rel=1e-5)


def test_mean_of_nothing_is_nan() -> None:
    assert np.isnan(MeanPredictor().mean(np.zeros(MeanPredictor().size(2)))).all()


def test_messages() -> None:
    with pytest.raises(UserError, match="accuracy does not fit the targets(.|\n)*floating point(.|\n)*mae, r2"):
        Accuracy().check_outputs(3, "real")
    with pytest.raises(UserError, match="k = 5, 3 outputs(.|\n)*1 to 3"):
        TopK().check_outputs(3, "class")
    with pytest.raises(UserError, match="take accuracy"):
        TopK(k=1).check_outputs(1, "class")
    with pytest.raises(UserError, match=r"metrics.names.0.k = 0: .*greater than or equal to 1"):
        TopK.checked({"k": 0}, "metrics.names.0")
    with pytest.raises(UserError, match="f1 with average(.|\n)*4 outputs(.|\n)*macro"):
        F1(average="binary").check_outputs(4, "class")
    with pytest.raises(UserError, match="perplexity needs an output for each class"):
        Perplexity().check_outputs(1, "class")
    with pytest.raises(UserError, match="confusion_matrix would be too large(.|\n)*f1"):
        ConfusionMatrix().check_outputs(1001, "class")


def test_names_in_reports() -> None:
    assert list(metrics.by_name([Accuracy(), TopK(k=3), Accuracy()])) == ["accuracy", "top_k"]
    assert list(metrics.by_name([TopK(k=3), TopK(k=5)])) == ["top_k k=3", "top_k k=5"]


def test_defaults() -> None:
    assert metrics.default_metrics("class") == [Accuracy()]
    assert metrics.default_metrics("real") == [MeanAbsoluteErrorMetric(), R2()]
