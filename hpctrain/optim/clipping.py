"""`Clip`: large gradients are limited element by element, or shortened by one factor (Pascanu et al. 2013)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from hpctrain.kernels.norms import clip_values, sum_of_squares
from hpctrain.optim.table import UpdateTable
from hpctrain.options import Part


class Clip(Part):
    """Clipping of the mean gradient.  With both limits, values come first, and the norm is that of what is left.

    value  largest size of an element, above 0: what is beyond is set to it; None: no limit
    norm   largest Euclidean norm over all trained tensors, above 0: a longer gradient is scaled down to it; None: no
           limit
    """

    value: float | None = Field(None, gt=0)
    norm: float | None = Field(None, gt=0)

    def factor(self, grads: np.ndarray, scale: float, table: UpdateTable) -> tuple[float, float | None]:
        """Return what to multiply scale * grads by, and its norm before any clipping.

        `grads` (n,) contiguous float32; its elements in the ranges of `table` are limited in place where there is a
        `value`, else it is only read.  The squares are summed in float64.  Without a limit no norm is taken:
        (1.0, None).  A norm that is NaN or infinite stays visible: see `factor_for`.
        """
        if self.value is None and self.norm is None:
            return 1.0, None
        return self.factor_from(self.squares(grads, scale, table), scale)

    def squares(self, grads: np.ndarray, scale: float, table: UpdateTable) -> tuple[float, float]:
        """Return the sums of squares of this slice of the gradients before values are limited, and after.

        Limits them in place where there is a `value`; float64, to be added up over the owners of the slices.
        """
        ranges = (table.starts, table.stops)
        if self.value is None:
            squares = sum_of_squares(grads, *ranges)
            return squares, squares
        with np.errstate(over="ignore", divide="ignore"):  # a limit beyond float32 is none
            limit = grads.dtype.type(np.float64(self.value) / abs(scale))
        before = clip_values(grads, *ranges, limit)
        return before, before if self.norm is None else sum_of_squares(grads, *ranges)

    def factor_from(self, squares: Sequence[float], scale: float) -> tuple[float, float | None]:
        """Return what `factor` does, from the sums of all slices' `squares`."""
        if self.value is None and self.norm is None:
            return 1.0, None
        before, after = (abs(scale) * math.sqrt(square) for square in squares)
        return self.factor_for(after), before

    def factor_for(self, norm: float) -> float:
        """Return min(1, limit / norm) for a norm that was put together elsewhere, such as over the owners of slices.

        NaN gives NaN and infinity 0, which times an infinite gradient is NaN: broken gradients break the weights for
        all to see, and are not clipped to something that looks sound.
        """
        if self.norm is None or norm <= self.norm:
            return 1.0
        return self.norm / norm

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the cache."""
        self.factor(np.zeros(1, np.float32), 1.0, UpdateTable.from_slots(()))
