"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from hpctrain.kernels import optimizers as kernels
from hpctrain.optim.base import Optimizer


class Sgd(Optimizer):
    """g = gradient + weight_decay p; v = momentum v + g; p -= lr v, with `nesterov` p -= lr (g + momentum v).

    The momentum is that of Sutskever et al. 2013 as PyTorch writes it: the velocity is not multiplied by the learning
    rate, and starts from zero, so that the first step is plain gradient descent.  State: `velocity`, with momentum
    only.

    lr            learning rate, above 0
    momentum      0 <= momentum < 1
    nesterov      looks ahead along the velocity; needs momentum
    weight_decay  L2 penalty's factor, 0 or more; added to the gradient
    """

    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Sgd:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov = true needs momentum above 0, such as momentum = 0.9")
        return self

    @property
    def slots(self) -> tuple[str, ...]:
        """`velocity` where there is momentum."""
        return ("velocity",) if self.momentum else ()

    @property
    def kernel(self) -> Callable:
        """One for each form: plain, momentum, Nesterov."""
        if not self.momentum:
            return kernels.sgd
        return kernels.sgd_nesterov if self.nesterov else kernels.sgd_momentum

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """With `momentum` where there is any."""
        return ("lr", "decay", "momentum", "scale") if self.momentum else ("lr", "decay", "scale")

    def scalars(self, lr: float, step: int, scale: float, real: Any = np.float32) -> tuple[Any, ...]:
        """Return the numbers of `scalar_names`."""
        momentum = (real(self.momentum),) if self.momentum else ()
        return (real(lr), real(self.weight_decay), *momentum, real(scale))
