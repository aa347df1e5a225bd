"""Small HDF5 data sets in the shapes that scientists' files have: how to write each, its job, what is in it.

What is in it is read with plain h5py and numpy, so that it can stand beside what hpctrain hands out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Layout:
    """A data set.

    write   writes its files into a folder
    data    the job's section; paths start from the folder
    read    returns inputs and targets of a folder's examples, in order, by hand
    weight  likewise the weights that are not 1; None: all are
    per_position  whether there is a target for each position
    """

    write: Callable[[Path], None]
    data: dict[str, Any]
    read: Callable[[Path], Arrays]
    weight: Callable[[Path], np.ndarray] | None = None
    per_position: bool = False


LAYOUTS: dict[str, Layout] = {}
"""By name; each is written into a folder of its own."""


def _layout(data: dict[str, Any], **options: Any) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def put(write: Callable[[Path], None]) -> Callable[[Path], None]:
        LAYOUTS[write.__name__] = Layout(write, data, **options)
        return write

    return put


def datasets(folder: Path, *names: str, files: str = "*.h5") -> list[np.ndarray]:
    """The rows of datasets, over all files in order."""
    found: list[list[np.ndarray]] = [[] for _ in names]
    for path in sorted(folder.glob(files)):
        with h5py.File(path) as file:
            for rows, name in zip(found, names, strict=True):
                if file[name].shape is not None:
                    rows.append(file[name][()])
    return [np.concatenate([part for part in rows if len(part)]) for rows in found]


def _random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _jets(folder: Path) -> None:
    random = _random()
    for number, rows in enumerate((100, 100, 37)):
        with h5py.File(folder / f"jets-{number}.h5", "w") as file:
            jets = random.normal(size=(rows, 59)).astype("f4")
            jets[:, -5:] = np.eye(5)[random.integers(0, 5, rows)]
            file["jets"] = jets
            file["constituents"] = random.normal(size=(rows, 150, 16)).astype("f4")


def _read_jets(folder: Path) -> Arrays:
    (jets,) = datasets(folder, "jets")
    return jets[:, :53], jets[:, 54:].argmax(1)


def _read_constituents(folder: Path) -> Arrays:
    jets, constituents = datasets(folder, "jets", "constituents")
    return constituents, jets[:, 54:].argmax(1)


@_layout(
    {"files": "jets-*.h5", "input": "jets[:, 0:53]", "target": "jets[:, -5:]", "target_encoding": "one_hot"},
    read=_read_jets,
)
def jets(folder: Path) -> None:
    """Jets (N, 59) with the five labels in the last columns."""
    _jets(folder)


@_layout(
    {"files": "jets-*.h5", "input": "constituents", "target": "jets[:, -5:]", "target_encoding": "one_hot"},
    read=_read_constituents,
)
def constituents(folder: Path) -> None:
    """Their constituents (N, 150, 16)."""
    _jets(folder)


def _read_features(folder: Path) -> Arrays:
    a, b, labels = datasets(folder, "features/a", "features/b", "labels")
    return np.column_stack([a, b]), labels


@_layout({"files": "*.h5", "input": "features", "target": "labels"}, read=_read_features)
def features(folder: Path) -> None:
    """A group of datasets, in two files."""
    random = _random(1)
    for number, rows in enumerate((40, 23)):
        with h5py.File(folder / f"part{number}.h5", "w") as file:
            file["features/a"] = random.normal(size=rows)
            file["features/b"] = random.normal(size=(rows, 3)).astype("f4")
            file["labels"] = random.integers(0, 3, rows).astype("u1")


def _read_climate(folder: Path) -> Arrays:
    found = []
    for path in sorted(folder.glob("data-*.h5")):
        with h5py.File(path) as file:
            found.append((file["climate/data"][()], file["climate/labels"][()]))
    inputs, labels = zip(*found, strict=True)
    return np.stack(inputs), np.stack(labels).reshape(len(labels), -1)


@_layout(
    {
        "files": ".",
        "exclude": "stats.h5",
        "examples": "files",
        "input": "climate/data",
        "target": "climate/labels",
    },
    read=_read_climate,
    per_position=True,
)
def climate(folder: Path) -> None:
    """One example a file, a label for each place, and a file of statistics beside them."""
    random = _random(2)
    for number in range(11):
        with h5py.File(folder / f"data-{number:04}.h5", "w") as file:
            file["climate/data"] = random.normal(size=(4, 6, 3)).astype("f4")
            file["climate/labels"] = random.integers(0, 3, (4, 6))
    with h5py.File(folder / "stats.h5", "w") as file:
        file["climate/stats"] = random.normal(size=(2, 3))


def _read_volumes(folder: Path) -> Arrays:
    found = []
    for path in sorted(folder.glob("*.hdf5")):
        with h5py.File(path) as file:
            found.append((file["full"][()], file["unitPar"][()]))
    inputs, targets = zip(*found, strict=True)
    return np.stack(inputs), np.stack(targets)


@_layout({"files": ".", "examples": "files", "input": "full", "target": "unitPar"}, read=_read_volumes)
def volumes(folder: Path) -> None:
    """Volumes of int16 with four regression targets, one a file."""
    random = _random(3)
    for number in range(9):
        with h5py.File(folder / f"{number}.hdf5", "w") as file:
            file["full"] = random.integers(0, 300, (8, 8, 8, 4)).astype("i2")
            file["unitPar"] = random.uniform(-1, 1, 4).astype("f4")


def _read_masked(folder: Path) -> Arrays:
    inputs, targets = datasets(folder, "INPUTS/src/feature", "TARGETS/label")
    return inputs, targets


@_layout(
    {"files": "*.h5", "input": "INPUTS/src/feature", "target": "TARGETS/label", "mask": "INPUTS/src/MASK"},
    read=_read_masked,
    weight=lambda folder: datasets(folder, "INPUTS/src/MASK")[0].astype("f4"),
    per_position=True,
)
def masked(folder: Path) -> None:
    """Lists of varying length, filled up, with a mask of what is there."""
    random = _random(4)
    with h5py.File(folder / "a.h5", "w") as file:
        mask = np.arange(20) < random.integers(1, 21, 50)[:, None]
        file["INPUTS/src/MASK"] = mask
        file["INPUTS/src/feature"] = random.normal(size=(50, 20, 3)) * mask[..., None]
        file["TARGETS/label"] = random.integers(0, 3, (50, 20)) * mask


def _read_samples(folder: Path) -> Arrays:
    inputs, targets = [], []
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path) as file:
            for number in range(sum(name.startswith("sample_") for name in file)):
                group = file[f"sample_{number}"]
                image, attributes = group["image"][()].astype("f8"), group["image"].attrs
                inputs.append(image * attributes["scale_factor"] + attributes["add_offset"])
                targets.append([group["energy"][()], group["time"][()]])
    return np.stack(inputs), np.array(targets)


@_layout(
    {"files": "*.h5", "examples": "groups", "group": "sample_*", "input": "image", "target": ["energy", "time"]},
    read=_read_samples,
)
def samples(folder: Path) -> None:
    """One group an example: scalars, and an image with scale and bias."""
    random = _random(5)
    for name, count in (("a", 12), ("b", 5)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["about"] = "made for a test"
            for number in range(count):
                group = file.create_group(f"sample_{number}")
                group["image"] = random.integers(0, 256, (5, 6, 2)).astype("u1")
                group["image"].attrs["scale_factor"] = 1 / 255
                group["image"].attrs["add_offset"] = random.normal()
                group["energy"], group["time"] = random.normal(size=2)


def _read_records(folder: Path) -> Arrays:
    *records, labels = datasets(folder, "records_0", "records_1", "records_2", "labels")
    return np.stack(records, axis=2), labels


@_layout({"files": "*.h5", "input": "records_*", "target": "labels", "combine": "stack"}, read=_read_records)
def records(folder: Path) -> None:
    """Several datasets of one shape: gzip, without a limit, in the latest version of the format."""
    random = _random(6)
    with h5py.File(folder / "a.h5", "w", libver="latest") as file:
        for number in range(3):
            values = random.normal(size=(61, 10)).astype("f4")
            file.create_dataset(f"records_{number}", data=values, maxshape=(None, 10), compression="gzip")
        file.create_dataset("labels", data=random.integers(0, 3, 61), maxshape=(None,), compression="gzip")


def _read_xy(folder: Path) -> Arrays:
    inputs, targets = datasets(folder, "x", "y")
    return inputs, targets


def _xy(folder: Path, name: str, x: Any, y: Any, **options: Any) -> None:
    with h5py.File(folder / name, "w") as file:
        file.create_dataset("x", data=x, **options)
        file["y"] = y


_XY = {"files": "*.h5", "input": "x", "target": "y"}


@_layout(_XY, read=_read_xy)
def empty_shards(folder: Path) -> None:
    """A shard without rows and one without a dataspace among full ones."""
    random = _random(9)
    for name, rows in (("a", 0), ("b", 20), ("d", 13)):
        _xy(folder, f"{name}.h5", random.normal(size=(rows, 4)), random.integers(0, 3, rows))
    _xy(folder, "c.h5", h5py.Empty("f8"), h5py.Empty("i8"))


_NORMAL, _LABELS = _random(7).normal(size=(60, 5)), _random(8).integers(0, 3, 60)
_SORTED = np.repeat([0, 1, 2, 4], 15)  # by class, with a gap in the labels
_ARRAYS = {
    "big_endian": (_NORMAL.astype(">f8"), _LABELS.astype(">i2")),
    "half_precision": (_NORMAL.astype("f2"), _NORMAL[:, :2]),
    "two_rows": (_NORMAL[:2], _LABELS[:2]),  # fewer than ranks
    "sorted_classes": (np.eye(5)[_SORTED] + _NORMAL, _SORTED),
}
for _name, (_x, _y) in _ARRAYS.items():
    LAYOUTS[_name] = Layout(partial(_xy, name="a.h5", x=_x, y=_y), _XY, read=_read_xy)


@_layout(_XY, read=_read_xy)
def large_chunks(folder: Path) -> None:
    """Chunks of 1000 rows, compressed."""
    random = _random(11)
    x, y = random.normal(size=(2500, 4)).astype("f4"), random.integers(0, 3, 2500)
    _xy(folder, "a.h5", x, y, chunks=(1000, 4), compression="gzip")


def _read_virtual(folder: Path) -> Arrays:
    return tuple(datasets(folder, "x", "y", files="part-*.h5"))


@_layout({"files": "all.h5", "input": "x", "target": "y"}, read=_read_virtual)
def virtual(folder: Path) -> None:
    """A virtual dataset over all files of a pattern."""
    random = _random(12)
    for number, rows in enumerate((20, 1, 9)):
        _xy(folder, f"part-{number}.h5", random.normal(size=(rows, 4)), random.integers(0, 3, rows))
    with h5py.File(folder / "all.h5", "w") as file:
        for name, shape in (("x", (4,)), ("y", ())):
            dtype = "f8" if name == "x" else "i8"
            layout = h5py.VirtualLayout((30, *shape), dtype)
            at = 0
            for path in sorted(folder.glob("part-*.h5")):
                with h5py.File(path) as part:
                    rows = len(part[name])
                layout[at : at + rows] = h5py.VirtualSource(path.name, name, (rows, *shape))
                at += rows
            file.create_virtual_dataset(name, layout)


def _read_events(folder: Path) -> Arrays:
    (events,) = datasets(folder, "events")
    return np.column_stack([events["px"], events["py"]]), events["kind"]


@_layout({"files": "*.h5", "input": "events[px, py]", "target": "events[kind]"}, read=_read_events)
def events(folder: Path) -> None:
    """Records (a compound type)."""
    random = _random(13)
    table = np.zeros(45, [("px", "f4"), ("kind", "u1"), ("py", ">f8"), ("name", "S3")])
    table["px"], table["py"], table["kind"] = random.normal(size=45), random.normal(size=45), random.integers(0, 3, 45)
    with h5py.File(folder / "a.h5", "w") as file:
        file["events"] = table


def _read_series(folder: Path) -> Arrays:
    inputs, targets = [], []
    for path in sorted(folder.glob("*.nc")):
        with h5py.File(path) as file:
            values, runs = file["power"][()], file["run"][()]
        for start in range(len(values) - 8):
            if len(set(runs[start : start + 9])) == 1:
                inputs.append(values[start : start + 6])
                targets.append(values[start + 6 : start + 9, 0])
    return np.stack(inputs), np.stack(targets)


@_layout(
    {
        "files": "*.nc",
        "input": "power",
        "target": "power[:, 0]",
        "windows": {"length": 6, "horizon": "1:3", "run": "run"},
    },
    read=_read_series,
)
def series(folder: Path) -> None:
    """Windows over long series, of several runs a file."""
    random = _random(14)
    for name, rows in (("a", 50), ("b", 31)):
        with h5py.File(folder / f"{name}.nc", "w") as file:
            file["power"] = random.normal(size=(rows, 2)).astype("f4")
            file["run"] = np.arange(rows) // 20


def _read_flowers(folder: Path) -> Arrays:
    site, size, kind = datasets(folder, "site", "size", "kind")
    return np.column_stack([np.unique(site, return_inverse=True)[1], size]), np.unique(kind, return_inverse=True)[1]


@_layout({"files": "*.h5", "input": ["site", "size"], "target": "kind"}, read=_read_flowers)
def flowers(folder: Path) -> None:
    """Text as categories: of varying length, and of a fixed one."""
    random = _random(15)
    for name in "ab":
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["site"] = random.choice(["wood", "meadow", "shore"], 25).astype(h5py.string_dtype())
            file["size"] = random.normal(size=25)
            file["kind"] = random.choice([b"tulip", b"rose", b"iris"], 25)


def _read_packed(folder: Path) -> Arrays:
    inputs, targets = datasets(folder, "t", "y")
    return np.where(inputs == -1, 0, inputs * 0.01 + 270.0), targets


@_layout(
    {"files": "*.h5", "input": "t", "target": "y", "missing": "drop"},
    read=_read_packed,
    weight=lambda folder: (datasets(folder, "t")[0] != -1).all(axis=1).astype("f4"),
)
def packed(folder: Path) -> None:
    """Packed as netCDF does, with missing values that make their examples not count."""
    random = _random(16)
    values = random.integers(0, 2000, (40, 3)).astype("i2")
    values[random.integers(0, 40, 5), 1] = -1
    with h5py.File(folder / "a.h5", "w") as file:
        file["t"] = values
        file["t"].attrs.update({"scale_factor": 0.01, "add_offset": 270.0, "_FillValue": np.int16(-1)})
        file["y"] = random.normal(size=40)


@_layout(_XY, read=_read_xy)
def compressed(folder: Path) -> None:
    """Each file with another filter of hdf5plugin."""
    random = _random(17)
    filters = [hdf5plugin.LZ4(), hdf5plugin.Zstd(), hdf5plugin.Blosc(), hdf5plugin.Bitshuffle()]
    for number, options in enumerate(filters):
        _xy(
            folder,
            f"{number}.h5",
            random.normal(size=(20, 4)).astype("f4"),
            random.integers(0, 3, 20),
            chunks=(8, 4),
            **options,
        )
