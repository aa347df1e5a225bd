"""The values of schedules, and how their lengths are written and checked."""

from __future__ import annotations

import pytest

from hpctrain.errors import UserError
from hpctrain.optim.schedules import Constant, Cosine, Schedule, Step


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
        (Cosine, {"flor": 0.1}, r"schedule.flor.*did you mean 'floor'"),
    ],
)
def test_bad_options_name_the_key(part: type[Schedule], options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        part.checked(options, "schedule")
