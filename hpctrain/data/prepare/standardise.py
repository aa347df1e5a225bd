"""`Standardise`: mean 0 and deviation 1 over the training part."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from hpctrain.data.prepare.base import Fitted, LearningStep, Moments, Operands
from hpctrain.data.prepare.elements import Elements


class Standardise(LearningStep):
    """(x - mean) / std, std being the root of the mean square about the mean.

    epsilon    numbers whose std is at most this part of the size of their mean count as constant: they become 0
    mean, std  datasets of `file`: one number, one a column, or one for each number of an example
    """

    name: ClassVar[str] = "standardise"
    turns_back: ClassVar[bool] = True
    datasets: ClassVar[tuple[str, ...]] = ("mean", "std")

    epsilon: float = Field(1e-12, ge=0)
    mean: str | None = None
    std: str | None = None

    def learn(self, moments: Moments) -> Fitted:
        """Keep mean and std."""
        return {"mean": moments.mean, "std": moments.std}

    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return what is subtracted and what is divided by; 1 for constants."""
        mean, std = fitted["mean"], fitted["std"]
        varies = std > self.epsilon * np.abs(mean)
        return elements.spread(mean, 0.0), elements.spread(np.where(varies, std, 1.0), 1.0)

    def apply(self, lines: np.ndarray, operands: Operands) -> None:
        """(x - mean) / std."""
        lines -= operands[0]
        lines /= operands[1]

    def invert(self, lines: np.ndarray, operands: Operands) -> None:
        """Return to x: times std, plus mean."""
        lines *= operands[1]
        lines += operands[0]
