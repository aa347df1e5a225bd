"""Losses against their definitions in float64 numpy, extreme outputs, and the messages for outputs that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hpctrain.errors import UserError
from hpctrain.nn import losses
from hpctrain.nn.losses import (
    BinaryCrossEntropy,
    Huber,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
    Poisson,
    Quantile,
    SoftmaxCrossEntropy,
)


def run(loss: Loss, outputs: object, targets: np.ndarray, weight: object = None) -> tuple[float, np.ndarray]:
    outputs = np.array(outputs, np.float32)
    weight = np.ones(len(outputs), np.float32) if weight is None else np.array(weight, np.float32)
    derivative = np.empty_like(outputs)
    kind = "class" if targets.dtype.kind == "i" else "real"
    return loss.kernel_for(kind)(outputs, targets, weight, derivative, *loss.constants()), derivative


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    return (
        random.normal(0, 3, (20, 6)).astype(np.float32),
        random.uniform(0, 1, (20, 6)).astype(np.float32),
        random.uniform(0, 2, 20).astype(np.float32),
    )


def test_softmax_cross_entropy_is_minus_the_log_of_the_probability(data: tuple) -> None:
    outputs, _, weight = data
    labels = np.arange(20) % 6
    exact = outputs.astype(np.float64)
    probabilities = np.exp(exact) / np.exp(exact).sum(1, keepdims=True)
    total, derivative = run(SoftmaxCrossEntropy(), outputs, labels, weight)
    assert total == pytest.approx(-(weight * np.log(probabilities[np.arange(20), labels])).sum(), rel=1e-6)
    np.testing.assert_allclose(derivative, weight[:, None] * (probabilities - np.eye(6)[labels]), atol=5e-7)


def test_softmax_of_extreme_outputs() -> None:
    total, derivative = run(
        SoftmaxCrossEntropy(), [[1e4, 0, -1e4], [-3e38, 3e38, 0], [1e4, 0, -1e4]], np.array([0, 1, 2])
    )
    assert total == pytest.approx(2e4)
    np.testing.assert_array_equal(derivative, [[0, 0, 0], [0, 0, 0], [1, 0, -1]])


def test_softmax_derivative_of_a_nearly_certain_label_is_not_rounded_away() -> None:
    _, derivative = run(SoftmaxCrossEntropy(), [[20.0, 0.0]], np.array([0]))
    assert derivative[0, 0] == pytest.approx(-1 / (1 + np.exp(20.0)), rel=1e-6)


@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_a_label_without_an_output_is_not_taken_for_another(label: int) -> None:
    total, derivative = run(SoftmaxCrossEntropy(), np.zeros((2, 3)), np.array([0, label]))
    assert np.isnan(total)
    assert np.isnan(derivative[1]).all()


def test_binary_cross_entropy_is_that_of_the_sigmoid(data: tuple) -> None:
    outputs, targets, weight = data
    exact = targets.astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-outputs.astype(np.float64)))
    entropy = -(exact * np.log(sigmoid) + (1 - exact) * np.log(1 - sigmoid))
    total, derivative = run(BinaryCrossEntropy(), outputs, targets, weight)
    assert total == pytest.approx((weight * entropy.mean(1)).sum(), rel=1e-6)
    np.testing.assert_allclose(derivative, weight[:, None] * (sigmoid - exact) / 6, atol=2e-7)


def test_binary_cross_entropy_takes_labels(data: tuple) -> None:
    outputs, _, weight = data
    labels = np.arange(20) % 2
    as_class = run(BinaryCrossEntropy(), outputs[:, :1], labels, weight)
    as_real = run(BinaryCrossEntropy(), outputs[:, :1], labels[:, None].astype(np.float32), weight)
    assert as_class[0] == as_real[0]
    np.testing.assert_array_equal(as_class[1], as_real[1])


def test_binary_cross_entropy_of_extreme_outputs() -> None:
    total, derivative = run(BinaryCrossEntropy(), [[1e4], [-1e4], [1e4], [-1e4]], np.array([1, 0, 0, 1]))
    assert total == 2e4
    np.testing.assert_array_equal(derivative, [[0], [0], [1], [-1]])


def test_real_losses_are_means_over_the_columns(data: tuple) -> None:
    outputs, targets, weight = data
    difference = outputs.astype(np.float64) - targets
    total, derivative = run(MeanSquaredError(), outputs, targets, weight)
    assert total == pytest.approx((weight * (difference**2).mean(1)).sum(), rel=1e-12)
    np.testing.assert_allclose(derivative, weight[:, None] * difference / 3, rtol=1e-6)
    total, derivative = run(MeanAbsoluteError(), outputs, targets, weight)
    assert total == pytest.approx((weight * abs(difference).mean(1)).sum(), rel=1e-12)
    np.testing.assert_allclose(derivative, weight[:, None] * np.sign(difference) / 6, rtol=1e-6)


def test_mae_at_the_bottom_has_no_slope() -> None:
    assert run(MeanAbsoluteError(), [[2.0, 3.0]], np.array([[2.0, 3.0]], np.float32))[1].tolist() == [[0, 0]]


@pytest.mark.parametrize("delta", [0.3, 1.0, 4.0])
def test_huber_has_two_branches(data: tuple, delta: float) -> None:
    outputs, targets, weight = data
    difference = outputs.astype(np.float64) - targets
    size = abs(difference)
    assert (size < delta).any()
    assert (size > delta).any()
    value = np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))
    slope = np.where(size <= delta, difference, delta * np.sign(difference))
    total, derivative = run(Huber(delta=delta), outputs, targets, weight)
    assert total == pytest.approx((weight * value.mean(1)).sum(), rel=1e-12)
    np.testing.assert_allclose(derivative, weight[:, None] * slope / 6, rtol=1e-6)


@pytest.mark.parametrize("columns", [2, 3, 10, 96, 257])
def test_softmax_cross_entropy_at_any_width(columns: int) -> None:
    random = np.random.default_rng(columns)
    outputs = random.normal(0, 4, (9, columns)).astype(np.float32)
    labels = random.integers(0, columns, 9)
    exact = outputs.astype(np.longdouble)
    probabilities = np.exp(exact) / np.exp(exact).sum(1, keepdims=True)
    total, derivative = run(SoftmaxCrossEntropy(), outputs, labels)
    assert total == pytest.approx(float(-np.log(probabilities[np.arange(9), labels]).sum()), rel=1e-6)
    np.testing.assert_allclose(derivative, probabilities - np.eye(columns)[labels], atol=3e-7)


def test_label_smoothing_spreads_the_wanted_probability(data: tuple) -> None:
    outputs, _, weight = data
    labels = np.arange(20) % 6
    wanted = 0.8 * np.eye(6)[labels] + 0.2 / 6
    exact = outputs.astype(np.float64)
    logs = exact - np.log(np.exp(exact).sum(1, keepdims=True))
    total, derivative = run(SoftmaxCrossEntropy(smoothing=0.2), outputs, labels, weight)
    assert total == pytest.approx(-(weight * (wanted * logs).sum(1)).sum(), rel=1e-6)
    np.testing.assert_allclose(derivative, weight[:, None] * (np.exp(logs) - wanted), atol=1e-6)


def test_class_weights_multiply_the_weight_of_an_example() -> None:
    loss = SoftmaxCrossEntropy(class_weights=[0.5, 0, 3])
    assert loss.weighs
    assert not SoftmaxCrossEntropy().weighs
    targets, weight = np.array([[0, 1], [2, -100]]), np.array([[1, 2], [3, 0]], np.float32)
    weighed = loss.weigh(targets, weight)
    assert weighed.dtype == np.float32
    assert weighed.tolist() == [[0.5, 0], [9, 0]]
    assert SoftmaxCrossEntropy().weigh(targets, weight) is weight
    with pytest.raises(UserError, match=r"class_weights(.|\n)*3 numbers, 4 outputs"):
        loss.check_outputs((4,), "class", 4, ())
    for bad in ([0.0, 0.0], [1.0, -1.0], []):
        with pytest.raises(UserError, match=r"loss.class_weights(.|\n)*at least one above 0"):
            SoftmaxCrossEntropy.checked({"class_weights": bad}, "loss")


def test_positive_weight_counts_errors_on_ones_more(data: tuple) -> None:
    outputs, targets, weight = data
    exact = targets.astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-outputs.astype(np.float64)))
    entropy = -(2.5 * exact * np.log(sigmoid) + (1 - exact) * np.log(1 - sigmoid))
    slope = (1 - exact) * sigmoid - 2.5 * exact * (1 - sigmoid)
    total, derivative = run(BinaryCrossEntropy(positive_weight=2.5), outputs, targets, weight)
    assert total == pytest.approx((weight * entropy.mean(1)).sum(), rel=1e-6)
    np.testing.assert_allclose(derivative, weight[:, None] * slope / 6, atol=3e-7)


def test_quantile_loss_has_its_least_at_the_quantiles(data: tuple) -> None:
    _, targets, weight = data
    levels = (0.1, 0.5, 0.9)
    outputs = np.random.default_rng(5).normal(0.5, 0.4, (20, 18)).astype(np.float32)
    below = targets.astype(np.float64)[:, :, None] - outputs.reshape(20, 6, 3)
    value = np.maximum(np.array(levels) * below, (np.array(levels) - 1) * below)
    total, derivative = run(Quantile(levels=levels), outputs, targets, weight)
    assert total == pytest.approx((weight * value.mean((1, 2))).sum(), rel=1e-12)
    slope = np.where(below > 0, -np.array(levels), 1 - np.array(levels)).reshape(20, 18)
    np.testing.assert_allclose(derivative, weight[:, None] * slope / 18, rtol=1e-6)
    # The sum of slopes changes its sign where the part of the targets below the output is the level.
    column = np.linspace(0, 1, 1001, dtype=np.float32)[:, None]
    for level in levels:
        for shift, sign in ((-0.01, -1), (0.01, 1)):
            at = np.full((1001, 1), level + shift, np.float32)
            assert np.sign(run(Quantile(levels=[level]), at, column)[1].sum()) == sign
    assert Quantile(levels=levels).predictions(np.arange(6.0)[None], "real").tolist() == [[1, 4]]
    for bad in ([], [0.5, 0.5], [0.0], [0.9, 0.1], [1.0]):
        with pytest.raises(UserError, match=r"loss.levels(.|\n)*rising"):
            Quantile.checked({"levels": bad}, "loss")


def test_poisson_is_the_likelihood_of_counts(data: tuple) -> None:
    outputs, _, weight = data
    counts = np.random.default_rng(3).poisson(2, outputs.shape)
    rates = np.exp(outputs.astype(np.float64))
    constant = stats.poisson.logpmf(counts, 1.0) + 1  # -log(y!)
    likelihood = stats.poisson.logpmf(counts, rates) - constant
    total, derivative = run(Poisson(), outputs, counts.astype(np.float32), weight)
    assert total == pytest.approx(-(weight * likelihood.mean(1)).sum(), rel=1e-6)
    np.testing.assert_allclose(derivative, weight[:, None] * (rates - counts) / 6, rtol=2e-6)


@pytest.mark.parametrize(
    ("loss", "out_shape", "kind", "target_shape"),
    [
        (SoftmaxCrossEntropy(), (7, 3), "class", (7,)),
        (SoftmaxCrossEntropy(), (4, 5, 3), "class", (4, 5)),
        (SoftmaxCrossEntropy(), (1, 3), "class", ()),
        (BinaryCrossEntropy(), (7,), "class", (7,)),
        (BinaryCrossEntropy(), (4, 5, 1), "class", (4, 5)),
        (MeanSquaredError(), (4, 5, 2), "real", (4, 5, 2)),
        (MeanSquaredError(), (4, 5, 1), "real", (4, 5)),
        (MeanSquaredError(), (40,), "real", (4, 5, 2)),
        (Quantile(), (4, 5, 3), "real", (4, 5)),
        (Quantile(), (4, 6), "real", (4, 2)),
    ],
)
def test_outputs_with_positions_fit(loss: Loss, out_shape: tuple, kind: str, target_shape: tuple) -> None:
    loss.check_outputs(out_shape, kind, 2, target_shape)
    wrong = (*target_shape[:-1], target_shape[-1] + 1) if target_shape else (2,)
    with pytest.raises(UserError, match=f"{loss.name} needs"):
        loss.check_outputs(out_shape, kind, 2, wrong)


def test_one_hot_labels_are_told_what_to_do() -> None:
    with pytest.raises(UserError, match=r"argmax"):
        SoftmaxCrossEntropy().check_outputs((10,), "class", 2, (10,))


def test_targets_of_another_shape_are_refused_rather_than_read_out_of_bounds() -> None:
    with pytest.raises(ValueError, match="size of new array"):
        run(MeanSquaredError(), np.zeros((3, 2)), np.zeros((3, 1), np.float32))


@pytest.mark.parametrize(
    ("loss", "arguments", "words"),
    [
        (SoftmaxCrossEntropy(), ((1,), "class", 2, ()), ["two or more", "1 output", "2 units", "binary_cross_entropy"]),
        (SoftmaxCrossEntropy(), ((10,), "class", 12, ()), ["10 outputs", "12 classes", "labels up to 11", "12 units"]),
        (
            SoftmaxCrossEntropy(),
            ((3,), "real", None, (3,)),
            ["floating point", "3 target columns", "whole numbers", "mse"],
        ),
        (BinaryCrossEntropy(), ((1,), "class", 3, ()), ["3 classes", "labels 0 and 1", "softmax_cross_entropy"]),
        (BinaryCrossEntropy(), ((2,), "class", 2, ()), ["single output", "2 outputs"]),
        (MeanSquaredError(), ((4,), "real", None, (2,)), ["each column", "4 outputs", "2 target columns", "2 units"]),
        (Huber(), ((4,), "class", 4, ()), ["huber does not fit", "whole numbers", "floating point", "float32"]),
    ],
)
def test_messages(loss: Loss, arguments: tuple, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        loss.check_outputs(*arguments)
    for word in words:
        assert word in caught.value.message


def test_bad_options_name_the_key() -> None:
    with pytest.raises(UserError, match=r"loss.delta = 0: .*greater than 0"):
        Huber.checked({"delta": 0}, "loss")


def test_defaults() -> None:
    assert losses.default_loss("class") == SoftmaxCrossEntropy()
    assert losses.default_loss("real") == MeanSquaredError()
    assert SoftmaxCrossEntropy().outputs_for("class", 10, 1) == 10
    assert BinaryCrossEntropy().outputs_for("class", 2, 1) == 1
    assert MeanSquaredError().outputs_for("real", None, 3) == 3
