"""Every registered loss: derivatives against finite differences in float64, float32 against float64, and its checks."""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.nn import LOSSES
from hpctrain.nn.losses import Loss
from hpctrain.options import part_from, spec_of

# Losses whose options change what they compute, beside every loss with its defaults.
OPTIONS = {
    "softmax_cross_entropy smoothing": {"smoothing": 0.15},
    "binary_cross_entropy positive_weight": {"positive_weight": 3.5},
    "huber delta": {"delta": 0.4},
    "quantile levels": {"levels": [0.25]},
}
CASES = [(case, kind) for case in [*LOSSES, *OPTIONS] for kind in LOSSES.get(case.split()[0])().accepts]
SHAPES = [(1, 1), (1, 3), (5, 7), (17, 2), (3, 33)]


def made(case: str) -> Loss:
    return LOSSES.get(case.split()[0])(**OPTIONS.get(case, {}))


def example(loss: Loss, kind: str, rows: int, columns: int, real: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random outputs, targets and weights; as many outputs as the loss has for `columns` classes or target columns."""
    random = np.random.default_rng(rows * 100 + columns)
    width = loss.outputs_for(kind, columns, columns)
    outputs = random.normal(0, 2, (rows, width)).astype(real)
    if kind == "class":
        targets = random.integers(0, max(2, width), rows)
    else:
        targets = random.uniform(0, 1, (rows, columns)).astype(real)
    return outputs, targets, random.uniform(0.5, 2, rows).astype(real)


def run(
    loss: Loss, kind: str, outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray
) -> tuple[float, np.ndarray]:
    derivative = np.full_like(outputs, 123)  # the kernel stores, it does not add
    total = loss.kernel_for(kind)(outputs, targets, weight, derivative, *loss.constants())
    assert isinstance(total, float)
    return total, derivative


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_derivative_is_that_of_the_sum(name: str, kind: str, rows: int, columns: int) -> None:
    loss = made(name)
    outputs, targets, weight = example(loss, kind, rows, columns, np.float64)
    _, derivative = run(loss, kind, outputs, targets, weight)
    small = 1e-6
    for index in np.ndindex(outputs.shape):
        up, down = outputs.copy(), outputs.copy()
        up[index] += small
        down[index] -= small
        difference = run(loss, kind, up, targets, weight)[0] - run(loss, kind, down, targets, weight)[0]
        assert derivative[index] == pytest.approx(difference / (2 * small), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_float32_agrees_with_float64(name: str, kind: str) -> None:
    loss = made(name)
    outputs, targets, weight = example(loss, kind, 40, 9, np.float32)
    total, derivative = run(loss, kind, outputs, targets, weight)
    exact_targets = targets if kind == "class" else targets.astype(np.float64)
    exact, exact_derivative = run(loss, kind, outputs.astype(np.float64), exact_targets, weight.astype(np.float64))
    assert total == pytest.approx(exact, rel=1e-6)
    np.testing.assert_allclose(derivative, exact_derivative, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_sums_over_rows_by_weight(name: str, kind: str) -> None:
    loss = made(name)
    outputs, targets, weight = example(loss, kind, 12, 4, np.float64)
    total, derivative = run(loss, kind, outputs, targets, weight)
    rows = [run(loss, kind, outputs[i : i + 1], targets[i : i + 1], np.ones(1)) for i in range(12)]
    assert total == pytest.approx(sum(w * row for w, (row, _) in zip(weight, rows, strict=True)), rel=1e-12)
    np.testing.assert_allclose(derivative, weight[:, None] * np.concatenate([d for _, d in rows]), rtol=1e-12)
    nothing, zeros = run(loss, kind, outputs, targets, np.zeros(12))
    assert nothing == 0
    assert not zeros.any()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_rows_of_weight_0_do_not_count_whatever_they_hold(name: str, kind: str) -> None:
    loss = made(name)
    outputs, targets, weight = example(loss, kind, 12, 4, np.float32)
    total, derivative = run(loss, kind, outputs[2:], targets[2:], weight[2:])
    outputs[0], outputs[1], weight[:2] = np.nan, np.inf, 0
    targets[:2] = -7 if kind == "class" else np.nan
    with_others, more = run(loss, kind, outputs, targets, weight)
    assert with_others == pytest.approx(total, rel=1e-12)
    assert not more[:2].any()
    np.testing.assert_array_equal(more[2:], derivative)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_positions_are_rows(name: str, kind: str) -> None:
    """Outputs of any shape give the same numbers as the same outputs with a row for each weight."""
    loss = made(name)
    outputs, targets, weight = example(loss, kind, 12, 4, np.float32)
    total, derivative = run(loss, kind, outputs, targets, weight)
    as_images = run(loss, kind, outputs.reshape(2, 3, 2, -1), targets, weight)
    assert as_images[0] == total
    np.testing.assert_array_equal(as_images[1].reshape(derivative.shape), derivative)


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("out_shape", [(8,), (3, 8), (2, 2, 8)])
def test_dummy_rows_fit(name: str, kind: str, out_shape: tuple[int, ...]) -> None:
    loss = LOSSES.get(name.split()[0])(**({"levels": [0.2, 0.8]} if name == "quantile" else OPTIONS.get(name, {})))
    targets, weight = loss.dummy_rows(kind, out_shape)
    total, _ = run(loss, kind, np.zeros((1, *out_shape), np.float32), targets, weight)
    assert np.isfinite(total)
    judged = loss.predictions(np.zeros((len(weight), np.prod(out_shape) // len(weight)), np.float32), kind)
    assert judged.shape == (len(weight), loss.judged_width(kind, out_shape, len(weight)))


@pytest.mark.parametrize("name", list(LOSSES))
def test_outputs_that_say_values_do(name: str) -> None:
    loss = LOSSES.get(name)()
    if "real" in loss.accepts:
        values = np.random.default_rng(0).uniform(0.01, 0.99, (5, 3)).astype(np.float32)
        np.testing.assert_allclose(loss.predictions(loss.outputs_saying(values), "real"), values, rtol=1e-5)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_no_rows(name: str, kind: str) -> None:
    loss = made(name)
    total, derivative = run(loss, kind, *example(loss, kind, 0, 4, np.float32))
    assert total == 0
    assert derivative.shape[0] == 0


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("column", [0, -1])
def test_nan_shows(name: str, kind: str, column: int) -> None:
    loss = made(name)
    outputs, targets, weight = example(loss, kind, 6, 3, np.float32)
    outputs[2, column] = np.nan
    total, derivative = run(loss, kind, outputs, targets, weight)
    assert np.isnan(total)
    assert np.isnan(derivative[2, column])
    assert np.isfinite(np.delete(derivative, 2, 0)).all()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_accepts_the_width_that_it_asks_for_and_no_other(name: str, kind: str) -> None:
    loss = made(name)
    classes = 2 if loss.outputs_for(kind, 5, 5) == 1 else 5
    width = loss.outputs_for(kind, classes, 5)
    target_shape = () if kind == "class" else (5,)
    loss.check_outputs((width,), kind, classes, target_shape)
    with pytest.raises(UserError, match=f"{loss.name}(.|\n)*{width - 1 or 2} output"):
        loss.check_outputs((width - 1 or 2,), kind, classes, target_shape)
    assert loss.target_kind in loss.accepts
    for other in {"class", "real"} - set(loss.accepts):
        with pytest.raises(UserError, match="does not fit the targets"):
            loss.check_outputs((width,), other, classes, (5,))


@pytest.mark.parametrize("name", list(LOSSES))
def test_name_and_job_file(name: str) -> None:
    loss = LOSSES.get(name)()
    assert loss.name == name
    assert part_from(LOSSES, spec_of(LOSSES, loss), "loss") == loss
