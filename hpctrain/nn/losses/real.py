"""Losses for real targets: numbers to be predicted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from pydantic import Field, field_validator

from hpctrain.kernels import losses as kernels
from hpctrain.nn.losses.base import Loss


class MeanSquaredError(Loss):
    """(x - y)^2, the mean over the columns of an example."""

    name: ClassVar[str] = "mse"
    accepts: ClassVar[tuple[str, ...]] = ("real",)

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.mse


class MeanAbsoluteError(Loss):
    """|x - y|, the mean over the columns of an example."""

    name: ClassVar[str] = "mae"
    accepts: ClassVar[tuple[str, ...]] = ("real",)

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.mae


class Huber(Loss):
    """d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), with d = x - y; the mean over an example's columns.

    delta  from where on the loss grows in a line, so that outliers count less; above 0 (Huber 1964)
    """

    name: ClassVar[str] = "huber"
    accepts: ClassVar[tuple[str, ...]] = ("real",)

    delta: float = Field(1.0, gt=0)

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.huber

    def constants(self) -> tuple[float | tuple[float, ...], ...]:
        """Return (delta,)."""
        return (self.delta,)


class Poisson(Loss):
    """exp x - y x, the mean over the columns: counts y at the rate exp(x), where x is the network's output.

    This is the negative log-likelihood without the part that does not depend on x.
    """

    name: ClassVar[str] = "poisson"
    accepts: ClassVar[tuple[str, ...]] = ("real",)
    bounds: ClassVar[tuple[float, float] | None] = (0.0, math.inf)

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.poisson

    def predictions(self, outputs: np.ndarray, target_kind: str) -> np.ndarray:
        """Return the rates exp(outputs): what metrics compare with the counts."""
        return np.exp(outputs)

    def outputs_saying(self, values: np.ndarray) -> np.ndarray:
        """Return the logarithms of rates; of 0 that of the smallest float32."""
        return np.log(np.maximum(values, np.finfo(np.float32).tiny))


class Quantile(Loss):
    """max(q d, (q - 1) d) with d = y - x for each level q, the mean over levels and columns (Koenker, Bassett 1978).

    The network has an output for each level of each target column: all levels of the first column, then those of the
    next.  Each learns the value that is not exceeded with the probability q.  Metrics judge the level nearest to 0.5.

    levels  between 0 and 1, rising
    """

    name: ClassVar[str] = "quantile"
    accepts: ClassVar[tuple[str, ...]] = ("real",)

    levels: tuple[float, ...] = (0.1, 0.5, 0.9)

    @field_validator("levels")
    @classmethod
    def _rise(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        bounds = (0.0, *levels, 1.0)
        if not levels or any(low >= high for low, high in zip(bounds, bounds[1:], strict=False)):
            raise ValueError("must be numbers between 0 and 1, rising, at least one")
        return levels

    def kernel_for(self, target_kind: str) -> Callable[..., float]:
        """Return the compiled function."""
        return kernels.quantile

    def constants(self) -> tuple[float | tuple[float, ...], ...]:
        """Return (levels,)."""
        return (self.levels,)

    def outputs_for(self, target_kind: str, classes: int | None, target_width: int) -> int:
        """Return an output for each level of each target column."""
        return target_width * len(self.levels)

    def predictions(self, outputs: np.ndarray, target_kind: str) -> np.ndarray:
        """Return the columns (n, k / levels) of the level nearest to 0.5."""
        middle = min(range(len(self.levels)), key=lambda index: abs(self.levels[index] - 0.5))
        return np.ascontiguousarray(outputs[:, middle :: len(self.levels)])

    def outputs_saying(self, values: np.ndarray) -> np.ndarray:
        """Return the values for every level."""
        return np.repeat(values, len(self.levels), axis=1)
