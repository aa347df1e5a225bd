"""`run.reproducible`: what it costs a step, against the ordinary mode; and the same weights from many runs."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import h5py
import numpy as np
from common import Record, time_text
from models import CASES
from train_step import UPDATE, model_names

from hpctrain.comm import Group
from hpctrain.nn.fixed_point import Lanes
from hpctrain.nn.flat import LOSS, ROWS, WEIGHT
from hpctrain.optim.sgd import Sgd
from hpctrain.optim.table import UpdateTable
from hpctrain.strategies.all_reduce import AllReduce

EXAMPLES = """\
  mpirun -n 2 python benchmarks/reproducible.py
  python benchmarks/reproducible.py --runs --json runs.json

Without --runs: the time of a step of the global batch, in fixed point by 8 lanes (ours) and as usual (the peer), in
turn; the ratio is ordinary over reproducible, 0.8 is the demand (1.25 times as long), 0.91 the stretch.
With --runs (not under mpirun, which it calls itself): an MLP, a CNN with batch norm and dropout, and a GPT, trained by
1 to 8 ranks, by several collectives, with data scattered and shared, and killed and resumed at another world size; all
runs of a model must end with one SHA-256.  Records: case, peer, ours_s, peer_s, ratio, lanes, redone; or with --runs
case, peer, ours_s, peer_s, ratio, ranks, how, weights_sha256."""

LANES = 8
BATCHES = {"mlp-mnist": 128, "mlp-wide": 256, "cnn-mnist": 128}  # of all ranks
DEMAND, STRETCH = 0.8, 0.91
STEPS, KILLED_AT = 30, 12


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    made.add_argument("--models", type=model_names, default=list(BATCHES), metavar="A,B", help="of the cost")
    made.add_argument("--runs", action="store_true", help="compare the weights of whole runs")
    made.add_argument("--mpirun", default="mpirun", help="of --runs: the launcher, with its options")
    return made


class Steps:
    """A model with its optimizer, stepping as a run's trainer steps it, on its part of each global batch."""

    def __init__(self, group: Group, name: str, lanes: Lanes | None) -> None:
        rows = BATCHES.get(name, CASES[name].batch) // group.size
        case = dataclasses.replace(CASES[name], batch=rows)
        self.batches = case.batches(*case.data(seed=group.rank))
        for batch in self.batches:
            batch.first = rows * group.rank
        strategy = AllReduce()
        memory = functools.partial(strategy.allocate_gradients, group)
        self.model = case.model(allocate_gradients=memory, lanes=lanes)
        self.model.initialize()
        self.model.table = UpdateTable.from_slots(self.model.layout)
        self.model.reserve(rows)
        self.optimizer = Sgd(**UPDATE)
        self.strategy = strategy.bind(group, self.model, self.optimizer, None)
        self.model.warm_up()
        self.strategy.warm_up()
        self.steps = self.redone = 0

    def step(self) -> None:
        """Make one update."""
        model, batch = self.model, self.batches[self.steps % len(self.batches)]
        while True:
            if (fixed := model.fixed) is not None:
                fixed.begin()
            loss = model.loss_and_grad(batch, beta=0.0)
            model.tail[WEIGHT], model.tail[LOSS] = batch.weight.sum(dtype="f8"), loss
            model.tail[ROWS] = batch.rows
            for lo in range(0, batch.rows, fixed.rows if fixed else batch.rows):
                if fixed:
                    fixed.note((batch.first + lo) // fixed.rows, batch.weight[lo : lo + fixed.rows].sum(dtype="f8"))
            if self.strategy.step(self.steps, self.optimizer.lr) is not None:
                break
            self.redone += 1
        self.steps += 1


def main(group: Group, args: argparse.Namespace) -> None:
    if args.runs:
        compare_runs(group, args)
        return
    records = []
    for name in args.models:
        batch = BATCHES.get(name, CASES[name].batch)
        ours, peer = Steps(group, name, Lanes(LANES, -(-batch // LANES))), Steps(group, name, None)
        found = common.compare(group, ours.step, peer.step, args.pairs, pair_s=1.0)
        more = {"lanes": LANES, "rows": batch, "ranks": group.size, "redone": ours.redone, "steps": ours.steps}
        records.append(found.record(name, "ordinary mode", **more))
    columns = {
        "model": lambda record: record["case"],
        "batch": lambda record: str(record["rows"]),
        "reproducible": lambda record: time_text(record["ours_s"]),
        "ordinary": lambda record: time_text(record["peer_s"]),
        "as long": lambda record: f"{1 / record['ratio']:.2f}x",
        "redone": lambda record: f"{record['redone']} of {record['steps']}",
        "reached": verdict,
    }
    common.report(group, f"a step in {LANES} lanes, {group.size} ranks", records, columns, args)


def verdict(record: Record) -> str:
    """Say what a cost reaches."""
    return "stretch" if record["ratio"] >= STRETCH else "demand" if record["ratio"] >= DEMAND else "-"


RUNS = [
    (1, "native", "shared"),
    (2, "ring", "scatter"),
    (2, "window", "shared"),
    (3, "halving_doubling", "scatter"),
    (3, "native", "shared"),
    (4, "window", "scatter"),
    (4, "ring", "shared"),
    (5, "window", "shared"),
    (5, "halving_doubling", "scatter"),
    (8, "native", "scatter"),
    (8, "window", "shared"),
]
RESUMED = ((3, "window", "shared"), (2, "ring", "scatter"))  # killed with the first, resumed with the second
_SMALL = {"type": "dense", "units": 10}
MODELS = {
    "mlp": {"layers": ["flatten", {"type": "dense", "units": 100}, "relu", {"type": "dropout", "rate": 0.2}, _SMALL]},
    "cnn": {
        "layers": [
            *({"type": "conv2d", "channels": 8, "kernel": 3}, "batch_norm", "relu", {"type": "max_pool2d", "size": 2}),
            *({"type": "conv2d", "channels": 16, "kernel": 3}, "batch_norm", "relu", "flatten"),
            *({"type": "dropout", "rate": 0.3}, _SMALL),
        ]
    },
    "gpt": {"preset": "gpt", "width": 32, "depth": 2, "heads": 2, "dropout": 0.1},
}


def write_data(folder: Path) -> None:
    """Write images of ten classes, and sequences of which each place is to tell the next token."""
    random = np.random.default_rng(5)
    with h5py.File(folder / "images.h5", "w") as file:
        label = random.integers(0, 10, 500)
        file["x"] = (random.normal(size=(10, 12, 12, 1))[label] + random.normal(size=(500, 12, 12, 1))).astype("f4")
        file["y"] = label
    with h5py.File(folder / "tokens.h5", "w") as file:
        tokens = (np.arange(25) * random.integers(1, 5, (500, 1)) + random.integers(0, 17, (500, 1))) % 17
        file["x"], file["y"] = tokens[:, :-1], tokens[:, 1:]


def compare_runs(group: Group, args: argparse.Namespace) -> None:
    """Train every model in every way, and compare the hashes of the weights."""
    if group.size > 1:
        raise common.UserError("--runs launches the ranks itself", hint="call it without mpirun", agreed=True)
    records, kinds = [], {}
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        write_data(Path(folder))
        for name in MODELS:
            alone_s = None

            def note(ranks: int, how: str, summary: dict[str, Any], name: str = name) -> None:
                nonlocal alone_s
                seconds = summary["train_s"]
                alone_s = alone_s or seconds
                times = {"ours_s": seconds, "peer_s": alone_s, "ratio": alone_s / seconds}
                more = {"ranks": ranks, "how": how, "weights_sha256": summary["weights_sha256"]}
                records.append({"case": name, "peer": "one rank", **times, **more})

            for ranks, collective, distribute in RUNS:
                run = Run(Path(folder), name, args.mpirun.split())
                found = run.finished(ranks, collective, distribute)
                note(ranks, f"{collective}, {distribute}", found)
            run = Run(Path(folder), name, args.mpirun.split())
            run.kill(*RESUMED[0])
            found = run.finished(*RESUMED[1], resume=True)
            how = f"killed with {RESUMED[0][0]} ranks after step {KILLED_AT}, resumed"
            note(RESUMED[1][0], how, found)
            kinds[name] = {record["weights_sha256"] for record in records if record["case"] == name}
            print(f"{name}: {len(kinds[name])} SHA-256 of {len(RUNS) + 1} runs", flush=True)
    columns = {
        "model": lambda record: record["case"],
        "ranks": lambda record: str(record["ranks"]),
        "how": lambda record: record["how"],
        "weights": lambda record: record["weights_sha256"][:16],
    }
    common.report(group, "weights of reproducible runs", records, columns, args)
    if wrong := [name for name, hashes in kinds.items() if len(hashes) > 1]:
        raise common.UserError(f"runs of {', '.join(wrong)} end with different weights", agreed=True)


class Run:
    """One run of a model in a folder of its own."""

    made = 0

    def __init__(self, folder: Path, model: str, mpirun: list[str]) -> None:
        Run.made += 1
        self.folder = folder / f"{model}-{Run.made}"
        self._mpirun, self._model = mpirun, model
        self._job = folder / f"{model}.json"
        data = folder / ("tokens.h5" if model == "gpt" else "images.h5")
        job = {
            "data": {"files": str(data), "input": "x", "target": "y", "split": {"validation": 0.1, "test": 0.1}},
            "model": MODELS[model],
            "optimizer": {"name": "adam", "lr": 0.003},
            "schedule": {"name": "reduce_on_plateau", "patience": 1},
            "clip": {"norm": 1.0},
            "run": {"steps": STEPS, "global_batch": 64, "micro_batch": 8, "reproducible": True, "progress": "none"},
        }
        job["run"] |= {"checkpoint_every": "4 steps", "keep": 50}
        self._job.write_text(json.dumps(job))

    def _start(self, ranks: int, collective: str, distribute: str, resume: bool) -> subprocess.Popen:
        options = {"strategy": {"collective": collective}, "data": {"distribute": distribute}}
        code = (
            "import json, sys; import hpctrain; job = json.load(open(sys.argv[1])); more = json.loads(sys.argv[2]);"
            "job['data'].update(more['data']); job['strategy'] = more['strategy'];"
            "hpctrain.train(job, run_dir=sys.argv[3], resume=sys.argv[4] == 'True')"
        )
        command = [*self._mpirun, "-n", str(ranks), sys.executable, "-c", code, self._job, json.dumps(options)]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI_COMM", "HYD"))
        }
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            [*command, str(self.folder), str(resume)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finished(self, ranks: int, collective: str, distribute: str, resume: bool = False) -> dict[str, Any]:
        """Train to the end and return the run's summary."""
        process = self._start(ranks, collective, distribute, resume)
        _, said = process.communicate()
        if process.returncode:
            raise common.UserError(f"a run of {self._model} on {ranks} ranks failed:\n{said}", agreed=True)
        return json.loads((self.folder / "summary.json").read_text())

    def kill(self, ranks: int, collective: str, distribute: str) -> None:
        """Train until there is a checkpoint of step `KILLED_AT`, and kill all ranks."""
        process = self._start(ranks, collective, distribute, False)
        wanted = self.folder / "checkpoints" / f"step-{KILLED_AT:08d}.h5"
        while not wanted.exists() and process.poll() is None:
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


if __name__ == "__main__":
    common.run(main, arguments())
