"""Weak scaling: a step on one rank against a step on all, as many rows on each; PyTorch's DDP beside it."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np
from common import Record, time_text
from models import CASES
from train_step import Ours, Peer, choose, model_names, rendezvous, slowest

from hpctrain.comm import Group
from hpctrain.comm.single_group import SingleGroup

MODELS = ["mlp-small", "mlp-mnist", "mlp-higgs", "mlp-wide", "cnn-mnist"]
DEMAND, STRETCH = 0.90, 0.97

EXAMPLES = """\
  mpirun -n 2 python benchmarks/weak_scaling.py --peer-python ~/torch/bin/python
  mpirun -n 2 python benchmarks/weak_scaling.py --models mlp-wide --json scaling.json

Efficiency is the time of a step on rank 0 alone, the other ranks asleep, over that of a step on all ranks.  One rank
and all, ours and PyTorch's, are timed in turn.  Without --peer-python only ours.  Records: case, peer, ours_s, peer_s,
ratio (of steps on all ranks), ours_alone_s, peer_alone_s, ours_efficiency, peer_efficiency, ranks."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    made.add_argument("--models", type=model_names, default=MODELS, metavar="A,B", help=f"default: {', '.join(MODELS)}")
    made.add_argument("--seconds", type=float, default=0.5, help="of one timing, about (default 0.5)")
    return made


def main(group: Group, args: argparse.Namespace) -> None:
    peers = None
    if args.peer_python is not None:
        peers = Peer(args.peer_python) if group.rank == 0 else None, Peer(args.peer_python)
    records = []
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        for name in args.models:
            records.append(measure(group, name, peers, Path(folder), args))
            if group.rank == 0:
                print(f"{name}: {records[-1]['ours_efficiency']:.0%}", flush=True)
    for peer in peers or ():
        if peer is not None:
            peer.close()

    def known(value: float | None, text: Callable[[float], str]) -> str:
        return "-" if value is None else text(value)

    columns = {"model": lambda record: record["case"]}
    for side, title in (("ours", "ours"), ("peer", "DDP")):
        columns |= {
            f"{title}, 1 rank": lambda record, key=f"{side}_alone_s": known(record[key], time_text),
            f"{title}, {group.size} ranks": lambda record, key=f"{side}_s": known(record[key], time_text),
            f"{title}, efficiency": lambda record, key=f"{side}_efficiency": known(record[key], "{:.0%}".format),
        }
    columns["reached"] = verdict
    common.report(group, f"weak scaling from 1 to {group.size} ranks", records, columns, args)


def verdict(record: Record) -> str:
    """Say what an efficiency reaches."""
    efficiency = record["ours_efficiency"]
    return "stretch" if efficiency >= STRETCH else "demand" if efficiency >= DEMAND else "-"


def measure(
    group: Group, name: str, peers: tuple[Peer | None, Peer] | None, folder: Path, args: argparse.Namespace
) -> Record:
    """Time one model; every rank calls it and gets the same record."""
    case = CASES[name]
    inputs, targets = case.data(seed=group.rank)
    np.savez(folder / "data.npz", inputs=inputs, targets=targets, kind=case.kind)
    kinds: dict[str, Callable[[int], float]] = {}
    if peers is not None:
        alone, together = peers
        if alone is not None:
            alone.ask("open", model=name, folder=str(folder), ddp=None)
        about = together.ask("open", model=name, folder=str(folder), ddp=rendezvous(group))
        mode = choose(group, together, about["image"])
        for peer in peers:
            if peer is not None:
                peer.ask("use", mode=mode)
        kinds["peer_alone"] = lambda steps: on_first(group, lambda: alone.ask("time", steps=steps)["wall_s"])
        kinds["peer"] = lambda steps: slowest(group, together.ask("time", steps=steps))["wall_s"]
    single = Ours(SingleGroup(), case, folder, peers is not None) if group.rank == 0 else None
    ours = Ours(group, case, folder, peers is not None)
    kinds["ours_alone"] = lambda steps: on_first(group, lambda: single.time(steps)["wall_s"])
    kinds["ours"] = lambda steps: slowest(group, ours.time(steps))["wall_s"]
    steps = {}
    for kind, call in kinds.items():
        call(2)
        steps[kind] = max(2, int(args.seconds / call(2)))
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(args.pairs):
        for kind in kinds if turn % 2 == 0 else reversed(kinds):
            found[kind].append(kinds[kind](steps[kind]))

    def median(kind: str) -> float | None:
        return statistics.median(found[kind]) if kind in found else None

    def median_ratio(one: str, other: str) -> float | None:
        if one not in found:
            return None
        return statistics.median(a / b for a, b in zip(found[one], found[other], strict=True))

    return {
        "case": name,
        "peer": "DDP (gloo)" if peers else "none",
        "ours_s": median("ours"),
        "peer_s": median("peer"),
        "ratio": median_ratio("peer", "ours"),
        "ours_alone_s": median("ours_alone"),
        "peer_alone_s": median("peer_alone"),
        "ours_efficiency": median_ratio("ours_alone", "ours"),
        "peer_efficiency": median_ratio("peer_alone", "peer"),
        "ranks": group.size,
    }


def on_first(group: Group, call: Callable[[], float]) -> float:
    """Return what rank 0 measures while the others sleep."""
    group.barrier()
    seconds = call() if group.rank == 0 else None
    return group.broadcast_object(seconds, patient=True)


if __name__ == "__main__":
    common.run(main, arguments())
