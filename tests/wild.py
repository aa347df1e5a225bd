"""Small files in the layouts in which scientists' data comes: a function each, which returns the files to name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np


def _labels(rng: np.random.Generator, rows: int, classes: int) -> np.ndarray:
    """Labels of which each class has some."""
    return rng.permutation(np.arange(rows) % classes)


def jets(folder: Path) -> list[Path]:
    """Three files of 100, 100 and 37 rows: the last five of 59 columns are one-hot labels; a second dataset besides."""
    rng, paths = np.random.default_rng(1), []
    for number, rows in enumerate((100, 100, 37)):
        table = rng.normal(size=(rows, 59)).astype("f4")
        table[:, -5:] = np.eye(5)[_labels(rng, rows, 5)]
        paths.append(folder / f"jets_{number}.h5")
        with h5py.File(paths[-1], "w") as file:
            file["jets"] = table
            file["constituents"] = rng.normal(size=(rows, 150, 16)).astype("f4")
    return paths


def group_of_features(folder: Path) -> list[Path]:
    """Features in a group, labels beside it, in two files."""
    rng, paths = np.random.default_rng(2), []
    for number, rows in enumerate((40, 24)):
        paths.append(folder / f"part-{number}.h5")
        with h5py.File(paths[-1], "w") as file:
            file["features/a"], file["features/b"] = rng.normal(size=(rows, 3)), rng.normal(size=rows)
            file["labels"] = _labels(rng, rows, 2)
    return paths


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


def volumes(folder: Path) -> list[Path]:
    """One volume of small integers a file, with four numbers to predict."""
    rng, paths = np.random.default_rng(4), []
    for number in range(6):
        paths.append(folder / f"univ_{number}.hdf5")
        with h5py.File(paths[-1], "w") as file:
            file["full"] = rng.poisson(2, (8, 8, 8, 4)).astype("i2")
            file["unitPar"] = rng.uniform(-1, 1, 4).astype("f4")
    return paths


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


def records_by_number(folder: Path) -> list[Path]:
    """Datasets with numbers in their names, gzip, that may grow, written by the latest version of the library."""
    rng, rows = np.random.default_rng(7), 90
    with h5py.File(folder / "records.h5", "w", libver="latest") as file:
        for number in range(3):
            file.create_dataset(
                f"records_{number}", data=rng.normal(size=(rows, 4)), maxshape=(None, 4), compression="gzip"
            )
        file["labels"] = _labels(rng, rows, 3)
    return [folder / "records.h5"]


def big_endian(folder: Path) -> list[Path]:
    """Big-endian real inputs and integer labels."""
    rng = np.random.default_rng(8)
    with h5py.File(folder / "big.h5", "w") as file:
        file["x"], file["y"] = rng.normal(size=(80, 6)).astype(">f8"), _labels(rng, 80, 4).astype(">i4")
    return [folder / "big.h5"]


def half(folder: Path) -> list[Path]:
    """Inputs of 16 bits and real targets."""
    rng = np.random.default_rng(9)
    with h5py.File(folder / "half.h5", "w") as file:
        x = rng.normal(size=(70, 5)).astype("f2")
        file["inputs"], file["targets"] = x, x[:, :2].astype("f4")
    return [folder / "half.h5"]


def with_empty_files(folder: Path) -> list[Path]:
    """A file without rows and one with an empty dataspace among full ones."""
    rng, paths = np.random.default_rng(10), [folder / f"{name}.h5" for name in "abcd"]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            if number == 1:
                file["x"], file["y"] = np.empty((0, 6), "f4"), np.empty(0, "i8")
            elif number == 2:
                file["x"], file["y"] = h5py.Empty("f4"), h5py.Empty("i8")
            else:
                file["x"], file["y"] = rng.normal(size=(30, 6)).astype("f4"), _labels(rng, 30, 3)
    return paths


def few_rows(folder: Path) -> list[Path]:
    """Two rows: fewer than ranks."""
    with h5py.File(folder / "two.h5", "w") as file:
        file["x"], file["y"] = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], "f4"), np.array([0, 1])
    return [folder / "two.h5"]


def sorted_with_a_gap(folder: Path) -> list[Path]:
    """Rows sorted by their labels, of which 3 is none."""
    rng = np.random.default_rng(11)
    labels = np.repeat([0, 1, 2, 4], 25)
    with h5py.File(folder / "sorted.h5", "w") as file:
        file["x"], file["y"] = rng.normal(size=(100, 4)).astype("f4") + labels[:, None], labels
    return [folder / "sorted.h5"]


def chunked(folder: Path) -> list[Path]:
    """Chunks of a thousand rows, gzip."""
    rng, rows = np.random.default_rng(12), 3500
    with h5py.File(folder / "chunked.h5", "w") as file:
        values = rng.normal(size=(rows, 3)).astype("f4")
        file.create_dataset("data", data=values, chunks=(1000, 3), compression="gzip", compression_opts=1)
        file.create_dataset("label", data=_labels(rng, rows, 2), chunks=(1000,), compression="gzip")
    return [folder / "chunked.h5"]


def virtual(folder: Path) -> list[Path]:
    """A virtual dataset over several files."""
    rng, x, y = np.random.default_rng(13), h5py.VirtualLayout((60, 4), "f4"), h5py.VirtualLayout((60,), "i8")
    for number in range(3):
        with h5py.File(folder / f"source-{number}.h5", "w") as file:
            file["x"], file["y"] = rng.normal(size=(20, 4)).astype("f4"), _labels(rng, 20, 2)
        x[20 * number : 20 * number + 20] = h5py.VirtualSource(f"source-{number}.h5", "x", (20, 4))
        y[20 * number : 20 * number + 20] = h5py.VirtualSource(f"source-{number}.h5", "y", (20,))
    with h5py.File(folder / "all.h5", "w") as file:
        file.create_virtual_dataset("x", x)
        file.create_virtual_dataset("y", y)
    return [folder / "all.h5"]


def compound(folder: Path) -> list[Path]:
    """Records with a label among their fields."""
    rng, rows = np.random.default_rng(14), 60
    table = np.zeros(rows, [("px", "f4"), ("py", "f8"), ("charge", "i1"), ("label", "u1")])
    table["px"], table["py"], table["charge"] = rng.normal(size=rows), rng.normal(size=rows), rng.integers(-1, 2, rows)
    table["label"] = _labels(rng, rows, 2)
    with h5py.File(folder / "compound.h5", "w") as file:
        file["events"] = table
    return [folder / "compound.h5"]


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


LAYOUTS: dict[str, Callable[[Path], list[Path]]] = {
    function.__name__: function
    for function in (
        jets, group_of_features, file_each, volumes, masked, group_each, records_by_number, big_endian, half,
        with_empty_files, few_rows, sorted_with_a_gap, chunked, virtual, compound, texts, series,
    )
}  # fmt: skip
