"""Reading HDF5 in batches: our loaders against PyTorch's DataLoader and the page cache, in MB/s of float32."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import h5py
import hdf5plugin
import numpy as np
from common import Record

from hpctrain.batch import Batch
from hpctrain.comm import Group
from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.load import load
from hpctrain.data.loader import BatchLoader
from hpctrain.data.needs import Demand
from hpctrain.data.shard import MemoryShard

CHUNK_ROWS = 1024
BUFFER_BYTES = 16 << 20
CHUNKS = {"chunks": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": CHUNKS,
    "lz4": CHUNKS | dict(hdf5plugin.LZ4()),
    "zstd": CHUNKS | dict(hdf5plugin.Zstd()),
    "gzip": CHUNKS | {"compression": "gzip", "compression_opts": 4, "shuffle": True},
}
SLOW_TO_WRITE = ("gzip",)  # an eighth of the rows
DEMANDS = {("contiguous", "global"): 10.0, ("chunked", "chunks"): 8.0}

EXAMPLES = """\
  python benchmarks/hdf5_read.py --peer-python ~/torch/bin/python
  python benchmarks/hdf5_read.py --mb 64 --layouts contiguous,gzip --json read.json

Files of --mb (gzip: an eighth) are written to a temporary folder and read from the page cache: what is measured is CPU.
Ours are the loaders that training has, with data.memory too small for the file: "none" and "chunks" are streamed with a
buffer of 16 MB (an eighth of a smaller file), "global" is mapped.  The DataLoader takes whole batches, with 0 and 2
workers, in order ("none") or shuffled, and needs torch, h5py and hdf5plugin in its environment.  The page cache is read
by preadv, a batch at a time, in order.  Records: case, peer, ours_s and peer_s (seconds for 1 GB), ratio, ours_mb_s,
peer_mb_s, layout, shuffle."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    made.add_argument("--mb", type=int, default=512, help="size of a file, uncompressed (default 512)")
    made.add_argument("--width", type=int, default=256, help="float32 numbers of a row (default 256)")
    made.add_argument("--batch", type=int, default=256, help="rows of a batch (default 256)")
    made.add_argument("--seconds", type=float, default=0.3, help="of each timing (default 0.3)")
    default = ",".join(LAYOUTS)
    made.add_argument("--layouts", type=layout_names, default=layout_names(default), help=f"default {default}")
    made.set_defaults(pairs=3)
    return made


def layout_names(text: str) -> list[str]:
    names = text.split(",")
    if strange := [name for name in names if name not in LAYOUTS]:
        raise argparse.ArgumentTypeError(f"{strange[0]!r} is not one of {', '.join(LAYOUTS)}")
    return names


def write(path: Path, layout: str, rows: int, width: int) -> None:
    """Write rows that are like images: half of the numbers are 0, the others k / 255."""
    random = np.random.default_rng(0)
    options = dict(LAYOUTS[layout])
    if options.pop("chunks", False):
        options["chunks"] = (min(CHUNK_ROWS, rows), width)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (rows, width), "f4", **options)
        for lo in range(0, rows, 8192):
            shape = (min(8192, rows - lo), width)
            x[lo : lo + shape[0]] = random.integers(0, 256, shape) * random.integers(0, 2, shape) / np.float32(255)
        file["y"] = np.zeros(rows, np.int64)


