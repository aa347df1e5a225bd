"""`MinMax`: the range of the training part becomes a given one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import field_validator

from hpctrain.data.prepare.base import Fitted, LearningStep, Moments, Operands
from hpctrain.data.prepare.elements import Elements


class MinMax(LearningStep):
    """low + (high - low) (x - min) / (max - min); what lies beyond the training part's range, lies beyond `to` too.

    to        [low, high]; numbers that are constant in the training part become low
    min, max  datasets of `file`: one number, one a column, or one for each number of an example
    """

    name: ClassVar[str] = "min_max"
    turns_back: ClassVar[bool] = True
    datasets: ClassVar[tuple[str, ...]] = ("min", "max")

    to: tuple[float, float] = (0.0, 1.0)
    min: str | None = None
    max: str | None = None

    @field_validator("to")
    @classmethod
    def _rises(cls, to: tuple[float, float]) -> tuple[float, float]:
        if to[0] >= to[1]:
            raise ValueError("must be [low, high] with low below high")
        return to

    def learn(self, moments: Moments) -> Fitted:
        """Keep the extremes."""
        return {"min": moments.minimum, "max": moments.maximum}

    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return what is subtracted, divided by, multiplied by and added: nothing where columns are not meant."""
        least, span = fitted["min"], fitted["max"] - fitted["min"]
        low, high = self.to
        return (
            elements.spread(least, 0.0),
            elements.spread(np.where(span > 0, span, 1.0), 1.0),
            elements.spread(high - low, 1.0),
            elements.spread(low, 0.0),
        )

    def apply(self, lines: np.ndarray, operands: Operands) -> None:
        """Move the range to [low, high]."""
        least, span, factor, low = operands
        lines -= least
        lines /= span
        lines *= factor
        lines += low

    def invert(self, lines: np.ndarray, operands: Operands) -> None:
        """Move [low, high] to the range."""
        least, span, factor, low = operands
        lines -= low
        lines /= factor
        lines *= span
        lines += least
