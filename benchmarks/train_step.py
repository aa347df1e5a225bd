"""One training step of ten models: hpctrain against PyTorch, in turn; under mpirun against DistributedDataParallel."""

from __future__ import annotations

import functools
import json
import math
import os
import socket
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import common
import numpy as np
from common import Record, time_text
from models import CASES, Case

from hpctrain.comm import Group
from hpctrain.errors import UserError
from hpctrain.nn.flat import LOSS, ROWS, WEIGHT
from hpctrain.optim.sgd import Sgd
from hpctrain.optim.table import UpdateTable
from hpctrain.strategies.all_reduce import AllReduce

PEER = Path(__file__).with_name("peer_torch.py")
TWO_RANKS = (1.7, 2.5)  # demand and stretch of the dense networks; of the others it is not to be slower
LOSS_STEPS, LOSS_BOUND = 20, 1e-4
TRIALS = 3  # of each of PyTorch's modes
UPDATE = {"lr": 1e-3, "momentum": 0.9}

EXAMPLES = """\
  python benchmarks/train_step.py --peer-python ~/torch/bin/python
  python benchmarks/train_step.py --peer-python ~/torch/bin/python --models mlp-small,cnn-mnist --json step.json
  mpirun -n 2 python benchmarks/train_step.py --peer-python ~/torch/bin/python --models mlp-small,mlp-mnist

Both sides train the same network from the same weights on the same data, fp32, one thread a rank, SGD with momentum.
First the losses of 20 steps must agree to 1e-4.  In a deep network float32 cannot decide that: rounding grows from
step to step.  So where they do not agree, PyTorch repeats the steps in float64; if its own losses were off by more than
1e-4, ours are repeated in float64 too, and those must agree.  Else the benchmark ends with an error, after its table.
Then a short trial finds PyTorch's fastest mode (eager, torch.compile, channels last, or both); then ours and that mode
are timed in turn.  A ratio above 1 means that ours is faster.  "CPU" is the ratio of the CPU times, which a busy
neighbour disturbs less.  Records: case, peer, ours_s, peer_s, ratio, cpu_ratio, mode, demand, stretch, loss_difference,
peer_rounding and exact_difference (in float64; null where float32 agrees), compile_s, ranks."""


def arguments() -> Any:
    made = common.parser(__doc__, EXAMPLES)
    made.add_argument(
        "--models", type=model_names, default=list(CASES), metavar="A,B", help=f"of {', '.join(CASES)} (default: all)"
    )
    made.add_argument("--seconds", type=float, default=1.0, help="of one pair of timings, about (default 1)")
    return made


def model_names(text: str) -> list[str]:
    import argparse

    names = text.split(",")
    if strange := [name for name in names if name not in CASES]:
        raise argparse.ArgumentTypeError(f"{strange[0]!r} is not one of {', '.join(CASES)}")
    return names


class Ours:
    """A model of ours with its optimizer, stepping as a run's trainer steps it."""

    def __init__(self, group: Group, case: Case, folder: Path, from_peer: bool = True) -> None:
        data = np.load(folder / "data.npz")
        self.batches = case.batches(data["inputs"], data["targets"])
        strategy = AllReduce()
        memory = functools.partial(strategy.allocate_gradients, group)
        self.model = case.model(allocate_gradients=memory)
        if from_peer:
            case.set_weights(self.model, np.load(folder / "weights.npz"))
        else:
            self.model.initialize()
        self.model.table = UpdateTable.from_slots(self.model.layout)
        self.model.reserve(case.batch)
        self.optimizer = Sgd(**UPDATE)
        self.strategy = strategy.bind(group, self.model, self.optimizer, None)
        started = time.perf_counter()
        self.model.warm_up()
        self.strategy.warm_up()
        self.compile_s = time.perf_counter() - started

    def step(self, index: int) -> float:
        """Make one update and return the mean loss before it, over all ranks."""
        model, batch = self.model, self.batches[index % len(self.batches)]
        loss = model.loss_and_grad(batch, beta=0.0)
        model.tail[WEIGHT], model.tail[LOSS] = batch.weight.sum(dtype="f8"), loss
        model.tail[ROWS] = batch.rows
        return self.strategy.step(index, self.optimizer.lr).loss

    def losses(self, steps: int) -> list[float]:
        """Return the losses of the first steps from the initial weights."""
        return [self.step(index) for index in range(steps)]

    def time(self, steps: int) -> dict[str, float]:
        """Return the seconds of a step, by the wall clock and of CPU time."""
        wall, cpu = time.perf_counter(), time.process_time()
        for index in range(steps):
            self.step(index)
        return {"wall_s": (time.perf_counter() - wall) / steps, "cpu_s": (time.process_time() - cpu) / steps}


