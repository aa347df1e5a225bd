"""How much of the time to sum gradients is hidden behind the backward pass: steps alone, with and without overlap."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import time
from pathlib import Path

import common
import timeline
from all_reduce import check_plot
from common import time_text
from models import CASES, Case

from hpctrain.comm import Group
from hpctrain.comm.single_group import SingleGroup
from hpctrain.nn.flat import LOSS, ROWS, WEIGHT
from hpctrain.optim.sgd import Sgd
from hpctrain.optim.table import UpdateTable
from hpctrain.strategies.all_reduce import AllReduce

BATCHES = {"cnn-mnist": 64, "mlp-wide": 1024}
DEMAND, STRETCH = 0.45, 0.25  # of what is exposed without overlap

EXAMPLES = """\
  python benchmarks/on_hosts.py --hosts 4 --rate 1gbit benchmarks/overlap.py --rate-gbps 1
  python benchmarks/on_hosts.py --hosts 2 --rate 1gbit benchmarks/overlap.py --models mlp-wide --plot step.png

A step alone computes and updates and sends nothing; what a step takes more than that is exposed communication: waiting,
and the share of the core that the transfer took.  The three are timed in turn.  Records: case, peer ("without"),
ours_s, peer_s, ratio (of the exposed times, without over with), alone_s, wire_s, backward_left_s, cpu_s and peer_cpu_s
(CPU time that a step takes more than alone), exposed_share, allowed_share, bytes, bucket, and timelines (without and
with) of a step of rank 0: (row, what, begin_s, end_s, bytes) of each thing that it did.  --plot draws them."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    made.add_argument("--models", default=",".join(BATCHES), metavar="A,B", help=f"default: {', '.join(BATCHES)}")
    made.add_argument("--batch", type=int, help="rows a rank (default: 64 of cnn-mnist, 1024 of mlp-wide)")
    made.add_argument("--bucket", default="1 MB", help='the least that leaves at a time (default "1 MB")')
    made.add_argument("--collective", default="auto", help="as in a job (default auto)")
    made.add_argument("--steps", type=int, default=4, help="of one timing (default 4)")
    made.add_argument("--rate-gbps", type=float, default=1.0, help="of each host's link, for the wire's own time (1)")
    made.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw a step's timeline, of each model (needs matplotlib)"
    )
    return made


class Stepper:
    """A model that steps with a strategy."""

    def __init__(self, group: Group, case: Case, strategy: AllReduce) -> None:
        inputs, targets = case.data(seed=group.rank)
        self.batches = case.batches(inputs, targets)
        self.model = case.model(allocate_gradients=functools.partial(strategy.allocate_gradients, group))
        self.model.initialize()
        self.model.table = UpdateTable.from_slots(self.model.layout)
        self.model.reserve(case.batch)
        self.optimizer = Sgd(lr=1e-3, momentum=0.9)
        self.strategy = strategy.bind(group, self.model, self.optimizer, None)
        self.model.warm_up()
        self.strategy.warm_up()
        self.model.cut_at(self.strategy.cuts)
        self.index = 0  # of the step under way
        self.told: list[tuple[int, float]] = []  # when which offset was final, in the last step

    def step(self, index: int) -> None:
        """Make one update."""
        model, batch = self.model, self.batches[index % len(self.batches)]
        self.index = index
        model.tail[WEIGHT], model.tail[ROWS] = batch.weight.sum(dtype="f8"), batch.rows
        self.told.clear()
        loss = model.loss_and_grad(batch, beta=0.0, ready=self._ready)
        if len(self.told) == 0:  # else it has left
            model.tail[LOSS] = loss
        self.told.append((0, time.perf_counter()))
        self.strategy.step(index, self.optimizer.lr)

    def _ready(self, lo: int, loss: float) -> None:
        if len(self.told) == 0:  # it goes with the first gradients
            self.model.tail[LOSS] = loss
        self.told.append((lo, time.perf_counter()))
        self.strategy.ready(lo, self.index)


