"""`Scale`: a line through given numbers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, field_validator

from hpctrain.data.prepare.base import Fitted, Operands, Step
from hpctrain.data.prepare.elements import Elements
from hpctrain.errors import UserError


def _read_numbers(value: Any) -> Any:
    items = value if isinstance(value, (list, tuple)) else (value,)
    if not items or not all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in items):
        raise ValueError("must be a number, or a list with one for each column")
    return tuple(items) if isinstance(value, (list, tuple)) else value


Numbers = Annotated[float | tuple[float, ...], BeforeValidator(_read_numbers)]


class Scale(Step):
    """x factor + offset; each a number, or a list with a number for each of the columns."""

    name: ClassVar[str] = "scale"
    turns_back: ClassVar[bool] = True

    factor: Numbers = 1.0
    offset: Numbers = 0.0

    @field_validator("factor")
    @classmethod
    def _not_zero(cls, factor: float | tuple[float, ...]) -> float | tuple[float, ...]:
        if 0 in np.atleast_1d(factor):
            raise ValueError("must not be 0")
        return factor

    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return factors and offsets: 1 and 0 where columns are not meant."""
        for key in ("factor", "offset"):
            count = np.size(getattr(self, key))
            if count not in (1, len(elements.columns)):
                raise UserError(
                    f"{key} of a step scale has not one number for each column",
                    found=f"{count} numbers for {len(elements.columns)} columns",
                    allowed=f"one number, or {len(elements.columns)}",
                )
        return elements.spread(self.factor, 1.0), elements.spread(self.offset, 0.0)

    def apply(self, lines: np.ndarray, operands: Operands) -> None:
        """Multiply, then add."""
        lines *= operands[0]
        lines += operands[1]

    def invert(self, lines: np.ndarray, operands: Operands) -> None:
        """Subtract, then divide."""
        lines -= operands[1]
        lines /= operands[0]