class Peer:
    """PyTorch in a process of its own; every rank has one."""

    def __init__(self, python: Path, script: Path = PEER) -> None:
        # The peer must not take itself for a rank of our MPI world.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PMI_", "PMIX_", "OMPI_", "MPI_", "HYDRA_", "HYDI_"))
        }
        self._process = subprocess.Popen(
            [python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ask(self, verb: str, **options: Any) -> Any:
        """Send a command and wait for the answer."""
        self._process.stdin.write(json.dumps({"do": verb, **options}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the peer ended with code {self._process.wait()} when asked to {verb}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait(timeout=30)


def main(group: Group, args: Any) -> None:
    if args.peer_python is None:
        raise UserError(
            "train_step.py compares with PyTorch and needs an interpreter that has it",
            hint="python -m venv torch; torch/bin/pip install torch numpy; then --peer-python torch/bin/python",
            agreed=True,
        )
    peer = Peer(args.peer_python)
    records = []
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        for name in args.models:
            records.append(measure(group, name, peer, Path(folder), args))
            if group.rank == 0:
                last = records[-1]
                line = f"{name}: {last['ratio']:.2f}x (CPU {last['cpu_ratio']:.2f}x) of {last['peer']}, {last['mode']}"
                print(line, flush=True)
    peer.close()
    columns = {
        "model": lambda record: record["case"],
        "ours": lambda record: time_text(record["ours_s"]),
        "PyTorch": lambda record: time_text(record["peer_s"]),
        "mode": lambda record: record["mode"],
        "ratio": lambda record: f"{record['ratio']:.2f}",
        "CPU": lambda record: f"{record['cpu_ratio']:.2f}",
        "demand": lambda record: f"{record['demand']:g}",
        "stretch": lambda record: f"{record['stretch']:g}",
        "reached": verdict,
        "losses differ by": losses_text,
    }
    peer_name = records[0]["peer"] if records else "PyTorch"
    common.report(group, f"training step, {group.size} ranks, against {peer_name}", records, columns, args)
    wrong = [record for record in records if not losses_agree(record)]
    if wrong:
        raise UserError(
            f"the losses of {', '.join(record['case'] for record in wrong)} are not those of the peer",
            found=", ".join(losses_text(record) for record in wrong),
            allowed=f"{LOSS_BOUND:.0e} over {LOSS_STEPS} steps",
            agreed=True,
        )


def losses_agree(record: Record) -> bool:
    """Say whether the losses are the peer's: in float32, or in float64 where the peer's own float32 is too coarse."""
    if record["exact_difference"] is None:
        return record["loss_difference"] <= LOSS_BOUND
    return record["peer_rounding"] > LOSS_BOUND >= record["exact_difference"]


def losses_text(record: Record) -> str:
    """Say how far the losses are from the peer's."""
    exact = record["exact_difference"]
    return f"{record['loss_difference']:.0e}" + ("" if exact is None else f" (in float64 {exact:.0e})")


def verdict(record: Record) -> str:
    """Say what a ratio reaches."""
    if record["ratio"] >= record["stretch"]:
        return "stretch"
    return "demand" if record["ratio"] >= record["demand"] else "-"


def measure(group: Group, name: str, peer: Peer, folder: Path, args: Any) -> Record:
    """Compare one model; every rank calls it and gets the same record."""
    case = CASES[name]
    # The ranks have different rows and one set of weights: rank 0's peer makes them as every other does, by seed.
    inputs, targets = case.data(seed=group.rank)
    np.savez(folder / "data.npz", inputs=inputs, targets=targets, kind=case.kind)
    about = peer.ask("open", model=name, folder=str(folder), ddp=rendezvous(group))
    del inputs, targets
    ours = Ours(group, case, folder)
    theirs = peer.ask("losses", steps=LOSS_STEPS)
    theirs = np.mean(group.all_gather_objects(theirs), axis=0)
    difference = np.abs(np.array(ours.losses(LOSS_STEPS)) - theirs)
    rounding, exact_difference = None, None
    if not difference.max() <= LOSS_BOUND:
        exact = np.mean(group.all_gather_objects(peer.ask("exact", steps=LOSS_STEPS)), axis=0)
        rounding = float(np.abs(theirs - exact).max())
        exact_difference = float(np.abs(exact_losses(group, case, folder) - exact).max())
    mode = choose(group, peer, about["image"])
    peer.ask("use", mode=mode)

    def time_ours(steps: int) -> dict[str, float]:
        return slowest(group, ours.time(steps))

    def time_theirs(steps: int) -> dict[str, float]:
        return slowest(group, peer.ask("time", steps=steps))

    sides = (time_ours, time_theirs)
    steps = []
    for side in sides:
        side(2)
        steps.append(max(2, int(args.seconds / 2 / side(2)["wall_s"])))
    pairs = []
    for pair in range(args.pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        found = {which: sides[which](steps[which]) for which in order}
        pairs.append((found[0], found[1]))

    def ratio(clock: str) -> float:
        return statistics.median(theirs[clock] / mine[clock] for mine, theirs in pairs)

    timed = common.Comparison(
        statistics.median(mine["wall_s"] for mine, _ in pairs),
        statistics.median(theirs["wall_s"] for _, theirs in pairs),
        ratio("wall_s"),
    )
    demand, stretch = (case.demand, case.stretch) if group.size == 1 else TWO_RANKS if case.is_mlp else (1.0, 1.3)
    return timed.record(
        name,
        about["peer"] + (" DDP (gloo)" if group.size > 1 else ""),
        cpu_ratio=ratio("cpu_s"),
        mode=mode,
        demand=demand,
        stretch=stretch,
        loss_difference=float(difference.max()),
        peer_rounding=rounding,
        exact_difference=exact_difference,
        compile_s=ours.compile_s,
        ranks=group.size,
    )


def exact_losses(group: Group, case: Case, folder: Path) -> np.ndarray:
    """Return our losses of the first steps, computed in float64 throughout."""
    data = np.load(folder / "data.npz")
    batches = case.batches(data["inputs"], data["targets"])
    model = case.model(np.float64)
    case.set_weights(model, np.load(folder / "weights.npz"))
    table, optimizer = UpdateTable.from_slots(model.layout), Sgd(**UPDATE)
    slots = {name: np.zeros_like(model.params) for name in optimizer.slots}
    losses = []
    for step in range(LOSS_STEPS):
        batch = batches[step % len(batches)]
        targets = batch.targets if batch.targets.dtype.kind == "i" else batch.targets.astype(np.float64)
        batch = replace(
            batch, inputs=batch.inputs.astype(np.float64), targets=targets, weight=batch.weight.astype(np.float64)
        )
        model.tail[LOSS] = model.loss_and_grad(batch, beta=0.0)
        model.tail[WEIGHT] = batch.weight.sum()
        group.all_reduce(model.grad_buffer)
        scale = 1.0 / model.tail[WEIGHT]
        losses.append(model.tail[LOSS] * scale)
        optimizer.update(model.params, model.grads, slots, table, optimizer.lr, step, scale)
    return np.array(losses)


def choose(group: Group, peer: Peer, is_image: bool) -> str:
    """Return the peer's fastest mode for the open model, by the slowest rank's best median of a few trials in turn."""
    modes = ["eager", "compile", *(["channels_last", "compile_channels_last"] if is_image else [])]
    seconds: dict[str, float] = {}
    for _ in range(TRIALS):
        for mode in modes:
            found = [answer["seconds"] for answer in group.all_gather_objects(peer.ask("trial", mode=mode))]
            if None not in found:
                seconds[mode] = min(seconds.get(mode, math.inf), max(found))
    return min(seconds, key=seconds.get)


def slowest(group: Group, mine: dict[str, float]) -> dict[str, float]:
    """Return the largest of each figure over the ranks."""
    every = group.all_gather_objects(mine)
    return {name: max(one[name] for one in every) for name in mine}


def rendezvous(group: Group) -> dict[str, int] | None:
    """Return where the peers of several ranks meet; None for one rank."""
    if group.size == 1:
        return None
    port = None
    if group.rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    return {"rank": group.rank, "size": group.size, "port": group.broadcast_object(port)}


if __name__ == "__main__":
    common.run(main, arguments())
