"""Time of a training step with gradients compressed in each way, against none: for slow links between hosts."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import common
from common import size_text, time_text
from models import CASES
from overlap import Stepper

from hpctrain.comm import Group
from hpctrain.compress import COMPRESSIONS
from hpctrain.strategies.all_reduce import AllReduce

DEMANDS = {"int8": 2.2}  # at 100 Mbit/s
NONE = "none"

EXAMPLES = """\
  python benchmarks/on_hosts.py --rate 100mbit benchmarks/compressed_steps.py
  python benchmarks/on_hosts.py --rate 1gbit --ranks 2 benchmarks/compressed_steps.py --compressions int8 one_bit
  python benchmarks/on_hosts.py --rate 100mbit benchmarks/compressed_steps.py --no-overlap --steps 5 --json slow.json

All take their steps in turn, some at a time, and the slowest rank counts.  "sent" is what a host's interface counted
for a step.  Records: case, peer (none), ours_s, peer_s, ratio, compression, hosts, ranks, library, sent_bytes."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    names = list(COMPRESSIONS)
    made.add_argument("--model", choices=list(CASES), default="mlp-wide", help="default mlp-wide")
    made.add_argument("--batch", type=int, help="rows a rank (default: the model's)")
    made.add_argument("--compressions", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    made.add_argument("--steps", type=int, default=20, help="timed steps of each (default 20)")
    made.add_argument("--collective", default="window", help="as in a job (default window)")
    made.add_argument("--no-overlap", action="store_true", help="send gradients after the backward pass")
    return made


def sent_bytes() -> int:
    """Return what this host has sent over its link so far; 0 where it has none of ours."""
    from cluster import hosts

    try:
        return hosts.sent_bytes()
    except LookupError:
        return 0


def main(group: Group, args: argparse.Namespace) -> None:
    case = CASES[args.model]
    case = dataclasses.replace(case, batch=args.batch or case.batch)
    overlap = False if args.no_overlap else "auto"
    steppers = {}
    for name in (NONE, *args.compressions):
        options = {"compression": {"type": name, "warm_up_steps": 0}} if name != NONE else {}
        strategy = AllReduce(collective=args.collective, overlap=overlap, **options)
        steppers[name] = Stepper(group, case, strategy)
        steppers[name].step(0)  # makes connections and buffers
    times: dict[str, list[float]] = {name: [] for name in steppers}
    sent = dict.fromkeys(steppers, 0)
    for index in range(1, args.steps + 1):
        for name, stepper in steppers.items():
            group.barrier(patient=True)
            before, started = sent_bytes(), time.perf_counter()
            stepper.step(index)
            times[name].append(max(group.all_gather_objects(time.perf_counter() - started)))
            sent[name] += sent_bytes() - before
    for stepper in steppers.values():
        stepper.strategy.close()
    records = [record(group, args, name, times, sent) for name in steppers]
    columns = {
        "compression": lambda record: record["compression"],
        "step": lambda record: time_text(record["ours_s"]),
        "none": lambda record: time_text(record["peer_s"]),
        "times faster": lambda record: f"{record['ratio']:.2f}",
        "sent": lambda record: size_text(round(record["sent_bytes"])),
        "demand at 100 Mbit/s": lambda record: str(DEMANDS.get(record["compression"], "")),
    }
    common.report(
        group, f"{args.model}, {group.size} ranks on {group.nodes} hosts, {group.library}", records, columns, args
    )


def record(
    group: Group, args: argparse.Namespace, name: str, times: dict[str, list[float]], sent: dict[str, int]
) -> common.Record:
    timed = common.Comparison(
        statistics.median(times[name]),
        statistics.median(times[NONE]),
        statistics.median(peer / ours for ours, peer in zip(times[name], times[NONE], strict=True)),
    )
    facts = {"compression": name, "hosts": group.nodes, "ranks": group.size, "library": group.library}
    facts["sent_bytes"] = max(group.all_gather_objects(sent[name])) / args.steps
    return timed.record(f"{args.model} {name}", NONE, **facts)


if __name__ == "__main__":
    common.run(main, arguments())
