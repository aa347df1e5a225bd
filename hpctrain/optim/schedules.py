"""Schedules: what the learning rate is multiplied by at each step.  Pure functions: there is nothing to checkpoint.

`plateau.py` has the one that follows the validation results.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

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
    scale_with_workers  "linear": the learning rate is that of `base_workers`, times workers / base_workers (Goyal et
            al. 2017); "sqrt": times the root of that (Krizhevsky 2014); "none".  For a global batch that is raised with
            the number of workers
    base_workers  number of workers that the learning rate is given for
    workers  number of workers that the rule counts; default: those that the run begins with
    """

    depends_on_length: ClassVar[bool] = False
    """Whether `multiplier` looks at `total_steps`: such a run cannot be made longer or shorter when it is resumed."""
    rises_by_itself: ClassVar[bool] = False
    """Whether the shape has a rise of its own, in place of the warm-up."""

    warmup: Length = "0 steps"
    scale_with_workers: Literal["none", "linear", "sqrt"] = "none"
    base_workers: int = Field(1, ge=1)
    workers: int | None = Field(None, ge=1)

    def multiplier(self, step: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return the multiplier of the learning rate for update `step`, counted from 0 over the whole run."""
        warmup = Duration.parse(self.warmup, "warmup").in_steps(steps_per_epoch)
        value = self.worker_factor * self.shape(step, warmup, total_steps, steps_per_epoch)
        return (step + 1) / warmup * value if step < warmup else value

    @property
    def worker_factor(self) -> float:
        """What `scale_with_workers` multiplies the learning rate by; 1 as long as `workers` is not known."""
        ratio = (self.workers or self.base_workers) / self.base_workers
        return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.scale_with_workers]

    def with_workers(self, workers: int) -> Schedule:
        """Return the schedule with the number of workers filled in, where it counts and is not given."""
        if self.scale_with_workers == "none" or self.workers is not None:
            return self
        return self.model_copy(update={"workers": workers})

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


class Exponential(Schedule):
    """The learning rate falls evenly from the end of the warm-up on: it is multiplied by `rate` over each `every`.

    rate   in (0, 1]
    every  "1 epoch", "1000 steps", or a number of steps
    """

    rate: float = Field(0.95, gt=0, le=1)
    every: Annotated[Length, AfterValidator(_above_zero)] = "1 epoch"

    def shape(self, step: int, warmup: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return rate^((step - warmup) / every)."""
        every = max(1, Duration.parse(self.every, "every").in_steps(steps_per_epoch))
        return self.rate ** (max(0, step - warmup) / every)


class MultiStep(Schedule):
    """The learning rate is multiplied by `factor` at each milestone, counted from the start of the run.

    milestones  list of places, such as ["30 epochs", "60 epochs"] or numbers of steps; in any order
    factor      in (0, 1]
    """

    milestones: tuple[Annotated[Length, AfterValidator(_above_zero)], ...] = Field(
        ("30 epochs", "60 epochs", "80 epochs"), min_length=1
    )
    factor: float = Field(0.1, gt=0, le=1)

    def shape(self, step: int, warmup: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return factor^(number of milestones that have passed)."""
        places = [Duration.parse(place, "milestones").in_steps(steps_per_epoch) for place in self.milestones]
        return self.factor ** sum(place <= step for place in places)


class Polynomial(Schedule):
    """The learning rate falls from its full value at the end of the warm-up to `floor` of it at the run's end.

    floor + (1 - floor) (1 - (step - warmup) / (total_steps - warmup))^power; power 1 is a line.

    power  above 0
    floor  in [0, 1]
    """

    depends_on_length: ClassVar[bool] = True

    power: float = Field(1.0, gt=0)
    floor: float = Field(0.0, ge=0, le=1)

    def shape(self, step: int, warmup: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return the polynomial's value; 1 during the warm-up, `floor` beyond the end."""
        done = (step - warmup) / max(1, total_steps - warmup)
        return self.floor + (1 - self.floor) * (1 - min(1.0, max(0.0, done))) ** self.power


class OneCycle(Schedule):
    """Up from `start` of the learning rate to all of it, and down to `final` of it at the run's end, both in cosines.

    Smith and Topin 2018, in the form that fast.ai and PyTorch gave it (`OneCycleLR`, to the step); momentum is not
    cycled.  It has its own rise: `warmup` cannot be given.

    peak   where in the run the learning rate is highest, in (0, 1)
    start  in (0, 1]
    final  in [0, 1]
    """

    depends_on_length: ClassVar[bool] = True
    rises_by_itself: ClassVar[bool] = True

    warmup: Length = "0 steps"
    peak: float = Field(0.3, gt=0, lt=1)
    start: float = Field(0.04, gt=0, le=1)
    final: float = Field(4e-6, ge=0, le=1)

    @field_validator("warmup")
    @classmethod
    def _no_warmup(cls, value: str) -> str:
        if Duration.parse(value, "").value:
            raise ValueError("must be left out: one_cycle rises by itself, until `peak` of the run")
        return value

    def shape(self, step: int, warmup: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return 1 at update peak x total_steps - 1, and half cosines from `start` and to `final` around it.

        That is the last of the rise's updates, counted from 0; it need not be a whole number.
        """
        top, last = self.peak * total_steps - 1, total_steps - 1
        if step < top:
            lower, way = self.start, step / top
        else:
            lower, way = self.final, 1 - min(1.0, (step - top) / (last - top))
        return lower + (1 - lower) * 0.5 * (1 - math.cos(math.pi * way))