def main(group: Group, args: argparse.Namespace) -> None:
    if args.plot is not None:
        with group.agreed():
            check_plot()
    records = []
    for name in args.models.split(","):
        case = dataclasses.replace(CASES[name], batch=args.batch or BATCHES.get(name, CASES[name].batch))
        records.append(measure(group, name, case, args))
    title = f"exposed communication, {group.size} ranks on {group.nodes} hosts, {group.library}"
    common.report(
        group,
        title,
        records,
        {
            "model": lambda record: record["case"],
            "batch": lambda record: str(record["batch"]),
            "alone": lambda record: time_text(record["alone_s"]),
            "without": lambda record: time_text(record["peer_s"]),
            "with overlap": lambda record: time_text(record["ours_s"]),
            "its CPU time": lambda record: f"{time_text(record['peer_cpu_s'])}, {time_text(record['cpu_s'])}",
            "wire": lambda record: time_text(record["wire_s"]),
            "backward left": lambda record: time_text(record["backward_left_s"]),
            "share exposed": lambda record: f"{record['exposed_share']:.2f}",
            "allowed": lambda record: f"{record['allowed_share']:.2f}",
            "buckets": lambda record: str(record["buckets"]),
        },
        args,
    )
    if args.plot is not None and group.rank == 0:
        lines = {
            f"{record['case']} {kind} overlap": bars for record in records for kind, bars in record["timelines"].items()
        }
        timeline.draw(args.plot, f"one step of rank 0 of {group.size} on {group.nodes} hosts, {group.library}", lines)


def measure(group: Group, name: str, case: Case, args: argparse.Namespace) -> common.Record:
    """Time the three kinds of step in turn."""
    options = {"collective": args.collective, "bucket": args.bucket}
    steppers = {
        "alone": Stepper(SingleGroup(), case, AllReduce(overlap=False)),
        "without": Stepper(group, case, AllReduce(overlap=False, **options)),
        "with": Stepper(group, case, AllReduce(overlap=True, **options)),
    }
    times: dict[str, list[float]] = {kind: [] for kind in steppers}
    cpus: dict[str, list[float]] = {kind: [] for kind in steppers}
    left: list[float] = []
    for turn in range(args.pairs + 1):  # the first one makes connections and buffers
        for kind, stepper in steppers.items():
            group.barrier(patient=True)
            started, cpu = time.perf_counter(), time.process_time()
            for index in range(args.steps):
                stepper.step(index)
            spent = (time.perf_counter() - started, time.process_time() - cpu)
            slowest = [max(every) / args.steps for every in zip(*group.all_gather_objects(spent), strict=True)]
            if turn:
                times[kind].append(slowest[0])
                cpus[kind].append(slowest[1])
        told = steppers["with"].told
        left.append(told[-1][1] - _last_large(told, len(steppers["with"].model.grad_buffer)))
    alone, without, overlapped = (statistics.median(times[kind]) for kind in steppers)
    sent = steppers["with"].model.grad_buffer.nbytes
    wire_s = 2 * (group.nodes - 1) / group.nodes * sent * 8 / (args.rate_gbps * 1e9)
    exposed = [max(seconds - alone, 1e-9) for seconds in (overlapped, without)]
    left_s = statistics.median(left)
    allowed = max(DEMAND, 1.2 * (wire_s - left_s) / exposed[1] if name == "mlp-wide" else 0.0)
    timelines = {kind: timeline.traced(steppers[kind], args.steps) for kind in ("without", "with")}
    buckets = len(steppers["with"].strategy.cuts) + 1
    for stepper in steppers.values():
        stepper.strategy.close()
    return {
        "case": name,
        "peer": "without",
        "ours_s": overlapped,
        "peer_s": without,
        "ratio": exposed[1] / exposed[0],
        "alone_s": alone,
        "wire_s": wire_s,
        "backward_left_s": left_s,
        "cpu_s": statistics.median(cpus["with"]) - statistics.median(cpus["alone"]),
        "peer_cpu_s": statistics.median(cpus["without"]) - statistics.median(cpus["alone"]),
        "exposed_share": exposed[0] / exposed[1],
        "allowed_share": allowed,
        "bytes": sent,
        "batch": case.batch,
        "bucket": args.bucket,
        "buckets": buckets,
        "timelines": timelines,
        "ranks": group.size,
        "hosts": group.nodes,
        "library": group.library,
    }


def _last_large(told: list[tuple[int, float]], size: int) -> float:
    """Return when the last bucket of a tenth of the buffer or more was ready, the one that ends at 0 left out."""
    stops = [size, *(lo for lo, _ in told)]
    large = [when for (lo, when), stop in zip(told, stops, strict=False) if lo and stop - lo >= size / 10]
    return large[-1] if large else told[-1][1]


if __name__ == "__main__":
    common.run(main, arguments())
