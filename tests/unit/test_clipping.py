"""Clipping by value and by the global norm."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.kernels.norms import sum_of_squares
from hpctrain.optim.clipping import Clip
from hpctrain.optim.table import UpdateTable


def factor(clip: Clip, grads: np.ndarray, scale: float) -> tuple[float, float | None]:
    table = UpdateTable(np.array([0]), np.array([len(grads)]), np.ones(1, np.float32), np.ones(1, np.float32))
    return clip.factor(grads, scale, table)


@pytest.mark.parametrize("size", [0, 1, 7, 16, 1000, 4099])
def test_sum_of_squares(size: int) -> None:
    values = np.random.default_rng(size).normal(0, 3, size).astype(np.float32)
    bounds = np.array([0]), np.array([size])
    assert sum_of_squares(values, *bounds) == pytest.approx(math.fsum(float(v) ** 2 for v in values), rel=1e-13)
    assert sum_of_squares(values, *bounds) == sum_of_squares(values.copy(), *bounds)
    halves = np.array([0, size // 2]), np.array([size // 3, size])
    kept = [*values[: size // 3], *values[size // 2 :]]
    assert sum_of_squares(values, *halves) == pytest.approx(math.fsum(float(v) ** 2 for v in kept), rel=1e-13)


def test_long_gradients_are_shortened_to_the_limit() -> None:
    grads = np.array([3, -4, 0], np.float32)
    found, norm = factor(Clip(norm=1.0), grads, 0.5)
    assert norm == 2.5
    assert found == pytest.approx(0.4)
    assert np.linalg.norm(grads * 0.5 * found) == pytest.approx(1.0)
    assert grads.tolist() == [3, -4, 0]


def test_short_gradients_are_left_alone() -> None:
    assert factor(Clip(norm=2.5), np.array([3, 4], np.float32), 0.5) == (1.0, 2.5)
    assert factor(Clip(norm=1.0), np.zeros(5, np.float32), 0.5) == (1.0, 0.0)
    assert factor(Clip(), np.array([3, 4], np.float32), 0.5) == (1.0, None)


def test_huge_gradients_do_not_overflow() -> None:
    found, norm = factor(Clip(norm=1.0), np.full(4, 3e38, np.float32), 1.0)
    assert norm == pytest.approx(6e38)
    assert found == pytest.approx(1 / 6e38)


def test_broken_gradients_stay_broken() -> None:
    found, norm = factor(Clip(norm=1.0), np.array([1, np.nan], np.float32), 1.0)
    assert math.isnan(found)
    assert math.isnan(norm)
    found, norm = factor(Clip(norm=1.0), np.array([1, np.inf], np.float32), 1.0)
    assert norm == math.inf
    assert math.isnan(found * math.inf)


def test_elements_beyond_the_value_are_set_to_it() -> None:
    grads = np.array([3, -4, 0, 1, -0.5], np.float32)
    assert factor(Clip(value=0.5), grads, 0.25) == (1.0, pytest.approx(0.25 * math.sqrt(26.25)))
    assert (0.25 * grads).tolist() == [0.5, -0.5, 0, 0.25, -0.125]


def test_values_are_limited_before_the_norm() -> None:
    grads = np.array([30, -4, 0], np.float32)
    found, norm = factor(Clip(value=3.0, norm=1.0), grads, 1.0)
    assert norm == pytest.approx(math.sqrt(916))  # as it was before any clipping
    assert found == pytest.approx(1 / math.sqrt(18))
    assert grads.tolist() == [3, -3, 0]


@pytest.mark.parametrize("scale", [0.0, 1e-300, math.nan])
def test_a_limit_beyond_float32_is_none(scale: float) -> None:
    grads = np.array([3e38, -4], np.float32)
    factor(Clip(value=3.0), grads, scale)
    assert grads.tolist() == np.array([3e38, -4], np.float32).tolist()


def test_a_value_limit_does_not_make_broken_gradients_sound() -> None:
    grads = np.array([np.inf, -np.inf, np.nan, 7], np.float32)
    _, norm = factor(Clip(value=1.0), grads, 1.0)
    assert math.isnan(norm)
    np.testing.assert_array_equal(grads, np.array([np.inf, -np.inf, np.nan, 1], np.float32))


def test_only_what_is_trained_counts() -> None:
    table = UpdateTable(np.array([0, 4]), np.array([2, 5]), np.ones(2, np.float32), np.ones(2, np.float32))
    grads = np.array([3, 0, 100, 100, 4], np.float32)
    assert Clip(norm=1.0).factor(grads, 1.0, table) == (pytest.approx(0.2), 5.0)
    assert Clip(value=1.0).factor(grads, 1.0, table) == (1.0, 5.0)
    assert grads.tolist() == [1, 0, 100, 100, 1]


@pytest.mark.parametrize("value", [0, -1.0, math.inf])
def test_bad_values(value: float) -> None:
    with pytest.raises(UserError, match="clip.value"):
        Clip.checked({"value": value}, "clip")


@pytest.mark.parametrize("norm", [0, -1.0, math.inf])
def test_bad_limits(norm: float) -> None:
    with pytest.raises(UserError, match="clip.norm"):
        Clip.checked({"norm": norm}, "clip")
