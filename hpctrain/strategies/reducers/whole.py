"""`WholeBuffer`: one all-reduce of the whole gradient buffer, after the backward pass."""

from __future__ import annotations

import numpy as np

from hpctrain.comm.collectives.base import Collective
from hpctrain.strategies.reducers.base import Reducer


class WholeBuffer(Reducer):
    """grad_buffer <- sum over ranks of grad_buffer, by one collective called `name`."""

    def __init__(self, name: str, collective: Collective, grad_buffer: np.ndarray) -> None:
        self._name = name
        self._collective = collective
        self._buffer = grad_buffer

    def reduce(self, step: int) -> None:
        """Sum the buffer over all ranks."""
        self._collective.all_reduce(self._buffer)

    def describe(self) -> str:
        """Return the collective's name."""
        return self._name

    def warm_up(self) -> None:
        """Compile the collective's kernels, or load them from the cache."""
        self._collective.warm_up()
