"""`WeightAverage`: an exponential moving average of the weights, to evaluate with and to keep as the result."""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.optimizers import average, swap

SLOT = "ema"  # name of the average among the optimizer's buffers in a checkpoint


class WeightAverage:
    """mean = d mean + (1 - d) params after each update; d = min(decay, step / (step + 10)), step counted from 0.

    So the first update's weights replace the zeros that it starts from, and early averages reach over the last tenth
    of the steps, rather than hold on to the initial weights.  Works on any slice: elements are averaged each by itself.
    """

    def __init__(self, params: np.ndarray, values: np.ndarray, decay: float) -> None:
        self.values = values
        self._params = params
        self._decay = decay

    def add(self, step: int) -> None:
        """Take in the weights after update `step`; to be called after every one, from 0 on."""
        real = self._params.dtype.type
        kept = real(min(self._decay, step / (step + 10)))
        average(self._params, self.values, kept, real(1) - kept)

    def swap(self) -> None:
        """Exchange the weights with their average: done twice, every bit is as before."""
        swap(self._params, self.values)

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the cache."""
        numbers = np.zeros(2, self._params.dtype)
        average(numbers[:1], numbers[1:], numbers[0], numbers[0])
        swap(numbers[:1], numbers[1:])
