"""LAMB and LARS: for large batches, each tensor's step is scaled to the size of its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from hpctrain.kernels import optimizers_by_tensor as kernels
from hpctrain.optim.adam import BELOW_ONE, moment_names, moment_scalars
from hpctrain.optim.base import Optimizer


class Lamb(Optimizer):
    """u = Adam's step / lr + weight_decay p; p -= lr |p| / |u| u, with norms over each tensor (You et al. 2020).

    Algorithm 2 of the paper, phi the identity.  As in the authors' code, tensors that do not decay (biases and
    normalisation scales, or weight_decay_factor = 0) take Adam's step as it is; so does one that is all zero.
    State: `mean`, `square`.

    lr            learning rate, above 0: the length of a tensor's step, relative to the tensor's
    beta1, beta2  how much of the means of gradients and squares is kept each step, in [0, 1)
    epsilon       added to the root of the mean square
    weight_decay  decoupled, 0 or more
    """

    norms_kernel: ClassVar[Callable | None] = kernels.lamb_norms

    lr: float = Field(0.001, gt=0)
    beta1: float = Field(0.9, ge=0, le=BELOW_ONE)
    beta2: float = Field(0.999, ge=0, le=BELOW_ONE)
    epsilon: float = Field(1e-6, ge=1e-37)
    weight_decay: float = Field(0.01, ge=0)

    @property
    def slots(self) -> tuple[str, ...]:
        """`mean` and `square`: decaying means of the gradients and of their squares."""
        return ("mean", "square")

    @property
    def kernel(self) -> Callable:
        """LAMB's."""
        return kernels.lamb

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Rates, and the moments' numbers."""
        return ("lr", "decay", *moment_names())

    def scalars(self, lr: float, step: int, scale: float, real: Any = np.float32) -> tuple[Any, ...]:
        """Return the numbers of `scalar_names`."""
        moments = moment_scalars(self.beta1, self.beta2, self.epsilon, step, scale, real)
        return (real(lr), real(self.weight_decay), *moments)


class Lars(Optimizer):
    """v = momentum v + lr r (g + weight_decay p); p -= v; r = trust |p| / (|g| + weight_decay |p| + epsilon).

    You et al. 2017, algorithm 1, with norms over each tensor.  As is usual, r is 1 for tensors that do not decay
    (biases and normalisation scales, or weight_decay_factor = 0), and for one that is all zero or has no gradient.
    State: `velocity`, which is multiplied by the learning rate.

    lr            learning rate, above 0
    momentum      0 <= momentum < 1
    trust         length of a tensor's step, relative to the tensor's, at lr = 1 and without momentum; above 0
    epsilon       keeps the division in bounds, above 0
    weight_decay  L2 penalty's factor, 0 or more
    """

    norms_kernel: ClassVar[Callable | None] = kernels.lars_norms

    lr: float = Field(1.0, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    trust: float = Field(0.001, gt=0)
    epsilon: float = Field(1e-8, ge=1e-37)
    weight_decay: float = Field(0.0001, ge=0)

    @property
    def slots(self) -> tuple[str, ...]:
        """`velocity`."""
        return ("velocity",)

    @property
    def kernel(self) -> Callable:
        """LARS's."""
        return kernels.lars

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Rates and what bounds them."""
        return ("lr", "decay", "momentum", "trust", "epsilon", "scale")

    def scalars(self, lr: float, step: int, scale: float, real: Any = np.float32) -> tuple[Any, ...]:
        """Return the numbers of `scalar_names`."""
        options = (self.weight_decay, self.momentum, self.trust, self.epsilon)
        return (real(lr), *(real(option) for option in options), real(scale))
