"""`MinMax`: the range of the training part becomes a given one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import field_validator

from hpctrain.data.prepare.base import Fitted, LearningStep, Line, Moments, Numbers


class MinMax(LearningStep, Line):
    """low + (high - low) (x - min) / (max - min); what lies beyond the training part's range, lies beyond `to` too.

    to        [low, high]; numbers that are constant in the training part become low
    min, max  datasets of `file`: one number, one a column, or one for each number of an example
    """

    name: ClassVar[str] = "min_max"
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
        """Keep the extremes; infinite where the range between them is."""
        with np.errstate(over="ignore"):
            span = moments.maximum - moments.minimum
        return {"min": moments.minimum, "max": np.where(np.isinf(span), np.inf, moments.maximum)}

    def line(self, fitted: Fitted) -> tuple[Numbers, Numbers, Numbers]:
        """Move the range to [low, high]; where it is empty, to low."""
        span, (low, high) = fitted["max"] - fitted["min"], self.to
        return fitted["min"], (high - low) / np.where(span > 0, span, high - low), low
