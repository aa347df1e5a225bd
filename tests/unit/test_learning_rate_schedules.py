"""The values of schedules, and how their lengths are written and checked."""

from __future__ import annotations

import math

import pytest

from hpctrain.errors import UserError
from hpctrain.optim.plateau import PlateauState, ReduceOnPlateau
from hpctrain.optim.schedules import (
    Constant,
    Cosine,
    Exponential,
    MultiStep,
    OneCycle,
    Polynomial,
    Schedule,
    Step,
)


def test_step_drops_at_fixed_places_of_the_run() -> None:
    schedule = Step(every="2 epochs", factor=0.5, warmup=10)
    steps = (9, 10, 19, 20, 39, 40, 60)
    assert [schedule.multiplier(step, 100, 10) for step in steps] == [1, 1, 1, 0.5, 0.5, 0.25, 0.125]
    assert Step(every=7, factor=0.1).multiplier(14, 100, 10) == pytest.approx(0.01)
    assert Step(every="0.01 epochs", factor=0.5).multiplier(3, 100, 10) == 0.125  # never shorter than a step


def test_cosine_falls_to_its_floor() -> None:
    schedule = Cosine(floor=0.2)
    assert [schedule.multiplier(step, 100, 10) for step in (0, 50, 100, 150)] == pytest.approx([1, 0.6, 0.2, 0.2])
    # cos(60 degrees) = 1 / 2 after a third of the way
    assert Cosine().multiplier(30, 90, 10) == pytest.approx(0.75)


