"""`Log`: the logarithm, for numbers that spread over powers of ten."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from pydantic import Field, field_validator

from hpctrain.data.prepare.base import Fitted, Operands, Step
from hpctrain.data.prepare.elements import Elements


class Log(Step):
    """log(x + offset) to a base; with offset 1 and the natural base log1p, which is exact near 0 too.

    offset  added first; x + offset must be above 0
    base    default: e
    """

    name: ClassVar[str] = "log"
    turns_back: ClassVar[bool] = True

    offset: float = 1.0
    base: float | None = Field(None, gt=0)

    @field_validator("base")
    @classmethod
    def _is_a_base(cls, base: float | None) -> float | None:
        if base == 1:
            raise ValueError("must not be 1")
        return base

    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return where the logarithm is taken, a line of 0 and 1."""
        return (elements.spread(1.0, 0.0).astype(bool),)

    def apply(self, lines: np.ndarray, operands: Operands) -> None:
        """log(x + offset) / log(base)."""
        result = np.log1p(lines) if self.offset == 1 else np.log(lines + self.offset)
        if self.base is not None:
            result /= math.log(self.base)
        np.copyto(lines, result, where=operands[0])

    def invert(self, lines: np.ndarray, operands: Operands) -> None:
        """base^y - offset."""
        result = lines * math.log(self.base) if self.base is not None else lines.copy()
        result = np.expm1(result) if self.offset == 1 else np.exp(result) - self.offset
        np.copyto(lines, result, where=operands[0])
