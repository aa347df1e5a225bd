"""All-reduce: our algorithms against MPI's own, from 1 KB to 64 MB."""

from __future__ import annotations

import argparse
import functools
import re

import common
import numpy as np
from common import Record, size_text, time_text

from hpctrain.comm import Group
from hpctrain.comm.collectives import COLLECTIVES

SIZES = tuple(2**power for power in range(10, 27, 2))  # bytes: 1 KB, 4 KB, ... 64 MB
UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}

EXAMPLES = """\
  mpirun -n 4 python benchmarks/all_reduce.py
  mpirun -n 2 python benchmarks/all_reduce.py --sizes 64KB 16MB --pairs 15
  mpirun -n 2 python benchmarks/all_reduce.py --json all_reduce.json

A ratio above 1 means that ours is faster.  GB/s is the message's bytes over our time.  With more ranks than cores the
figures say how well ranks share a core, not how fast the machine is.  Records: case, peer, ours_s, peer_s, ratio,
algorithm, bytes, ranks, nodes, library."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    names = [name for name in COLLECTIVES if name != "native"]
    made.add_argument("--algorithms", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    made.add_argument(
        "--sizes", nargs="+", type=size_bytes, default=SIZES, help="1KB 64KB 16MB ... (default 1KB to 64MB)"
    )
    return made


def size_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([KMG]?B?)", text.upper())
    count = int(match[1]) * UNITS[match[2] if match[2] in UNITS else match[2] + "B"] if match else 0
    if count < 4 or count % 4:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4KB or 16MB (a multiple of 4 bytes)")
    return count


def check(group: Group, all_reduce: functools.partial, buffer: np.ndarray) -> None:
    """Sum small whole numbers, which float32 does exactly, and compare with the closed form."""
    pattern = np.arange(len(buffer), dtype=np.int32) % 1000
    buffer[:] = pattern * (group.rank + 1)
    all_reduce()
    if not np.array_equal(buffer, pattern * (group.size * (group.size + 1) // 2)):
        raise ArithmeticError(f"{all_reduce.func.__qualname__} of {buffer.nbytes} bytes gave a wrong sum")


def main(group: Group, args: argparse.Namespace) -> None:
    if group.rank == 0:
        print(f"{group.library}: {group.size} ranks on {group.nodes} nodes, {args.pairs} pairs a case", flush=True)
    native = COLLECTIVES.get("native")(group)
    records: list[Record] = []
    for name in args.algorithms:
        ours = COLLECTIVES.get(name)(group)
        ours.warm_up()
        for size in args.sizes:
            buffer = ours.allocate(group, size // 4)
            calls = [functools.partial(collective.all_reduce, buffer) for collective in (ours, native)]
            for call in calls:
                check(group, call, buffer)
            buffer[:] = 0  # sums of sums would grow without end
            timed = common.compare(group, *calls, args.pairs)
            facts = {
                "algorithm": name,
                "bytes": size,
                "ranks": group.size,
                "nodes": group.nodes,
                "library": group.library,
            }
            records.append(timed.record(f"{name} {size_text(size)}", "MPI_Allreduce", **facts))
    columns = {
        "algorithm": lambda record: record["algorithm"],
        "size": lambda record: size_text(record["bytes"]),
        "ours": lambda record: time_text(record["ours_s"]),
        "MPI_Allreduce": lambda record: time_text(record["peer_s"]),
        "ratio": lambda record: f"{record['ratio']:.2f}",
        "GB/s": lambda record: f"{record['bytes'] / record['ours_s'] / 1e9:.2f}",
    }
    common.report(group, f"all-reduce, {group.size} ranks, {group.library}", records, columns, args)


if __name__ == "__main__":
    common.run(main, arguments())
