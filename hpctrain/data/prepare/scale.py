"""`Scale`: a line through given numbers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, field_validator

from hpctrain.data.prepare import base
from hpctrain.data.prepare.base import Fitted, Line, Operands
from hpctrain.data.prepare.elements import Elements
from hpctrain.errors import UserError


def _read_numbers(value: Any) -> Any:
    items = value if isinstance(value, (list, tuple)) else (value,)
    if not items or not all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in items):
        raise ValueError("must be a number, or a list with one for each column")
    return tuple(items) if isinstance(value, (list, tuple)) else value


Numbers = Annotated[float | tuple[float, ...], BeforeValidator(_read_numbers)]


class Scale(Line):
    """x factor + offset; each a number, or a list with a number for each of the columns."""

    name: ClassVar[str] = "scale"

    factor: Numbers = 1.0
    offset: Numbers = 0.0

    @field_validator("factor")
    @classmethod
    def _not_zero(cls, factor: float | tuple[float, ...]) -> float | tuple[float, ...]:
        if 0 in np.atleast_1d(factor):
            raise ValueError("must not be 0")
        return factor

    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return the line's numbers; see `Line`."""
        for key in ("factor", "offset"):
            count = np.size(getattr(self, key))
            if count not in (1, len(elements.columns)):
                raise UserError(
                    f"{key} of a step scale has not one number for each column",
                    found=f"{count} numbers for {len(elements.columns)} columns",
                    allowed=f"one number, or {len(elements.columns)}",
                )
        return super().operands(elements, fitted)

    def line(self, fitted: Fitted) -> tuple[base.Numbers, base.Numbers, base.Numbers]:
        """Multiply, then add."""
        return 0.0, np.asarray(self.factor, np.float64), np.asarray(self.offset, np.float64)
