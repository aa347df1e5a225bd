"""PyTorch's DataLoader as the peer in reading HDF5, on command.  Not a benchmark itself.

`hdf5_read.py` starts it with the interpreter of `--peer-python`, writes one JSON object a line to its standard input
and reads one answer a line:

    {"do": "open", "path": FILE, "batch": 256, "shuffle": true, "workers": 0}   a number for this loader
    {"do": "time", "loader": NUMBER, "seconds": 0.5}                            {"bytes": B, "seconds": S}

The loaders take whole batches at once (`__getitems__`), which is the fastest that one can do with a DataLoader: a slice
where the rows stand one after another, else h5py's selection of sorted rows.  It imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - makes its filters known to HDF5
import numpy as np
import torch


class Rows(torch.utils.data.Dataset):
    """The rows of the dataset "x" of a file, opened by each worker for itself."""

    def __init__(self, path: str) -> None:
        self._path = path
        with h5py.File(path) as file:
            self._rows = len(file["x"])
        self._x: h5py.Dataset | None = None

    def __len__(self) -> int:
        return self._rows

    def __getitems__(self, rows: list[int]) -> np.ndarray:
        """Return a batch."""
        if self._x is None:
            self._x = h5py.File(self._path)["x"]
        if rows[-1] - rows[0] == len(rows) - 1 and rows == sorted(rows):
            return self._x[rows[0] : rows[-1] + 1]
        return self._x[np.sort(rows)]


def endless(path: str, batch: int, shuffle: bool, workers: int) -> Iterator[torch.Tensor]:
    """Yield batches, epoch after epoch."""
    loader = torch.utils.data.DataLoader(
        Rows(path),
        batch,
        shuffle=shuffle,
        num_workers=workers,
        collate_fn=torch.from_numpy,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


def measure(batches: Iterator[torch.Tensor], seconds: float) -> dict[str, float]:
    """Take batches for so many seconds."""
    started, size = time.perf_counter(), 0
    while (took := time.perf_counter() - started) < seconds:
        size += next(batches).nbytes
    return {"bytes": size, "seconds": took}


def main() -> None:
    """Answer commands until there are no more."""
    torch.set_num_threads(1)
    loaders: list[Any] = []
    for line in sys.stdin:
        command = json.loads(line)
        if command.pop("do") == "open":
            loaders.append(endless(**command))
            next(loaders[-1])
            answer: Any = len(loaders) - 1
        else:
            answer = measure(loaders[command["loader"]], command["seconds"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
