"""`Clip`: gradients that are too long are shortened, all by the same factor (Pascanu et al. 2013)."""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field

from hpctrain.kernels.norms import sum_of_squares
from hpctrain.options import Part


class Clip(Part):
    """Clipping by the global norm: a mean gradient whose Euclidean norm is above `norm` is scaled down to `norm`.

    norm  largest norm, above 0; None leaves gradients as they are
    """

    norm: float | None = Field(None, gt=0)

    def factor(self, grads: np.ndarray, scale: float) -> tuple[float, float | None]:
        """Return what to multiply scale * grads by, and its norm before that.

        `grads` (n,) contiguous float32 is only read; the squares are summed in float64.  Without a limit no norm is
        taken: (1.0, None).  A norm that is NaN or infinite stays visible: see `factor_for`.
        """
        if self.norm is None:
            return 1.0, None
        norm = abs(scale) * math.sqrt(sum_of_squares(grads))
        return self.factor_for(norm), norm

    def factor_for(self, norm: float) -> float:
        """Return min(1, limit / norm) for a norm that was put together elsewhere, such as over the owners of slices.

        NaN gives NaN and infinity 0, which times an infinite gradient is NaN: broken gradients break the weights for
        all to see, and are not clipped to something that looks sound.
        """
        if self.norm is None or norm <= self.norm:
            return 1.0
        return self.norm / norm

    def warm_up(self) -> None:
        """Compile the kernel, or load it from the cache."""
        if self.norm is not None:
            sum_of_squares(np.zeros(1, np.float32))
