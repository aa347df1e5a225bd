"""`Clip`: numbers beyond bounds are set to them."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from pydantic import model_validator

from hpctrain.data.prepare.base import Fitted, Operands, Step
from hpctrain.data.prepare.elements import Elements


class Clip(Step):
    """max(low, min(high, x)); infinite numbers become bounds, NaN stays.

    low, high  one of them or both
    """

    name: ClassVar[str] = "clip"

    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _bounds(self) -> Clip:
        if self.low is None and self.high is None:
            raise ValueError("clip needs low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"clip needs low <= high, not {self.low:g} and {self.high:g}")
        return self

    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return both bounds, infinite where there is none."""
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        return elements.spread(low, -math.inf), elements.spread(high, math.inf)

    def apply(self, lines: np.ndarray, operands: Operands) -> None:
        """Set what is beyond a bound to it."""
        np.clip(lines, *operands, out=lines)
