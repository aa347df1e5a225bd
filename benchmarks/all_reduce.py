"""All-reduce: our algorithms against MPI's own and PyTorch's gloo, from 1 KB to 256 MB."""

from __future__ import annotations

import argparse
import functools
import re
import socket
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
from common import Record, size_text, time_text

from hpctrain.comm import Group
from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.collectives.choice import AUTO, allocate
from hpctrain.comm.executor import CHUNK_BYTES
from hpctrain.comm.schedules import SUMMING
from hpctrain.errors import UserError
from hpctrain.monitor.words import counted
from hpctrain.plan.cost import price, programs
from hpctrain.strategies.choosing import choose, measure_machine

NATIVE, GLOO = "MPI_Allreduce", "gloo"
SIZES = tuple(2**power for power in range(10, 29, 2))  # bytes: 1 KB, 4 KB, ... 256 MB
UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
PRICED, PRICED_WITHIN = ("ring", "halving_doubling"), 0.25  # schedules whose price is judged, and how far off it may be
SWEPT = 1 << 26  # bytes of the array that shows how quick memory is: far more than a cache holds

EXAMPLES = """\
  mpirun -n 4 python benchmarks/all_reduce.py
  mpirun -n 2 python benchmarks/all_reduce.py --sizes 64KB 16MB --pairs 15
  mpirun -n 2 python benchmarks/all_reduce.py --json all_reduce.json --plot all_reduce.png
  mpirun -n 2 python benchmarks/all_reduce.py --peer-python ~/torch/bin/python

All of them are timed in turn, round after round; a ratio is the median over the rounds of MPI's (or gloo's) time over
ours: above 1 ours is faster.  GB/s is the message's bytes over our time.  With more ranks than cores the figures say
how well ranks share a core, not how fast the machine is.  "auto" is what a run takes by default for such a buffer.
Limits: in a node each byte of the sum is read from every rank's buffer and written to it (what stays in caches can be
quicker); between nodes (--gbit, the rate of a node's link) each node has to send 2 (H - 1) / H of the buffer.
"priced" is what the cost model makes of a schedule from a short measurement of links and additions, over the time;
between nodes that has to be within 25 % for ring and halving_doubling.
Records: case, peer, ours_s, peer_s, ratio, algorithm, chosen, bytes, ranks, nodes, library, limit_s, priced_s."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    names = [AUTO, *(name for name in COLLECTIVES if name != "native")]
    made.add_argument("--algorithms", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    made.add_argument(
        "--sizes", nargs="+", type=size_bytes, default=SIZES, help="1KB 64KB 16MB ... (default 1KB to 256MB)"
    )
    made.add_argument("--gbit", type=float, metavar="RATE", help="of each node's link, for the limit between nodes")
    made.add_argument("--plot", type=Path, metavar="FILE", help="also draw time over size, log-log (needs matplotlib)")
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
    buffer[:] = 0  # sums of sums would grow without end


class Gloo:
    """gloo in a process of its own beside each rank."""

    def __init__(self, group: Group, python: Path) -> None:
        from train_step import Peer

        self._peer = Peer(python, Path(__file__).with_name("peer_gloo.py"))
        with socket.socket() as free:
            free.bind(("", 0))
            place = (group.hostname if group.nodes > 1 else "127.0.0.1", free.getsockname()[1])
        host, port = group.broadcast_object(place)
        interface = None if group.nodes > 1 else "lo"
        self._peer.ask("open", rank=group.rank, size=group.size, host=host, port=port, interface=interface)

    def timer(self, size: int) -> Callable[[int], float]:
        """Return what times so many all-reduces of `size` bytes."""
        return lambda repeats: self._peer.ask("time", bytes=size, repeats=repeats)

    def close(self) -> None:
        """End the process."""
        self._peer.close()


def main(group: Group, args: argparse.Namespace) -> None:
    if args.plot is not None:
        with group.agreed():
            check_plot()
    title = f"all-reduce, {counted(group.size, 'rank')} on {counted(group.nodes, 'node')}, {group.library}"
    if group.rank == 0:
        print(f"{title}, {args.pairs} rounds a size", flush=True)
    gloo = Gloo(group, args.peer_python) if args.peer_python is not None else None
    memory_s = sweep_seconds(group)
    nodes = group.all_gather_objects(group.node)
    machine = measure_machine(group, nodes) if group.size > 1 else None
    records: list[Record] = []
    for size in args.sizes:
        records += measure(group, size, gloo, memory_s, args)
    for record in records:
        record["priced_s"] = None
        if machine is not None and record["algorithm"] in SUMMING:
            parts = programs(SUMMING[record["algorithm"]], group.size, record["bytes"] // 4, CHUNK_BYTES)
            record["priced_s"] = price(parts, nodes, machine)
    if gloo is not None:
        gloo.close()
    columns = {
        "algorithm": lambda record: record["algorithm"] + (f" ({name})" if (name := record["chosen"]) else ""),
        "size": lambda record: size_text(record["bytes"]),
        "ours": lambda record: time_text(record["ours_s"]),
        "peer": lambda record: record["peer"],
        "theirs": lambda record: time_text(record["peer_s"]),
        "ratio": lambda record: f"{record['ratio']:.2f}",
        "GB/s": lambda record: f"{record['bytes'] / record['ours_s'] / 1e9:.2f}",
        "of limit": lambda record: f"{record['ours_s'] / record['limit_s']:.2f}" if record["limit_s"] else "",
        "priced": priced_text,
    }
    common.report(group, title, records, columns, args)
    if args.plot is not None and group.rank == 0:
        plot(title, records, args.plot)


def priced_text(record: Record) -> str:
    """Return the price over the time, and where it has to be right whether it is."""
    if not record["priced_s"]:
        return ""
    share = record["priced_s"] / record["ours_s"]
    is_judged = record["nodes"] > 1 and record["algorithm"] in PRICED
    return f"{share:.2f}" + (f" {'OK' if abs(share - 1) <= PRICED_WITHIN else 'NOT'}" if is_judged else "")


def measure(group: Group, size: int, gloo: Gloo | None, memory_s: float, args: argparse.Namespace) -> list[Record]:
    """Time all algorithms and peers on buffers of one size, in turn."""
    shared, own = allocate(AUTO, group, size // 4), group.allocate(size // 4)
    calls: dict[str, functools.partial] = {}
    chosen = ""
    for name in (*args.algorithms, NATIVE):
        taken = name
        if name == AUTO:
            choice, said = choose(group, shared, len(shared), None)
            taken = chosen = choice.collective
            if group.rank == 0:
                print(*said, sep="\n", end="\n" * bool(said), flush=True)
        ours = COLLECTIVES.get("native" if name == NATIVE else taken)(group)
        ours.warm_up()
        buffer = shared if taken == "window" else own
        calls[name] = functools.partial(ours.all_reduce, buffer)
        check(group, calls[name], buffer)
    timers = {name: functools.partial(common.seconds, group, call) for name, call in calls.items()}
    if gloo is not None:
        timers[GLOO] = gloo.timer(size)
    times = common.in_turn(group, timers, args.pairs)
    limits = [2 * size * memory_s] if group.local_size > 1 else []  # a rank reads and writes its part of every buffer
    if args.gbit and group.nodes > 1:
        limits.append(2 * (group.nodes - 1) / group.nodes * size * 8 / (args.gbit * 1e9))
    records = []
    for peer in (NATIVE, GLOO) if gloo is not None else (NATIVE,):
        for name in args.algorithms:
            pairs = list(zip(times[name], times[peer], strict=True))
            facts = {
                "algorithm": name,
                "chosen": chosen if name == AUTO else "",
                "bytes": size,
                "ranks": group.size,
                "nodes": group.nodes,
                "library": group.library,
                "limit_s": max(limits, default=None),
            }
            records.append(common.of_pairs(pairs).record(f"{name} {size_text(size)}", peer, **facts))
    return records


def sweep_seconds(group: Group) -> float:
    """Return a rank's seconds a byte of memory's traffic, when all ranks sweep through arrays of their own."""
    from hpctrain.kernels.reduce import add_into

    total, values = (np.zeros(SWEPT // 4, np.float32) for _ in range(2))
    sweep = functools.partial(add_into, total, values)
    sweep()
    slowest = max(group.all_gather_objects(statistics.median(common.seconds(group, sweep, 1) for _ in range(5))))
    return slowest / (3 * SWEPT)  # two arrays are read and one is written


def check_plot() -> None:
    """Say what is missing before anything is measured."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("--plot needs matplotlib", hint='pip install "hpctrain[plot]"') from None


