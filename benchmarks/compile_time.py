"""Compile and start times: a whole run of each preset up to its first step, with an empty cache and with a full one."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
from common import Record

from hpctrain.comm import Group
from hpctrain.nn import PRESETS

COLD_S, WARM_S = 45.0, 3.0  # what issue 3 allows
IMAGE = ((32, 32, 3), ())
# Preset -> shape of an example, shape of its labels; small: what counts is the code, not the arithmetic.
SHAPES = {name: IMAGE for name in PRESETS if name.startswith("resnet")} | {
    "mlp": ((784,), ()),
    "cosmoflow": ((32, 32, 32, 4), ()),
    "unet": ((32, 32, 1), (32, 32)),
    "gpt": ((64,), (64,)),
    "lstm": ((32, 8), ()),
}
ROWS, CLASSES = 8, 10

EXAMPLES = """\
  python benchmarks/compile_time.py
  python benchmarks/compile_time.py --presets resnet20,gpt --json compile.json

Each run is a process of its own: python starts, and `hpctrain.train` trains a job of eight rows for one step.  "cold"
begins with an empty cache folder and says how long compiling took; "warm" begins with what the cold run left and says
how long it took from the start of the process to the end of the first step.  Records: case ("gpt cold"), peer
("limit"), ours_s, peer_s (the limit), ratio, cpu_s, first_step_s, compile_s."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    made.add_argument("--presets", type=preset_names, default=list(SHAPES), metavar="A,B", help=", ".join(SHAPES))
    made.add_argument("--child", help=argparse.SUPPRESS)
    return made


def preset_names(text: str) -> list[str]:
    names = text.split(",")
    if strange := [name for name in names if name not in SHAPES]:
        raise argparse.ArgumentTypeError(f"{strange[0]!r} is not one of {', '.join(SHAPES)}")
    return names


def main(group: Group, args: argparse.Namespace) -> None:
    if args.child:
        child(**json.loads(args.child))
        return
    records: list[Record] = []
    for name in args.presets:
        with tempfile.TemporaryDirectory(prefix="hpctrain-compile-") as folder:
            write_data(Path(folder) / "data.h5", name)
            for state, limit in (("cold", COLD_S), ("warm", WARM_S)):
                found = start(name, Path(folder))
                ours = found["compile_s"] if state == "cold" else found["first_step_s"]
                records.append(
                    {"case": f"{name} {state}", "peer": "limit", "ours_s": ours, "peer_s": limit, "ratio": limit / ours}
                    | found
                )
                print(f"{name} {state}: {ours:.1f} s", flush=True)
    columns = {
        "preset": lambda record: record["case"],
        "seconds": lambda record: f"{record['ours_s']:.2f}",
        "limit": lambda record: f"{record['peer_s']:g}",
        "CPU seconds": lambda record: f"{record['cpu_s']:.2f}",
        "to the first step": lambda record: f"{record['first_step_s']:.2f}",
    }
    common.report(group, "compile and start times", records, columns, args)


def write_data(path: Path, name: str) -> None:
    """Write eight rows of random data in the shape that a preset takes."""
    import h5py

    shape, label_shape = SHAPES[name]
    rng = np.random.default_rng(0)
    tokens = name == "gpt"
    inputs = rng.integers(0, CLASSES, (ROWS, *shape)) if tokens else rng.standard_normal((ROWS, *shape), np.float32)
    labels = rng.integers(0, CLASSES, (ROWS, *label_shape))
    labels.flat[0] = CLASSES - 1
    with h5py.File(path, "w") as file:
        file["inputs"], file["labels"] = inputs, labels


def start(name: str, folder: Path) -> dict[str, float]:
    """Run one job in a process of its own, with the cache in `folder`; return its times."""
    environment = {**os.environ, "HPCTRAIN_CACHE_DIR": str(folder / "cache")}
    options = json.dumps({"name": name, "folder": str(folder), "began": time.time()})
    command = [sys.executable, __file__, "--child", options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the run of {name} failed\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def child(name: str, folder: str, began: float) -> None:
    """Train one step and print the times: what runs in the process that is measured."""
    import hpctrain
    from hpctrain.monitor.base import Monitor

    times: dict[str, float] = {}

    class Watch(Monitor):
        """Notes when the first step ended."""

        def on_step(self, report: Any) -> None:
            times["first_step_s"] = time.time() - began
            times["cpu_s"] = time.process_time()

    result = hpctrain.train(
        {
            "data": {"files": f"{folder}/data.h5", "input": "inputs", "target": "labels"},
            "model": {"preset": name},
            "run": {"steps": 1, "global_batch": ROWS, "progress": "none", "checkpoint_every": "never"},
        },
        run_dir=f"{folder}/run-{began}",
        monitors=[Watch()],
    )
    print(json.dumps({**times, "compile_s": result.summary["compile_s"]}))


if __name__ == "__main__":
    common.run(main, arguments())
