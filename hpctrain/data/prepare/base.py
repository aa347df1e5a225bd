"""`Step`: the contract of a preparation, and `Moments`: the statistics that it may ask for."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from hpctrain.data.prepare.elements import ColumnList, Elements
from hpctrain.options import Part

Fitted = dict[str, np.ndarray]
"""What a step has learned from the training part, by name: float64 arrays (elements.count,)."""

Numbers = np.ndarray | float

Operands = tuple[np.ndarray | float, ...]

FilePath = Annotated[str, Field(min_length=1), AfterValidator(lambda path: os.path.abspath(os.path.expanduser(path)))]


@dataclass(frozen=True)
class Moments:
    """Statistics of the training part's numbers, float64 (count,) each; NaN and what does not count are left out.

    count, mean, std (of all: divided by the count), minimum, maximum
    """

    count: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray


class Step(Part):
    """Base of all preparations: a map of an example's numbers, in float64, each by itself.

    `apply` works in place on lines of numbers, (n, width), C-contiguous; `operands` makes, once, what it needs beside
    them, spread over a line so that columns that are not meant stay bit for bit.
    """

    name: ClassVar[str]
    """The name under which the step is registered."""

    turns_back: ClassVar[bool] = False
    """Whether there is an `invert`, so that targets can be prepared."""

    columns: ColumnList | None = None

    @property
    def sharing(self) -> str:
        """Which numbers of an example share a number of the step's; see `Elements.axis`."""
        return "channel"

    @property
    def learns(self) -> bool:
        """Whether `learn` must see statistics of the training part."""
        return False

    @property
    def stored(self) -> dict[str, str]:
        """The datasets of the option `file` that hold what would be learned: name -> path."""
        return {}

    def learn(self, moments: Moments) -> Fitted:
        """Return what the step keeps of the statistics: not finite where float64 does not hold it."""
        return {}

    @abstractmethod
    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return what `apply` and `invert` are given beside the numbers; `UserError` for options that do not fit."""

    @abstractmethod
    def apply(self, lines: np.ndarray, operands: Operands) -> None:
        """Prepare float64 lines (n, width) in place; a number that has no image becomes NaN or infinite."""

    def invert(self, lines: np.ndarray, operands: Operands) -> None:
        """Turn prepared float64 lines (n, width) back in place; only where `turns_back`."""
        raise TypeError(f"{self.name} cannot be turned back")


class Line(Step):
    """Base of the steps that are a line through each number: y = (x - shift) factor + offset.

    Where it is the last step, it is computed together with the cast to float32.
    """

    turns_back: ClassVar[bool] = True

    @abstractmethod
    def line(self, fitted: Fitted) -> tuple[Numbers, Numbers, Numbers]:
        """Return shift, factor (not 0) and offset, each one number or an array (elements.count,)."""

    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return shift, factor and offset, each a line: 0, 1 and 0 where columns are not meant."""
        shift, factor, offset = self.line(fitted)
        return elements.spread(shift, 0.0), elements.spread(factor, 1.0), elements.spread(offset, 0.0)

    def apply(self, lines: np.ndarray, operands: Operands) -> None:
        """Subtract, multiply, add."""
        shift, factor, offset = operands
        lines -= shift
        lines *= factor
        lines += offset

    def invert(self, lines: np.ndarray, operands: Operands) -> None:
        """Subtract, divide, add."""
        shift, factor, offset = operands
        lines -= offset
        lines /= factor
        lines += shift


class LearningStep(Step):
    """Base of the steps whose numbers come from the training part, or from a file.

    axis  "column": each number of an example has a statistic of its own; "channel": all of a column have one together;
          "all": all numbers have one
    file  an HDF5 file with the statistics, instead of learning them; further options name its datasets
    """

    datasets: ClassVar[tuple[str, ...]]
    """The statistics, each an option too: the path of its dataset in `file`; by default its own name."""

    axis: Literal["column", "channel", "all"] = "column"
    file: FilePath | None = None

    @model_validator(mode="after")
    def _datasets_are_in_a_file(self) -> LearningStep:
        given = [name for name in self.datasets if getattr(self, name) is not None]
        if given and self.file is None:
            raise ValueError(f"{given[0]} names a dataset of file, which is not given")
        return self

    @property
    def stored(self) -> dict[str, str]:
        """The datasets of the option `file`."""
        return {name: getattr(self, name) or name for name in self.datasets} if self.file else {}

    @property
    def sharing(self) -> str:
        """Which numbers of an example share a number of the step's; see `Elements.axis`."""
        return self.axis

    @property
    def learns(self) -> bool:
        """Whether `learn` must see statistics of the training part."""
        return self.file is None
