"""`Fill`: numbers in the place of missing ones."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import field_validator, model_validator

from hpctrain.data.prepare.base import Fitted, LearningStep, Moments, Operands
from hpctrain.data.prepare.elements import Elements


class Fill(LearningStep):
    """NaN becomes a number: `value`, or with "mean" the mean of the training part's others; infinite numbers stay.

    mean  dataset of `file`: one number, one a column, or one for each number of an example
    """

    name: ClassVar[str] = "fill"
    datasets: ClassVar[tuple[str, ...]] = ("mean",)

    value: float | Literal["mean"] = "mean"
    mean: str | None = None

    @field_validator("value", mode="before")
    @classmethod
    def _a_number_or_mean(cls, value: Any) -> Any:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value != "mean" and not (is_number and math.isfinite(value)):
            raise ValueError('must be a number or "mean"')
        return value

    @model_validator(mode="after")
    def _one_of_them(self) -> Fill:
        if self.file is not None and self.value != "mean":
            raise ValueError('fill takes its means from file: value must be "mean" then')
        return self

    @property
    def learns(self) -> bool:
        """Whether `learn` must see statistics of the training part."""
        return self.value == "mean" and self.file is None

    def learn(self, moments: Moments) -> Fitted:
        """Keep the mean."""
        return {"mean": moments.mean}

    def operands(self, elements: Elements, fitted: Fitted) -> Operands:
        """Return what missing numbers become: NaN where columns are not meant."""
        return (elements.spread(fitted["mean"] if self.value == "mean" else self.value, math.nan),)

    def apply(self, lines: np.ndarray, operands: Operands) -> None:
        """Fill in."""
        np.copyto(lines, np.broadcast_to(operands[0], lines.shape), where=np.isnan(lines))
