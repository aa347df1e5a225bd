"""Every registered schedule: pure, bounded, with a warm-up in a line, and honest about what it depends on."""

from __future__ import annotations

import math

import pytest

from hpctrain.optim import SCHEDULES
from hpctrain.options import part_from, spec_of

TOTAL, EPOCH = 1000, 50
names = pytest.mark.parametrize("name", list(SCHEDULES))


@names
def test_stays_between_zero_and_one(name: str) -> None:
    schedule = SCHEDULES.get(name)(warmup=20)
    values = [schedule.multiplier(step, TOTAL, EPOCH) for step in range(TOTAL)]
    assert all(math.isfinite(value) and 0 <= value <= 1 for value in values)
    assert values == [schedule.multiplier(step, TOTAL, EPOCH) for step in range(TOTAL)]


@names
@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (1, 1), ("40 steps", 40), ("1 epoch", 50), ("0.5 epochs", 25)])
def test_warms_up_in_a_line(name: str, warmup: str | int, steps: int) -> None:
    schedule = SCHEDULES.get(name)(warmup=warmup)
    for step in range(steps):
        assert schedule.multiplier(step, TOTAL, EPOCH) == pytest.approx((step + 1) / steps)
    assert schedule.multiplier(steps, TOTAL, EPOCH) == pytest.approx(1.0)


@names
def test_says_whether_it_depends_on_the_length(name: str) -> None:
    schedule = SCHEDULES.get(name)(warmup=20)
    differs = any(
        schedule.multiplier(step, TOTAL, EPOCH) != schedule.multiplier(step, 2 * TOTAL, EPOCH) for step in range(TOTAL)
    )
    assert schedule.depends_on_length == differs


@names
def test_bears_short_runs(name: str) -> None:
    schedule = SCHEDULES.get(name)(warmup="2 epochs")
    for total in (1, 2, 99, 100, 101):
        assert all(0 < schedule.multiplier(step, total, EPOCH) <= 1 for step in range(total))


@names
def test_job_file(name: str) -> None:
    schedule = SCHEDULES.get(name)(warmup="2 epochs")
    assert part_from(SCHEDULES, spec_of(SCHEDULES, schedule), "schedule") == schedule
