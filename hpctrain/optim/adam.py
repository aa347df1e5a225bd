"""Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import Field

from hpctrain.kernels import optimizers as kernels
from hpctrain.optim.base import Optimizer

BELOW_ONE = 0.9999999  # in float32, anything above could round to 1 and would never take in a gradient


def moment_names() -> tuple[str, ...]:
    """Return the names of what `moment_scalars` gives."""
    return ("beta1", "beta2", "new_mean", "new_square", "mean_correction", "root_correction", "epsilon", "scale")


def moment_scalars(beta1: float, beta2: float, epsilon: float, step: int, scale: float, real: Any) -> tuple[Any, ...]:
    """Return Adam's numbers for a step: betas, what is taken in of the new, and the corrections for a start from zero.

    1 / (1 - beta1^t) and 1 / sqrt(1 - beta2^t) with t = step + 1.  The betas are those that the kernel has, in float32:
    what is kept and what is new must add up to 1, or a thousand steps of beta2 = 0.999 add up the difference.  The
    corrections are taken of the same numbers, in float64.
    """
    beta1, beta2 = real(beta1), real(beta2)
    mean_correction = 1 / (1 - float(beta1) ** (step + 1))
    root_correction = 1 / math.sqrt(1 - float(beta2) ** (step + 1))
    new = (real(1) - beta1, real(1) - beta2)
    return (beta1, beta2, *new, real(mean_correction), real(root_correction), real(epsilon), real(scale))


class _Adam(Optimizer):
    """What both share: decaying means m of the gradients and s of their squares, corrected for their start from zero.

    t = step + 1; m = beta1 m + (1 - beta1) g; s = beta2 s + (1 - beta2) g^2;
    p -= lr (m / (1 - beta1^t)) / (sqrt(s / (1 - beta2^t)) + epsilon).
    """

    lr: float = Field(0.001, gt=0)
    beta1: float = Field(0.9, ge=0, le=BELOW_ONE)
    beta2: float = Field(0.999, ge=0, le=BELOW_ONE)
    epsilon: float = Field(1e-8, ge=1e-37)  # not below float32's smallest normal numbers: 0 / 0
    weight_decay: float = Field(0.0, ge=0)

    @property
    def slots(self) -> tuple[str, ...]:
        """`mean` and `square`: decaying means of the gradients and of their squares."""
        return ("mean", "square")

    @property
    def kernel(self) -> Callable:
        """One for both."""
        return kernels.adam

    @abstractmethod
    def _decays(self) -> tuple[float, float]:
        """Return weight decay as (added to the gradient, decoupled)."""

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Rates, and the moments' numbers."""
        return ("lr", "decay", "decoupled_decay", *moment_names())

    def scalars(self, lr: float, step: int, scale: float, real: Any = np.float32) -> tuple[Any, ...]:
        """Return the numbers of `scalar_names`."""
        decay, decoupled_decay = self._decays()
        moments = moment_scalars(self.beta1, self.beta2, self.epsilon, step, scale, real)
        return (real(lr), real(decay), real(decoupled_decay), *moments)


class Adam(_Adam):
    """Adam: steps scaled by each parameter's own gradients (Kingma and Ba 2015, with weight decay as an L2 penalty).

    lr            learning rate, above 0
    beta1, beta2  how much of the means of gradients and squares is kept each step, in [0, 1)
    epsilon       added to the root of the mean square
    weight_decay  L2 penalty's factor, 0 or more: added to the gradient, and so scaled with it
    """

    def _decays(self) -> tuple[float, float]:
        return self.weight_decay, 0.0


class AdamW(_Adam):
    """Adam with decoupled weight decay: p -= lr weight_decay p beside the step (Loshchilov and Hutter 2019, as in
    PyTorch).

    lr            learning rate, above 0
    beta1, beta2  how much of the means of gradients and squares is kept each step, in [0, 1)
    epsilon       added to the root of the mean square
    weight_decay  part of each parameter that is taken away, times the learning rate; 0 or more
    """

    weight_decay: float = Field(0.01, ge=0)

    def _decays(self) -> tuple[float, float]:
        return 0.0, self.weight_decay
