"""`Standardise`: mean 0 and deviation 1 over the training part."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from hpctrain.data.prepare.base import Fitted, LearningStep, Line, Moments, Numbers


class Standardise(LearningStep, Line):
    """(x - mean) / std, std being the root of the mean square about the mean.

    epsilon    numbers whose std is at most this part of the size of their mean count as constant: they become 0
    mean, std  datasets of `file`: one number, one a column, or one for each number of an example
    """

    name: ClassVar[str] = "standardise"
    datasets: ClassVar[tuple[str, ...]] = ("mean", "std")

    epsilon: float = Field(1e-12, ge=0)
    mean: str | None = None
    std: str | None = None

    def learn(self, moments: Moments) -> Fitted:
        """Keep mean and std; NaN where the squares of what is not constant have become 0."""
        vanished = (moments.std == 0) & (moments.maximum > moments.minimum)
        return {"mean": moments.mean, "std": np.where(vanished, np.nan, moments.std)}

    def line(self, fitted: Fitted) -> tuple[Numbers, Numbers, Numbers]:
        """Subtract the mean and divide by std; by 1 where numbers are constant."""
        mean, std = fitted["mean"], fitted["std"]
        varies = std > self.epsilon * np.abs(mean)
        return mean, 1.0 / np.where(varies, std, 1.0), 0.0
