"""Clipping by the global norm."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.kernels.norms import sum_of_squares
from hpctrain.optim.clipping import Clip


@pytest.mark.parametrize("size", [0, 1, 7, 16, 1000, 4099])
def test_sum_of_squares(size: int) -> None:
    values = np.random.default_rng(size).normal(0, 3, size).astype(np.float32)
    assert sum_of_squares(values) == pytest.approx(math.fsum(float(v) ** 2 for v in values), rel=1e-13)
    assert sum_of_squares(values) == sum_of_squares(values.copy())


def test_long_gradients_are_shortened_to_the_limit() -> None:
    grads = np.array([3, -4, 0], np.float32)
    factor, norm = Clip(norm=1.0).factor(grads, 0.5)
    assert norm == 2.5
    assert factor == pytest.approx(0.4)
    assert np.linalg.norm(grads * 0.5 * factor) == pytest.approx(1.0)
    assert grads.tolist() == [3, -4, 0]


def test_short_gradients_are_left_alone() -> None:
    assert Clip(norm=2.5).factor(np.array([3, 4], np.float32), 0.5) == (1.0, 2.5)
    assert Clip(norm=1.0).factor(np.zeros(5, np.float32), 0.5) == (1.0, 0.0)
    assert Clip().factor(np.array([3, 4], np.float32), 0.5) == (1.0, None)


def test_huge_gradients_do_not_overflow() -> None:
    factor, norm = Clip(norm=1.0).factor(np.full(4, 3e38, np.float32), 1.0)
    assert norm == pytest.approx(6e38)
    assert factor == pytest.approx(1 / 6e38)


def test_broken_gradients_stay_broken() -> None:
    factor, norm = Clip(norm=1.0).factor(np.array([1, np.nan], np.float32), 1.0)
    assert math.isnan(factor)
    assert math.isnan(norm)
    factor, norm = Clip(norm=1.0).factor(np.array([1, np.inf], np.float32), 1.0)
    assert norm == math.inf
    assert math.isnan(factor * math.inf)


@pytest.mark.parametrize("norm", [0, -1.0, math.inf])
def test_bad_limits(norm: float) -> None:
    with pytest.raises(UserError, match="clip.norm"):
        Clip.checked({"norm": norm}, "clip")
