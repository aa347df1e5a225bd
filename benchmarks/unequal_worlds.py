"""Training steps of ranks with unequal data, gradients compressed and in buckets: worlds of 2 to 5 ranks, two MPIs."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
from cluster import mpi, open_mpi
from common import Record, time_text

from hpctrain.batch import Batch
from hpctrain.comm import Group
from hpctrain.comm.environment import launched
from hpctrain.compress import COMPRESSIONS
from hpctrain.nn import LAYERS, LOSSES
from hpctrain.nn.flat import LOSS, ROWS, WEIGHT
from hpctrain.nn.model import Model
from hpctrain.optim.sgd import Sgd
from hpctrain.optim.table import UpdateTable
from hpctrain.options import part_from
from hpctrain.strategies.all_reduce import AllReduce

NONE = "none"
ROOT = Path(__file__).resolve().parent.parent
INPUTS, CLASSES, MOST_ROWS = 64, 10, 16
LAYERS_OF_IT = (
    *({"type": "dense", "units": 128}, "relu"),
    *({"type": "dense", "units": 96}, "relu"),
    {"type": "dense", "units": CLASSES},
)

EXAMPLES = """\
  python benchmarks/unequal_worlds.py
  python benchmarks/unequal_worlds.py --worlds 4 --compressions int8 one_bit --steps 1000
  mpirun -n 4 python benchmarks/unequal_worlds.py

