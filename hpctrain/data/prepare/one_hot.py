"""`OneHot`: columns of whole numbers that name a kind, as columns of 0 and 1."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator

from hpctrain.data.prepare.base import Fitted, Operands, Step
from hpctrain.data.prepare.elements import Elements
from hpctrain.errors import UserError


def _read_sizes(value: Any) -> Any:
    items = value if isinstance(value, (list, tuple)) else (value,)
    if not items or not all(isinstance(item, int) and not isinstance(item, bool) and item > 0 for item in items):
        raise ValueError("must be a whole number above 0, or a list with one for each column")
    return tuple(items) if isinstance(value, (list, tuple)) else value


class OneHot(Step):
    """A column of whole numbers from 0 to size - 1 becomes `size` columns in its place: 1 for the number, else 0.

    This happens behind all other steps, which then leave these columns alone; `columns` of every step are those of the
    file.  A number that has no column is an error, which names its row.

    size  a number, or a list with one for each of the columns; default: the largest number of the training part + 1
    """

    name: ClassVar[str] = "one_hot"

    size: Annotated[int | tuple[int, ...], BeforeValidator(_read_sizes)] | None = None

    def sizes(self, columns: int) -> np.ndarray | None:
        """Return the sizes as the option has them, for so many columns: float64 (columns,); None: not said."""
        if self.size is None:
            return None
        if np.size(self.size) not in (1, columns):
            raise UserError(
                "size of a step one_hot has not one number for each column",
                found=f"{np.size(self.size)} numbers for {columns} columns",
                allowed=f"one number, or {columns}",
            )
        return np.broadcast_to(np.asarray(self.size, np.float64), columns).copy()

    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return the sizes: infinite where columns are not meant."""
        return (elements.spread(fitted["size"], np.inf),)

    def apply(self, lines: np.ndarray, operands: Operands) -> None:
        """Make NaN of what is none of the numbers; `Chain` makes columns of the others."""
        sizes = operands[0]
        known = (lines >= 0) & (lines < sizes) & (lines == np.floor(lines))
        np.copyto(lines, np.nan, where=~known & (sizes < np.inf))