class Ours:
    """Batches of a file as training gets them, epoch after epoch."""

    def __init__(self, path: Path, shuffle: str, batch: int, rows: int, width: int) -> None:
        group = SingleGroup()
        size = rows * width * 4
        buffer = min(BUFFER_BYTES, size // 8)
        demand = Demand(shuffle, batch=batch, buffer_bytes=buffer)
        self._data = load(group, Hdf5Source([str(path)], "x", "y"), distribute="shared", memory=size, demand=demand)
        if isinstance(self._data.train, MemoryShard):
            raise RuntimeError("the file was read into memory, where it was to be read in pieces")
        self._loader = BatchLoader(group, self._data.train, batch, 0, shuffle, buffer_bytes=buffer)
        self._loader.warm_up()
        self._batches = self._endless()
        next(self._batches)

    def _endless(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from self._loader.epoch(epoch)
            epoch += 1

    def time(self, seconds: float) -> float:
        """Return bytes a second of the batches taken in so many seconds."""
        return rate((batch.inputs.nbytes for batch in self._batches), seconds)

    def close(self) -> None:
        """End the thread that reads."""
        self._batches.close()
        self._data.close()


class PageCache:
    """A file read in order, a batch at a time, by the system call alone."""

    def __init__(self, path: Path, batch: int, width: int) -> None:
        self._handle = os.open(path, os.O_RDONLY)
        self._out, self._size = np.empty(batch * width * 4, np.uint8), path.stat().st_size
        self._chunks = self._endless()

    def _endless(self) -> Iterator[int]:
        at = 0
        while True:
            count = os.preadv(self._handle, [self._out], at)
            at = at + count if count == len(self._out) else 0
            yield count

    def time(self, seconds: float) -> float:
        """Return bytes a second."""
        return rate(self._chunks, seconds)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


class DataLoader:
    """A loader of the peer's process."""

    def __init__(self, peer: Any, path: Path, batch: int, shuffle: bool, workers: int) -> None:
        self._peer = peer
        self._number = peer.ask("open", path=str(path), batch=batch, shuffle=shuffle, workers=workers)

    def time(self, seconds: float) -> float:
        """Return bytes a second."""
        found = self._peer.ask("time", loader=self._number, seconds=seconds)
        return found["bytes"] / found["seconds"]


def rate(sizes: Iterator[int], seconds: float) -> float:
    """Return bytes a second of what an endless iterator yields in so many seconds."""
    started, done = time.perf_counter(), 0
    while (took := time.perf_counter() - started) < seconds:
        done += next(sizes)
    return done / took


def main(group: Group, args: argparse.Namespace) -> None:
    if group.rank:
        return
    peer = None
    if args.peer_python is not None:
        from train_step import Peer

        peer = Peer(args.peer_python, Path(__file__).with_name("peer_loader.py"))
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="hpctrain-read-") as folder:
        for layout in args.layouts:
            rows = (args.mb << 20) // (4 * args.width) // (8 if layout in SLOW_TO_WRITE else 1)
            path = Path(folder) / f"{layout}.h5"
            write(path, layout, rows, args.width)
            for shuffle in ("none", "chunks", "global") if layout == "contiguous" else ("none", "chunks"):
                records += measure(path, layout, shuffle, rows, peer, args)
            path.unlink()
    if peer is not None:
        peer.close()
    columns = {
        "file": lambda record: record["layout"],
        "order": lambda record: record["shuffle"],
        "ours MB/s": lambda record: f"{record['ours_mb_s']:,.0f}",
        "peer": lambda record: record["peer"],
        "peer MB/s": lambda record: f"{record['peer_mb_s']:,.0f}",
        "ratio": lambda record: f"{record['ratio']:.2f}" + wanted(record),
    }
    common.report(group, f"reading HDF5, rows of {4 * args.width} B, batches of {args.batch}", records, columns, args)


def wanted(record: Record) -> str:
    """Return what was asked for, where it was."""
    demand = DEMANDS.get((record["layout"], record["shuffle"]))
    return f" (of {demand:g})" if demand and "DataLoader" in record["peer"] else ""


def measure(path: Path, layout: str, shuffle: str, rows: int, peer: Any, args: argparse.Namespace) -> list[Record]:
    """Time one order of one file in turn with each peer."""
    ours = Ours(path, shuffle, args.batch, rows, args.width)
    cache = PageCache(path, args.batch, args.width)
    peers: dict[str, Any] = {"page cache": cache}
    for workers in (0, 2) if peer is not None else ():
        peers[f"DataLoader, {workers} workers"] = DataLoader(peer, path, args.batch, shuffle != "none", workers)
    records = []
    for name, other in peers.items():
        pairs = []
        for pair in range(args.pairs):
            # Who goes first changes, as in common.compare.
            order = (ours, other) if pair % 2 == 0 else (other, ours)
            found = {each: each.time(args.seconds) for each in order}
            pairs.append((found[ours], found[other]))
        mine, theirs = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        records.append(
            {
                "case": f"{layout}, {shuffle}",
                "peer": name,
                "ours_s": 1e9 / mine,
                "peer_s": 1e9 / theirs,
                "ratio": statistics.median(first / second for first, second in pairs),
                "ours_mb_s": mine / 1e6,
                "peer_mb_s": theirs / 1e6,
                "layout": layout,
                "shuffle": shuffle,
            }
        )
        print(f"{layout}, {shuffle}: {records[-1]['ratio']:.1f}x of {name}", flush=True)
    ours.close()
    cache.close()
    return records


if __name__ == "__main__":
    common.run(main, arguments())
