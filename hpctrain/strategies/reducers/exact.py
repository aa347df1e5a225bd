"""`FixedPointSum`: the sum over all ranks of gradients in fixed point, which is the same however it is added up."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.strategies.reducers.base import Reducer


class FixedPointSum(Reducer):
    """One all-reduce of the whole buffer as int32, by a collective called `name`; then float32 again.

    fixed  the model's `nn.fixed_point.FixedPoint`
    """

    def __init__(self, name: str, collective: Collective, fixed: Any) -> None:
        self._name = name
        self._collective = collective
        self._fixed = fixed
        self._again = False

    def reduce(self, step: int) -> None:
        """Sum the buffer over all ranks; see `again`."""
        self._fixed.close()
        self._collective.all_reduce(self._fixed.numbers)
        self._again = not self._fixed.settle()

    @property
    def again(self) -> bool:
        """Whether numbers did not fit their exponents: the lanes have to be summed once more."""
        return self._again

    @property
    def totals(self) -> tuple[float, float, int]:
        """Loss, weight (float64) and rows of the last step over all ranks, the same at every world size."""
        return self._fixed.totals

    def describe(self) -> str:
        """Return the collective's name."""
        return f"{self._name}, in fixed point"

    def records(self) -> dict[str, np.ndarray]:
        """Return the exponents: on them depends how the next step is rounded."""
        return {"exponents": self._fixed.exponents}

    def load_records(self, records: dict[str, np.ndarray]) -> None:
        """Take the exponents over."""
        self._fixed.load(records["exponents"])

    def warm_up(self) -> None:
        """Compile the collective's kernels, or load them from the cache."""
        self._collective.warm_up(np.int32)