def plot(title: str, records: list[Record], path: Path) -> None:
    """Draw a line for each algorithm and peer, and the limits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, dict[int, float]] = {}
    for record in records:
        lines.setdefault(record["algorithm"], {})[record["bytes"]] = record["ours_s"]
        lines.setdefault(record["peer"], {})[record["bytes"]] = record["peer_s"]
    limits = {record["bytes"]: record["limit_s"] for record in records if record["limit_s"]}
    figure, axes = pyplot.subplots(figsize=(8, 5.5))
    for name, points in lines.items():
        style: dict[str, Any] = {"linewidth": 2.5} if name == AUTO else {}
        style |= {"linestyle": "--", "color": "black"} if name == NATIVE else {}
        style |= {"linestyle": "-.", "color": "grey"} if name == GLOO else {}
        axes.plot(*zip(*sorted(points.items()), strict=True), marker="o", markersize=3, label=name, **style)
    if limits:
        axes.plot(*zip(*sorted(limits.items()), strict=True), color="red", linewidth=1, linestyle=":", label="limit")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="seconds", title=title)
    axes.set_xscale("log", base=2)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    temporary = path.with_name(f".{path.name}.tmp{path.suffix}")
    figure.savefig(temporary, dpi=120)
    temporary.replace(path)
    print(f"plot: {path}")


if __name__ == "__main__":
    common.run(main, arguments())
