"""RMSprop (Tieleman and Hinton 2012) and Adagrad (Duchi et al. 2011): steps scaled by the size of past gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import Field

from hpctrain.kernels import optimizers as kernels
from hpctrain.optim.adam import BELOW_ONE
from hpctrain.optim.base import Optimizer


class RmsProp(Optimizer):
    """g = gradient + weight_decay p; s = rho s + (1 - rho) g^2; p -= lr g / (sqrt(s) + epsilon).

    Tieleman and Hinton 2012 (lecture 6.5), as in PyTorch.  With momentum: v = momentum v + g / (sqrt(s) + epsilon);
    p -= lr v.  State: `square`, and with momentum `velocity`.

    lr            learning rate, above 0
    rho           how much of the mean of squares is kept each step, in [0, 1)
    epsilon       added to the root of the mean square
    momentum      0 <= momentum < 1
    weight_decay  L2 penalty's factor, 0 or more; added to the gradient
    """

    lr: float = Field(0.01, gt=0)
    rho: float = Field(0.99, ge=0, le=BELOW_ONE)
    epsilon: float = Field(1e-8, ge=1e-37)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)

    @property
    def slots(self) -> tuple[str, ...]:
        """`square`, and `velocity` where there is momentum."""
        return ("square", "velocity") if self.momentum else ("square",)

    @property
    def kernel(self) -> Callable:
        """With or without momentum."""
        return kernels.rmsprop_momentum if self.momentum else kernels.rmsprop

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """With `momentum` where there is any."""
        momentum = ("momentum",) if self.momentum else ()
        return ("lr", "decay", "rho", "new_square", "epsilon", *momentum, "scale")

    def scalars(self, lr: float, step: int, scale: float, real: Any = np.float32) -> tuple[Any, ...]:
        """Return the numbers of `scalar_names`."""
        momentum = (real(self.momentum),) if self.momentum else ()
        rho = real(self.rho)
        squares = (rho, real(1) - rho, real(self.epsilon))
        return (real(lr), real(self.weight_decay), *squares, *momentum, real(scale))


class Adagrad(Optimizer):
    """g = gradient + weight_decay p; s = s + g^2; p -= lr g / (sqrt(s) + epsilon) (Duchi et al. 2011).

    State: `square`, the sum of all squares so far.

    lr            learning rate, above 0
    epsilon       added to the root of the sum of squares
    weight_decay  L2 penalty's factor, 0 or more; added to the gradient
    """

    lr: float = Field(0.01, gt=0)
    epsilon: float = Field(1e-10, ge=1e-37)
    weight_decay: float = Field(0.0, ge=0)

    @property
    def slots(self) -> tuple[str, ...]:
        """`square`."""
        return ("square",)

    @property
    def kernel(self) -> Callable:
        """Adagrad's."""
        return kernels.adagrad

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Rates and epsilon."""
        return ("lr", "decay", "epsilon", "scale")

    def scalars(self, lr: float, step: int, scale: float, real: Any = np.float32) -> tuple[Any, ...]:
        """Return the numbers of `scalar_names`."""
        return (real(lr), real(self.weight_decay), real(self.epsilon), real(scale))
