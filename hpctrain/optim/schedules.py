"""Schedules: what the learning rate is multiplied by at each step.  Pure functions: there is nothing to checkpoint."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from hpctrain.duration import Duration
from hpctrain.errors import UserError
from hpctrain.options import Part


def _length(value: object) -> str:
    """Check a length in steps or epochs (a bare number: steps) and write it in one way: "100 steps", "1 epoch"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(_LENGTH_HELP)
    try:
        length = Duration.parse(value, "", default_unit="steps")
    except UserError:
        raise ValueError(_LENGTH_HELP) from None
    if length.unit == "seconds":
        raise ValueError(f"{_LENGTH_HELP}; a time would make the learning rate depend on the machine's speed")
    number = int(length.value) if length.value == int(length.value) else length.value
    return f"{number} {length.unit if number != 1 else length.unit.removesuffix('s')}"


def _above_zero(text: str) -> str:
    if not Duration.parse(text, "").value:
        raise ValueError("must be longer than 0 steps")
    return text


_LENGTH_HELP = 'must be a whole number of steps, or a length such as "100 steps" or "0.5 epochs"'
Length = Annotated[str, BeforeValidator(_length)]


class Schedule(Part):
    """Base of all schedules: a linear warm-up times a shape.

    warmup  the first steps rise in a line from near zero to the full learning rate: step i
            (from 0) takes (i + 1) / warmup of it (Goyal et al. 2017).  "100 steps", "1 epoch", or a number of steps
    """

    depends_on_length: ClassVar[bool] = False
    """Whether `multiplier` looks at `total_steps`: such a run cannot be made longer or shorter when it is resumed."""

    warmup: Length = "0 steps"

    def multiplier(self, step: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return the multiplier of the learning rate for update `step`, counted from 0 over the whole run."""
        warmup = Duration.parse(self.warmup, "warmup").in_steps(steps_per_epoch)
        if step < warmup:
            return (step + 1) / warmup * self.shape(step, warmup, total_steps, steps_per_epoch)
        return self.shape(step, warmup, total_steps, steps_per_epoch)

    @abstractmethod
    def shape(self, step: int, warmup: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return the multiplier without warm-up; `warmup` is its length in steps."""


class Constant(Schedule):
    """The same learning rate throughout, after the warm-up."""

    def shape(self, step: int, warmup: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return 1."""
        return 1.0


class Step(Schedule):
    """The learning rate is multiplied by `factor` each time that `every` has passed, counted from the start of the run.

    every   "30 epochs", "1000 steps", or a number of steps
    factor  in (0, 1]
    """

    every: Annotated[Length, AfterValidator(_above_zero)] = "10 epochs"
    factor: float = Field(0.1, gt=0, le=1)

    def shape(self, step: int, warmup: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return factor^floor(step / every)."""
        every = max(1, Duration.parse(self.every, "every").in_steps(steps_per_epoch))
        return self.factor ** (step // every)


class Cosine(Schedule):
    """Half a cosine from the full learning rate at the end of the warm-up to `floor` of it at the run's end.

    floor + (1 - floor) (1 + cos(pi (step - warmup) / (total_steps - warmup))) / 2 (Loshchilov and Hutter 2017).

    floor  in [0, 1]
    """

    depends_on_length: ClassVar[bool] = True

    floor: float = Field(0.0, ge=0, le=1)

    def shape(self, step: int, warmup: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return the cosine's value; 1 during the warm-up, `floor` beyond the end."""
        done = (step - warmup) / max(1, total_steps - warmup)
        done = min(1.0, max(0.0, done))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))