def test_cosine_takes_what_the_warm_up_leaves() -> None:
    schedule = Cosine(warmup="1 epoch")
    values = [schedule.multiplier(step, 110, 10) for step in range(111)]
    assert values[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert [values[10], values[60], values[110]] == pytest.approx([1, 0.5, 0], abs=1e-12)
    assert values[10:] == sorted(values[10:], reverse=True)


def test_exponential_falls_by_its_rate_over_each_length() -> None:
    schedule = Exponential(rate=0.5, every="1 epoch", warmup=10)
    steps = (10, 15, 20, 40)
    assert [schedule.multiplier(step, 100, 10) for step in steps] == pytest.approx([1, 0.5**0.5, 0.5, 0.125])


def test_multi_step_counts_the_milestones_passed() -> None:
    schedule = MultiStep(milestones=["3 epochs", 10, "5 epochs"], factor=0.5)
    steps = (9, 10, 29, 30, 49, 50, 99)
    assert [schedule.multiplier(step, 100, 10) for step in steps] == [1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_polynomial_falls_to_its_floor() -> None:
    schedule = Polynomial(power=2, floor=0.2, warmup=10)
    steps = (10, 60, 110, 150)
    assert [schedule.multiplier(step, 110, 10) for step in steps] == pytest.approx([1, 0.2 + 0.8 / 4, 0.2, 0.2])
    assert Polynomial().multiplier(25, 100, 10) == pytest.approx(0.75)


def test_one_cycle_rises_and_falls_in_cosines() -> None:
    schedule = OneCycle(peak=0.25, start=0.1, final=0.01)
    values = [schedule.multiplier(step, 100, 10) for step in range(101)]
    assert [values[0], values[24], values[99], values[100]] == pytest.approx([0.1, 1, 0.01, 0.01])
    assert values[:25] == sorted(values[:25])
    assert values[24:] == sorted(values[24:], reverse=True)
    # Half way up and half way down, a cosine is half way between.
    assert OneCycle(peak=51 / 101, start=0.2).multiplier(25, 101, 10) == pytest.approx(0.6)
    assert OneCycle(peak=51 / 101, final=0.2).multiplier(75, 101, 10) == pytest.approx(0.6)


@pytest.mark.parametrize(("total", "peak"), [(100, 0.3), (37, 0.3), (101, 0.5), (10, 0.25), (3, 0.3), (2, 0.9)])
def test_one_cycle_is_pytorchs(total: int, peak: float) -> None:
    """`OneCycleLR`: phases that end at pct_start x total_steps - 1 and at total_steps - 1, each half a cosine."""
    low, least = 1 / 25, 1 / 25 / 1e4
    schedule = OneCycle(peak=peak, start=low, final=least)
    ends = [peak * total - 1, total - 1]
    for step in range(total):
        rises = step <= ends[0]
        begin, end = (low, 1.0) if rises else (1.0, least)
        part = step / ends[0] if rises else (step - ends[0]) / (ends[1] - ends[0])
        expected = end + (begin - end) / 2 * (1 + math.cos(math.pi * part))
        assert schedule.multiplier(step, total, 10) == pytest.approx(expected, rel=1e-12)


def follow(schedule: ReduceOnPlateau, values: list[float], higher_is_better: bool = False) -> list[float]:
    state, factors = PlateauState(), []
    for value in values:
        state = schedule.judge(state, value, higher_is_better)
        factors.append(state.factor)
    return factors


def test_plateau_reduces_after_patience_epochs_without_a_better_value() -> None:
    schedule = ReduceOnPlateau(factor=0.5, patience=2)
    assert follow(schedule, [3, 2, 2, 2.5, 1, 1, 1, 1, 1]) == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert follow(schedule, [0.1, 0.2, 0.2, 0.1], higher_is_better=True) == [1, 1, 1, 0.5]
    # 0.25 better each time, which is not better enough; the best stays what it was.
    slow = [10.0, 9.75, 9.5, 9.25, 9.0]
    assert follow(ReduceOnPlateau(factor=0.5, patience=2, min_delta=0.4), slow) == [1, 1, 1, 1, 1]
    assert follow(ReduceOnPlateau(factor=0.5, patience=2, min_delta=1.0), slow) == [1, 1, 0.5, 0.5, 0.25]


def test_plateau_pauses_after_a_reduction_and_stops_at_its_floor() -> None:
    assert follow(ReduceOnPlateau(factor=0.5, patience=1, cooldown=2), [1] * 8) == [
        1,
        0.5,
        0.5,
        0.5,
        0.25,
        0.25,
        0.25,
        0.125,
    ]
    assert follow(ReduceOnPlateau(factor=0.1, patience=1, min_factor=0.05), [1] * 4) == [1, 0.1, 0.05, 0.05]


def test_plateau_takes_a_broken_value_for_no_better_one() -> None:
    nan = float("nan")
    assert follow(ReduceOnPlateau(factor=0.5, patience=2), [nan, nan, 3, 2, nan, nan]) == [1, 0.5, 0.5, 0.5, 0.5, 0.25]


def test_workers_count_only_where_a_rule_says_so() -> None:
    assert Constant().with_workers(8).workers is None
    assert Constant(scale_with_workers="linear").multiplier(0, 100, 10) == 1.0
    assert Constant(scale_with_workers="linear", workers=3).with_workers(8).multiplier(0, 100, 10) == 3.0


def test_constant() -> None:
    assert {Constant().multiplier(step, 100, 10) for step in range(100)} == {1.0}


@pytest.mark.parametrize(
    ("given", "written"),
    [(0, "0 steps"), (1, "1 step"), (100, "100 steps"), ("100", "100 steps"), ("100 steps", "100 steps")]
    + [("1 epoch", "1 epoch"), ("1.0 epochs", "1 epoch"), ("0.5 epoch", "0.5 epochs"), (12345678, "12345678 steps")],
)
def test_lengths_are_written_in_one_way(given: str | int, written: str) -> None:
    schedule = Constant(warmup=given)
    assert schedule.warmup == written
    assert Constant(warmup=written) == schedule


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        (
            Constant,
            {"warmup": "soon"},
            r"schedule.warmup = 'soon': must be a whole number of steps, or a length such as",
        ),
        (Constant, {"warmup": -5}, r"schedule.warmup = -5: must be"),
        (Constant, {"warmup": 2.5}, r"schedule.warmup = 2.5: must be"),
        (Constant, {"warmup": True}, r"schedule.warmup = True: must be"),
        (Constant, {"warmup": "10 min"}, r"schedule.warmup = '10 min': .*machine's speed"),
        (Step, {"every": 0}, r"schedule.every = 0: must be longer than 0 steps"),
        (Step, {"factor": 0}, r"schedule.factor = 0: .*greater than 0"),
        (Step, {"factor": 1.5}, r"schedule.factor = 1.5: .*less than or equal to 1"),
        (Cosine, {"floor": -0.1}, r"schedule.floor = -0.1: .*greater than or equal to 0"),
        (Exponential, {"rate": 0}, r"schedule.rate = 0: .*greater than 0"),
        (MultiStep, {"milestones": []}, r"schedule.milestones = \[\]: .*at least 1 item"),
        (MultiStep, {"milestones": ["soon"]}, r"schedule.milestones.0 = 'soon': must be a whole number of steps"),
        (Polynomial, {"power": 0}, r"schedule.power = 0: .*greater than 0"),
        (OneCycle, {"peak": 1}, r"schedule.peak = 1: .*less than 1"),
        (OneCycle, {"warmup": 5}, r"schedule.warmup = 5: must be left out"),
        (ReduceOnPlateau, {"patience": 0}, r"schedule.patience = 0: .*greater than or equal to 1"),
        (ReduceOnPlateau, {"factor": 1}, r"schedule.factor = 1: .*less than 1"),
        (
            Constant,
            {"scale_with_workers": "log"},
            r"schedule.scale_with_workers = 'log': must be 'none', 'linear' or 'sqrt'",
        ),
        (Constant, {"base_workers": 0}, r"schedule.base_workers = 0: .*greater than or equal to 1"),
        (Cosine, {"flor": 0.1}, r"schedule.flor.*did you mean 'floor'"),
    ],
)
def test_bad_options_name_the_key(part: type[Schedule], options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        part.checked(options, "schedule")
