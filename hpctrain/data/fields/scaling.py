"""Attributes that say how stored numbers are meant: the CF conventions of netCDF, applied in float64.

value = stored * scale_factor + add_offset; what equals `_FillValue` or `missing_value` is missing, NaN.
Source: CF Metadata Conventions 1.11, sections 2.5.1 (missing data) and 8.1 (packed data).
"""

from __future__ import annotations

from dataclasses import dataclass

import h5py
import numpy as np

from hpctrain.errors import UserError


@dataclass(frozen=True)
class Scaling:
    """What a dataset's attributes ask for.

    factor, offset  of the values; None where there is no such attribute
    fills           stored numbers that stand for missing values; NaN, which is missing anyway, is left out
    """

    factor: float | None = None
    offset: float | None = None
    fills: tuple[float | int, ...] = ()

    @property
    def makes_real(self) -> bool:
        """Whether the values are real numbers whatever is stored."""
        return self.factor is not None or self.offset is not None

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return self.makes_real or bool(self.fills)

    def missing(self, stored: np.ndarray) -> np.ndarray:
        """Return where stored numbers stand for a missing value, bool of the same shape."""
        found = np.zeros(stored.shape, bool)
        for fill in self.fills:
            found |= stored == fill
        return found

    def apply(self, stored: np.ndarray) -> np.ndarray:
        """Return the values that are meant, float64, NaN where one is missing."""
        values = stored.astype(np.float64)
        if self.factor is not None:
            values *= self.factor
        if self.offset is not None:
            values += self.offset
        if self.fills:
            values[self.missing(stored)] = np.nan
        return values


NONE = Scaling()


def scaling_of(dataset: h5py.Dataset) -> Scaling:
    """Return what a dataset of numbers asks for.  `UserError` for an attribute of these names that is no number."""
    if not dataset.attrs:
        return NONE
    factor, offset = (_number(dataset, name) for name in ("scale_factor", "add_offset"))
    fills: list[float | int] = []
    for name in ("_FillValue", "missing_value"):
        # Fill values are compared as they are stored: 1e20 of float32 is another number than that of float64.
        found = _numbers(dataset, name)
        stored = found.astype(dataset.dtype) if dataset.dtype.kind == "f" else found
        fills += [fill for fill in stored.tolist() if fill == fill and fill not in fills]  # noqa: PLR0124
    # What changes nothing leaves whole numbers whole.
    return Scaling(None if factor == 1 else factor, None if offset == 0 else offset, tuple(fills))


def _numbers(dataset: h5py.Dataset, name: str) -> np.ndarray:
    if name not in dataset.attrs:
        return np.empty(0)
    value = np.ravel(dataset.attrs[name])
    if value.dtype.kind not in "biuf":
        raise UserError(
            f"an attribute of {dataset.name!r} in {dataset.file.filename} is no number",
            found=f"{name} = {dataset.attrs[name]!r}",
            allowed="a number, as the CF conventions of netCDF have it",
            hint="correct the attribute, or delete it",
        )
    return value


def _number(dataset: h5py.Dataset, name: str) -> float | None:
    value = _numbers(dataset, name)
    if len(value) > 1:
        raise UserError(
            f"an attribute of {dataset.name!r} in {dataset.file.filename} has several numbers",
            found=f"{name} = {value.tolist()}",
            allowed="one number for the whole dataset",
        )
    return float(value[0]) if len(value) else None