Alone it starts worlds itself, under this environment's MPI and under Open MPI (from pip, in a second environment that
is made in --open-mpi where it is not there yet), and says of each whether it came to its end.  Under mpirun it is one
world.  Every rank takes another number of rows in every step, 0 to 16; gradients leave in buckets while the backward
pass computes, each with its compression from the first step on; at the end all ranks must have the same weights to the
last bit, and the loss must have fallen.
Records: case, peer ("none"), ours_s, peer_s, ratio (of a step's time), compression, ranks, library, steps, buckets,
first_loss, last_loss, same_bits."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    names = list(COMPRESSIONS)
    made.add_argument("--worlds", nargs="+", type=int, default=[2, 3, 4, 5], metavar="RANKS", help="default 2 3 4 5")
    made.add_argument("--compressions", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    made.add_argument("--steps", type=int, default=200, help="of each compression (default 200)")
    made.add_argument("--timeout", type=float, default=300, metavar="S", help="of a world, then it hangs (default 300)")
    folder = ROOT / ".pytest_cache" / "d" / "open-mpi"
    made.add_argument("--open-mpi", type=Path, default=folder, metavar="DIR", help="default: where the tests have it")
    return made


class Rank:
    """One rank's network and its rows of each step."""

    def __init__(self, group: Group, name: str) -> None:
        options = {} if name == NONE else {"compression": {"type": name, "min_size": 512, "warm_up_steps": 0}}
        strategy = AllReduce(overlap=True, bucket="1 kB", **options)
        layers = [part_from(LAYERS, spec, f"layers.{i}", "type") for i, spec in enumerate(LAYERS_OF_IT)]
        loss, allocate = LOSSES.get("softmax_cross_entropy")(), functools.partial(strategy.allocate_gradients, group)
        self.model = Model(layers, (INPUTS,), loss, "class", seed=1, allocate_gradients=allocate)
        self.model.initialize()
        self.model.table = UpdateTable.from_slots(self.model.layout)
        self.model.reserve(MOST_ROWS)
        self.optimizer = Sgd(lr=0.005, momentum=0.9)
        self.run = strategy.bind(group, self.model, self.optimizer, None)
        self.model.warm_up()
        self.run.warm_up()
        self.model.cut_at(self.run.cuts)
        self.group, self.index = group, 0
        # All ranks draw from the same kinds of examples: a class has a middle, and numbers around it.
        self.middles = np.random.default_rng(0).standard_normal((CLASSES, INPUTS)) * 0.5

    def step(self, index: int) -> float:
        """Make one update; return the mean loss over all ranks' rows before it, NaN where there are none."""
        model, self.index = self.model, index
        batch = self.batch(index)
        model.tail[WEIGHT], model.tail[ROWS], model.tail[LOSS] = batch.rows, batch.rows, 0
        if not batch.rows:
            model.grads[:] = 0
        else:
            model.loss_and_grad(
                batch, beta=0.0, ready=self._ready
            )  # it is cut in two at least: `_ready` tells the loss
        outcome = self.run.step(index, self.optimizer.lr)
        return outcome.loss if outcome.weight else math.nan

    def batch(self, index: int) -> Batch:
        """Return this rank's rows: 0 to 16; the last rank has none in every third step, nobody in every fiftieth."""
        random = np.random.default_rng([index, self.group.rank])
        rows = int(random.integers(0, MOST_ROWS + 1))
        if index % 50 == 49 or (index % 3 == 2 and self.group.rank == self.group.size - 1):
            rows = 0
        targets = random.integers(0, CLASSES, rows)
        inputs = (self.middles[targets] + random.standard_normal((rows, INPUTS))).astype(np.float32)
        return Batch(inputs, targets, np.ones(rows, np.float32), np.arange(rows), index, 0)

    def _ready(self, lo: int, loss: float) -> None:
        if lo == self.run.cuts[0]:  # it goes with the first gradients
            self.model.tail[LOSS] = loss
        self.run.ready(lo, self.index)


def world(group: Group, args: argparse.Namespace) -> None:
    """Make the steps of each compression, one after another."""
    records: list[Record] = []
    for name in (NONE, *args.compressions):
        rank = Rank(group, name)
        group.barrier()
        started = time.perf_counter()
        losses = [rank.step(index) for index in range(args.steps)]
        seconds = max(group.all_gather_objects(time.perf_counter() - started)) / args.steps
        rank.run.close()
        digests = group.all_gather_objects(hashlib.sha256(rank.model.params.tobytes()).hexdigest())
        peer_s = records[0]["ours_s"] if records else seconds
        facts = {"compression": name, "ranks": group.size, "library": group.library, "steps": args.steps}
        facts["buckets"] = len(rank.run.cuts) + 1
        some = max(1, min(10, args.steps // 2))
        facts |= {"first_loss": float(np.nanmean(losses[:some])), "last_loss": float(np.nanmean(losses[-some:]))}
        facts |= {"same_bits": len(set(digests)) == 1}
        case = f"{name}, {group.size} ranks, {group.library}"
        records.append(common.Comparison(seconds, peer_s, peer_s / seconds).record(case, NONE, **facts))
    common.report(group, f"{group.size} ranks, {group.library}", records, COLUMNS, args)
    if group.rank == 0 and (wrong := [record["case"] for record in records if mistake(record)]):
        raise ArithmeticError(f"not as they should be: {', '.join(wrong)}")


def mistake(record: Record) -> str:
    """Return what is wrong with a record, "" where nothing is."""
    if not record["same_bits"]:
        return "ranks differ"
    return "" if record["last_loss"] < record["first_loss"] else "has not learned"


COLUMNS: dict[str, Any] = {
    "ranks": lambda record: str(record["ranks"]),
    "MPI": lambda record: record["library"],
    "compression": lambda record: record["compression"],
    "steps": lambda record: str(record["steps"]),
    "buckets": lambda record: str(record["buckets"]),
    "a step": lambda record: time_text(record["ours_s"]),
    "loss": lambda record: f"{record['first_loss']:.2f} to {record['last_loss']:.3f}",
    "all ranks": lambda record: mistake(record) or "the same weights",
}


def start(python: Path, ranks: int, args: argparse.Namespace, file: Path) -> list[Record]:
    """Run one world; return its records, or end with what it said where it fails or hangs."""
    given = ["--steps", str(args.steps), "--compressions", *args.compressions, "--json", str(file)]
    command = [python.parent / "mpirun", "-n", str(ranks), python, __file__, *given]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=mpi.local_environment(python))
        try:
            code = process.wait(args.timeout)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpirun ends its ranks
            process.wait()
            code = None
        said.seek(0)
        if code != 0:
            how = f"hangs after {args.timeout:g} s" if code is None else f"has failed with {code}"
            sys.exit(f"a world of {ranks} ranks of {python} {how}:\n{said.read()}")
    return json.loads(file.read_text())


def worlds(args: argparse.Namespace) -> None:
    """Run all worlds and show what they came to."""
    pythons, records = [Path(sys.executable), open_mpi.environment(args.open_mpi)], []
    with tempfile.TemporaryDirectory() as folder:
        for python in pythons:
            for ranks in args.worlds:
                records += start(python, ranks, args, Path(folder) / "records.json")
                print(f"{ranks} ranks, {records[-1]['library']}: {args.steps} steps of each", flush=True)
    common.show("ranks with unequal data, gradients in buckets", records, COLUMNS, args)


if __name__ == "__main__":
    if launched().launcher:
        common.run(world, arguments())
    else:
        worlds(arguments().parse_args())
