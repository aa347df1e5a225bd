"""When lines are due, and the moving average."""

from __future__ import annotations

import pytest

from hpctrain.duration import Duration
from hpctrain.errors import UserError
from hpctrain.monitor.pace import Rate, Throttle


def lines(
    throttle: Throttle, seconds: float, step_s: float, steps_per_epoch: int = 100, start_s: float = 1000.0
) -> list[int]:
    """Return the steps at which lines are due in a run of steps of equal length."""
    throttle.start(0, steps_per_epoch, start_s)
    return [step for step in range(1, int(seconds / step_s) + 1) if throttle.due(step, start_s + step * step_s)]


def test_a_time_is_kept() -> None:
    assert lines(Throttle("2 s"), 11, 0.5) == [4, 8, 12, 16, 20]
    assert lines(Throttle(2.0), 11, 0.5) == [4, 8, 12, 16, 20]


def test_zero_means_every_step() -> None:
    assert lines(Throttle(0), 2, 0.5) == [1, 2, 3, 4]


@pytest.mark.parametrize("growing", [True, False])
def test_steps_and_epochs_are_kept_exactly(growing: bool) -> None:
    assert lines(Throttle("30 steps", growing), 100, 1.0) == [30, 60, 90]
    assert lines(Throttle(Duration(0.5, "epochs"), growing), 160, 1.0) == [50, 100, 150]
    throttle = Throttle("30 steps", growing)
    throttle.start(45, 100, 0.0)  # resumed
    assert [step for step in range(46, 130) if throttle.due(step, step)] == [60, 90, 120]


def test_a_growing_time_keeps_a_long_log_short() -> None:
    minute = lines(Throttle("1 s", growing=True), 60, 0.1)
    assert minute[:5] == [10, 20, 30, 40, 50]
    assert 30 < len(minute) < 50
    day = lines(Throttle("1 s", growing=True), 86_400, 1.0)
    assert 200 < len(day) < 300
    gaps = [later - earlier for earlier, later in zip(day, day[1:], strict=False)]
    assert max(gaps) == 600
    assert all(gap <= max(2, 0.05 * step + 1) for gap, step in zip(gaps, day, strict=False))


def test_a_slow_wish_is_kept() -> None:
    assert lines(Throttle("20 min", growing=True), 7200, 60) == [20, 40, 60, 80, 100, 120]


def test_what_is_no_length_is_refused() -> None:
    with pytest.raises(UserError, match="log_every"):
        Throttle("often")


def test_the_rate_is_that_of_the_window() -> None:
    rate = Rate(window_s=10)
    assert rate.update(0, 0.0) is None
    assert rate.update(100, 1.0) == 100
    for second in range(2, 21):
        rate.update(100 * second, float(second))
    assert rate.update(2010, 30.0) == pytest.approx(1.0)  # slow for ten seconds: what was before is forgotten
