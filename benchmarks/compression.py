"""Compression of gradients: how fast each kind encodes and decodes, and what it does to a network's accuracy."""

from __future__ import annotations

import argparse
import functools
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
from common import Record, size_text

from hpctrain.comm import Group
from hpctrain.compress import COMPRESSIONS
from hpctrain.compress.base import Compression, Source, TwoShot
from hpctrain.compress.pieces import pieces_within
from hpctrain.job import Job
from hpctrain.memory import aligned_zeros
from hpctrain.nn.flat import Layout

SIZES_MB = (1 / 16, 2, 16, 64, 256)
DEMANDS_GBPS = {"int8": 4.0}  # encoding and decoding, at any size
PLAIN = "none"

EXAMPLES = """\
  python benchmarks/compression.py
  python benchmarks/compression.py --kinds int8 one_bit --sizes 16 --pairs 15
  mpirun -n 4 python benchmarks/compression.py --accuracy
  mpirun -n 4 python benchmarks/compression.py --accuracy --mnist jobs/mnist --json accuracy.json

Speeds are GB/s of float32 gradient on one core, with the kind's own options; the peer of encoding and decoding is a
copy of it.  --accuracy trains on the digits that are shipped with hpctrain, with --mnist on mnist-train.h5 of that
folder (see jobs/mnist), without compression and with each kind, and says the mean over seeds of the test accuracy.
Records: case, peer, ours_s, peer_s, ratio; kind, bytes, encode_gbps, decode_gbps, or kind, ranks, accuracy, accuracies,
peer_accuracy, difference (points)."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    kinds = list(COMPRESSIONS)
    made.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, metavar="KIND", help=", ".join(kinds))
    made.add_argument(
        "--sizes", nargs="+", type=float, default=SIZES_MB, metavar="MB", help="default 0.0625 2 16 64 256"
    )
    made.add_argument("--accuracy", action="store_true", help="train, instead of timing kernels")
    made.add_argument("--mnist", type=Path, metavar="DIR", help="with --accuracy: the folder of mnist-train.h5")
    made.add_argument("--epochs", type=int, help="with --accuracy (default 30 of digits, 5 of MNIST)")
    made.add_argument("--lr", type=float, default=0.05, help="with --accuracy on MNIST: learning rate (default 0.05)")
    made.add_argument("--seeds", type=int, default=3, help="with --accuracy: runs of each kind (default 3)")
    return made


class Wire:
    """One rank's gradient of `count` numbers, encoded and decoded."""

    def __init__(self, kind: Compression, count: int) -> None:
        layout = Layout([("w", (count // 1024, 1024))])
        values = aligned_zeros(layout.size)
        values[:] = np.random.default_rng(0).standard_normal(layout.size, np.float32) * 1e-3
        self.out = aligned_zeros(layout.size)
        residual = aligned_zeros(layout.size) if kind.error_feedback else None
        self.source = Source(values, residual, 1.0, True, 1)
        self.summed = self.coder = None
        if isinstance(kind, TwoShot):
            self.coder = kind.coder(pieces_within(list(layout), 0, layout.size, kind.unit))
            self.views = self.coder.views(aligned_zeros(self.coder.nbytes, np.uint8))
        else:
            self.summed = kind.summed(list(layout), 0, layout.size, 0, aligned_zeros)
        self.encode()
        self.decode()
        self.check()

    def encode(self) -> None:
        if self.coder is not None:
            self.coder.encode(self.source, self.views)
        else:
            for number in range(len(self.summed.payloads)):
                self.summed.fill(number, self.source)

    def decode(self) -> None:
        if self.coder is not None:
            self.coder.decode(self.views, self.out, False)
        else:
            self.summed.finish(self.source, self.out)

    def check(self) -> None:
        """What arrived and what is kept are what was sent; without error feedback it is near."""
        values, residual = self.source.values, self.source.residual
        if residual is not None:
            right = np.allclose(self.out + residual, values, rtol=0, atol=1e-5 * abs(values).max())
        else:
            right = np.linalg.norm(self.out - values) < 0.01 * np.linalg.norm(values)
        if not right:
            raise ArithmeticError("what was decoded is not what was encoded")


def speeds(group: Group, args: argparse.Namespace) -> list[Record]:
    records = []
    for name in args.kinds:
        for size in args.sizes:
            count = max(1, round(size * 1024)) << 10
            wire = Wire(COMPRESSIONS.get(name)(), count // 4)
            source, target = wire.source.values, aligned_zeros(count // 4)
            copy = functools.partial(np.copyto, target, source)
            steps = [common.compare(group, call, copy, args.pairs) for call in (wire.encode, wire.decode)]
            both = common.compare(group, lambda: (wire.encode(), wire.decode()), copy, args.pairs)  # noqa: B023
            facts = {"kind": name, "bytes": count}
            facts |= {"encode_gbps": count / steps[0].ours_s / 1e9, "decode_gbps": count / steps[1].ours_s / 1e9}
            facts |= {"both_gbps": count / both.ours_s / 1e9}
            records.append(both.record(f"{name} {size_text(count)}", "copy", **facts))
    return records


def job_of(kind: str, seed: int, mnist: Path | None, epochs: int | None, lr: float) -> Job:
    """Return the training that is compared; the same but for the compression."""
    strategy: dict[str, Any] = {} if kind == PLAIN else {"compression": {"type": kind}}
    run = {"seed": seed, "progress": "none", "checkpoint_every": "never"}
    if mnist is None:
        given = {f"strategy.compression.{key}": value for key, value in strategy.get("compression", {}).items()}
        given |= {"run.epochs": epochs or 30} | {f"run.{key}": value for key, value in run.items()}
        return Job.builtin([f"{key}={value}" for key, value in given.items()])
    files = {"files": mnist / "mnist-train.h5", "test_files": mnist / "mnist-test.h5"}
    return Job(
        data={key: str(path) for key, path in files.items()} | {"input": "images", "target": "labels"},
        model={"layers": ["flatten", *_dense(512), *_dense(256), {"type": "dense", "units": 10}]},
        optimizer={"name": "sgd", "lr": lr, "momentum": 0.9},
        schedule={"name": "cosine", "warmup": "100 steps"},
        strategy=strategy,
        run={**run, "epochs": epochs or 5, "global_batch": 128},
    )


def _dense(units: int) -> list[Any]:
    return [{"type": "dense", "units": units}, "relu"]


def accuracies(group: Group, args: argparse.Namespace) -> list[Record]:
    data = "digits" if args.mnist is None else "MNIST"
    found: dict[str, tuple[list[float], float]] = {}
    for kind in (PLAIN, *args.kinds):
        results = [trained(group, job_of(kind, seed, args.mnist, args.epochs, args.lr)) for seed in range(args.seeds)]
        found[kind] = [accuracy for accuracy, _ in results], statistics.median(seconds for _, seconds in results)
        if group.rank == 0:
            print(f"{data} {kind}: {100 * statistics.mean(found[kind][0]):.2f} %", flush=True)
    plain, plain_s = found[PLAIN]
    records = []
    for kind in args.kinds:
        values, seconds = found[kind]
        mean, peer = 100 * statistics.mean(values), 100 * statistics.mean(plain)
        facts = {"kind": kind, "ranks": group.size, "accuracy": mean, "accuracies": values, "peer_accuracy": peer}
        facts |= {"difference": mean - peer}
        records.append(common.Comparison(seconds, plain_s, plain_s / seconds).record(f"{data} {kind}", PLAIN, **facts))
    return records


def trained(group: Group, job: Job) -> tuple[float, float]:
    """Train; return the test accuracy and the seconds."""
    from hpctrain import train

    folder = group.broadcast_object(tempfile.mkdtemp(prefix="hpctrain-") if group.rank == 0 else None)
    try:
        result = train(job, run_dir=f"{folder}/run")
        summary = group.broadcast_object(result.summary)
    finally:
        group.barrier()
        if group.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return summary["test"]["accuracy"], summary["train_s"]


def main(group: Group, args: argparse.Namespace) -> None:
    columns: dict[str, Callable[[Record], str]]
    if args.accuracy:
        columns = {
            "case": lambda record: record["case"],
            "accuracy": lambda record: f"{record['accuracy']:.2f} %",
            "without": lambda record: f"{record['peer_accuracy']:.2f} %",
            "points": lambda record: f"{record['difference']:+.2f}",
        }
        common.report(group, f"accuracy, {group.size} ranks", accuracies(group, args), columns, args)
        return
    columns = {
        "case": lambda record: record["case"],
        "encode GB/s": lambda record: f"{record['encode_gbps']:.1f}",
        "decode GB/s": lambda record: f"{record['decode_gbps']:.1f}",
        "both GB/s": lambda record: f"{record['both_gbps']:.1f}",
        "copy / both": lambda record: f"{record['ratio']:.2f}",
        "demand GB/s": lambda record: f"{DEMANDS_GBPS[record['kind']]:g}" if record["kind"] in DEMANDS_GBPS else "",
    }
    common.report(group, "encoding and decoding gradients", speeds(group, args), columns, args)


if __name__ == "__main__":
    common.run(main, arguments())
