"""Every registered schedule: pure, bounded, with a warm-up in a line, and honest about what it depends on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpctrain.errors import UserError
from hpctrain.optim import SCHEDULES
from hpctrain.optim.schedules import Schedule
from hpctrain.options import part_from, spec_of

TOTAL, EPOCH = 1000, 50
names = pytest.mark.parametrize("name", list(SCHEDULES))


def made(name: str, warmup: str | int = 0, **options: Any) -> Schedule:
    """A schedule with a warm-up, where it does not rise by itself."""
    schedule = SCHEDULES.get(name)
    return schedule(**options) if schedule.rises_by_itself else schedule(warmup=warmup, **options)


@names
def test_stays_between_zero_and_one(name: str) -> None:
    schedule = made(name, 20)
    values = [schedule.multiplier(step, TOTAL, EPOCH) for step in range(TOTAL)]
    assert all(math.isfinite(value) and 0 <= value <= 1 for value in values)
    assert values == [schedule.multiplier(step, TOTAL, EPOCH) for step in range(TOTAL)]


@names
@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (1, 1), ("40 steps", 40), ("1 epoch", 50), ("0.5 epochs", 25)])
def test_warms_up_in_a_line(name: str, warmup: str | int, steps: int) -> None:
    if SCHEDULES.get(name).rises_by_itself:
        with pytest.raises(UserError, match="schedule.warmup = .* must be left out"):
            SCHEDULES.get(name).checked({"warmup": "1 epoch"}, "schedule")
        return
    schedule = made(name, warmup)
    for step in range(steps):
        assert schedule.multiplier(step, TOTAL, EPOCH) == pytest.approx((step + 1) / steps)
    assert schedule.multiplier(steps, TOTAL, EPOCH) == pytest.approx(1.0)


@names
def test_says_whether_it_depends_on_the_length(name: str) -> None:
    schedule = made(name, 20)
    differs = any(
        schedule.multiplier(step, TOTAL, EPOCH) != schedule.multiplier(step, 2 * TOTAL, EPOCH) for step in range(TOTAL)
    )
    assert schedule.depends_on_length == differs


@names
def test_bears_short_runs(name: str) -> None:
    schedule = made(name, "2 epochs")
    for total in (1, 2, 99, 100, 101):
        assert all(0 < schedule.multiplier(step, total, EPOCH) <= 1 for step in range(total))


@names
def test_job_file(name: str) -> None:
    schedule = made(name, "2 epochs")
    assert part_from(SCHEDULES, spec_of(SCHEDULES, schedule), "schedule") == schedule


@names
@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_scales_with_the_workers(name: str, rule: str, factor: float) -> None:
    plain = made(name, 20)
    scaled = made(name, 20, scale_with_workers=rule, base_workers=2).with_workers(8)
    for step in (0, 10, 20, 500, TOTAL - 1):
        assert scaled.multiplier(step, TOTAL, EPOCH) == pytest.approx(factor * plain.multiplier(step, TOTAL, EPOCH))
    assert part_from(SCHEDULES, spec_of(SCHEDULES, scaled), "schedule") == scaled
    # What the run began with stays, whoever resumes it.
    assert scaled.with_workers(3) == scaled
