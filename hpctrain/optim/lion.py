"""Lion (Chen et al. 2023): steps of one size, along the sign of an interpolated mean gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import Field

from hpctrain.kernels import optimizers as kernels
from hpctrain.optim.adam import BELOW_ONE
from hpctrain.optim.base import Optimizer


class Lion(Optimizer):
    """c = beta1 m + (1 - beta1) g; p -= lr (sign(c) + weight_decay p); m = beta2 m + (1 - beta2) g.

    Chen et al. 2023, algorithm 2, with decoupled weight decay.  The authors take 3 to 10 times less learning rate, and
    as many times more weight decay, than for AdamW.  State: `mean`.

    lr            learning rate, above 0: the size of every parameter's step
    beta1         how much of the mean goes into the direction, in [0, 1)
    beta2         how much of the mean is kept each step, in [0, 1)
    weight_decay  part of each parameter that is taken away, times the learning rate; 0 or more
    """

    lr: float = Field(0.0001, gt=0)
    beta1: float = Field(0.9, ge=0, le=BELOW_ONE)
    beta2: float = Field(0.99, ge=0, le=BELOW_ONE)
    weight_decay: float = Field(0.0, ge=0)

    @property
    def slots(self) -> tuple[str, ...]:
        """`mean`: the decaying mean of the gradients."""
        return ("mean",)

    @property
    def kernel(self) -> Callable:
        """Lion's."""
        return kernels.lion

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Rates, and what is kept and taken in."""
        return ("lr", "decay", "beta1", "new_direction", "beta2", "new_mean", "scale")

    def scalars(self, lr: float, step: int, scale: float, real: Any = np.float32) -> tuple[Any, ...]:
        """Return the numbers of `scalar_names`."""
        beta1, beta2 = real(self.beta1), real(self.beta2)
        betas = (beta1, real(1) - beta1, beta2, real(1) - beta2)
        return (real(lr), real(self.weight_decay), *betas, real(scale))
