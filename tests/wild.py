"""More small files in the layouts in which scientists' data comes, and the files of all layouts by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import layouts
import numpy as np


def _labels(rng: np.random.Generator, rows: int, classes: int) -> np.ndarray:
    """Labels of which each class has some."""
    return rng.permutation(np.arange(rows) % classes)


def file_each(folder: Path) -> list[Path]:
    """One example a file, a class for each place of an image, and a file of statistics beside them."""
    rng, paths = np.random.default_rng(3), []
    for number in range(8):
        paths.append(folder / f"data-{number:02d}.h5")
        with h5py.File(paths[-1], "w") as file:
            image = rng.normal(size=(16, 16, 4)).astype("f4")
            file["climate/data"], file["climate/labels_0"] = image, (image[..., 0] > 0).astype("i4") * 2
    with h5py.File(folder / "stats.h5", "w") as file:
        file["climate/minval"], file["climate/maxval"] = np.zeros(4, "f4"), np.ones(4, "f4")
    return [*paths, folder / "stats.h5"]


def masked(folder: Path) -> list[Path]:
    """Ragged lists of particles, filled up, with a mask beside each property; targets in a group."""
    rng, rows = np.random.default_rng(5), 60
    mask = np.arange(10) < rng.integers(3, 11, rows)[:, None]
    with h5py.File(folder / "events.h5", "w") as file:
        file["INPUTS/src/MASK"] = mask
        for name in ("pt", "eta"):
            file[f"INPUTS/src/{name}"] = np.where(mask, rng.normal(size=mask.shape), 0).astype("f4")
        file["TARGETS/kind"] = _labels(rng, rows, 3)
    return [folder / "events.h5"]


def group_each(folder: Path) -> list[Path]:
    """One group an example: numbers, an image that is packed with scale and offset, a label."""
    rng = np.random.default_rng(6)
    with h5py.File(folder / "samples.h5", "w") as file:
        for number in range(24):
            group = file.create_group(f"sample_{number}")
            group["energy"], group["angle"], group["label"] = rng.normal(), rng.normal(), number % 2
            group["image"] = rng.integers(0, 1000, (8, 8)).astype("i2")
            group["image"].attrs["scale_factor"], group["image"].attrs["add_offset"] = 0.01, -5.0
    return [folder / "samples.h5"]


def texts(folder: Path) -> list[Path]:
    """Labels that are texts, and values of which some are missing."""
    rng, rows = np.random.default_rng(15), 60
    values = rng.normal(size=(rows, 5)).astype("f4")
    values[3, 2] = np.nan
    with h5py.File(folder / "texts.h5", "w") as file:
        file["measured"] = values
        file["class"] = np.array(["low", "high", "none"], object)[_labels(rng, rows, 3)]
    return [folder / "texts.h5"]


def series(folder: Path) -> list[Path]:
    """A long series of two runs and nothing else: the next row is to be foretold."""
    steps = np.arange(400)
    with h5py.File(folder / "series.h5", "w") as file:
        file["signal"] = np.stack([np.sin(0.1 * steps), np.cos(0.07 * steps)], 1).astype("f4")
        file["run_id"] = (steps >= 250).astype("i4")
    return [folder / "series.h5"]


OWN: dict[str, Callable[[Path], list[Path]]] = {
    "file_each": file_each,
    "masked_columns": masked,
    "group_each": group_each,
    "texts": texts,
    "one_series": series,
}
NAMES = [*layouts.LAYOUTS, *OWN]
"""Of all layouts: those of `layouts`, and more."""


def files_of(name: str, folder: Path) -> list[Path]:
    """Write the files of a layout; return those that a person would name."""
    if name in OWN:
        return OWN[name](folder)
    layouts.LAYOUTS[name].write(folder)
    return [folder / "all.h5"] if name == "virtual" else sorted(folder.iterdir())
