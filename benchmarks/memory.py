"""Peak resident memory of training: hpctrain with a full cache against PyTorch, on top of the imports and in all."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np
from common import Record, size_text
from models import CASES

from hpctrain.comm import Group
from hpctrain.errors import UserError

STEPS, BATCHES = 20, 2
ON_TOP, IN_ALL = 2.0, 1 / 0.75  # what issue 3 asks for: PyTorch's bytes over ours, at least

EXAMPLES = """\
  python benchmarks/memory.py --peer-python ~/torch/bin/python
  python benchmarks/memory.py --peer-python ~/torch/bin/python --models gpt-tiny --json memory.json

Each side trains 20 steps (SGD with momentum, PyTorch eager) in a fresh process; ours once before, to fill its cache.
"on top" is the peak of resident memory less what the imports of a training run had taken.  Records: case, peer, ours_s,
peer_s (seconds a step), ratio (of the totals, peer over ours), ratio_on_top, and the bytes: ours_imports, ours_peak,
peer_imports, peer_peak."""


def arguments() -> argparse.ArgumentParser:
    made = common.parser(__doc__, EXAMPLES)
    default = ["cnn-mnist", "mlp-wide"]
    made.add_argument("--models", type=model_names, default=default, metavar="A,B", help=", ".join(CASES))
    made.add_argument("--child", help=argparse.SUPPRESS)
    return made


def model_names(text: str) -> list[str]:
    names = text.split(",")
    if strange := [name for name in names if name not in CASES]:
        raise argparse.ArgumentTypeError(f"{strange[0]!r} is not one of {', '.join(CASES)}")
    return names


def resident(peak: bool) -> int:
    """Return the resident memory of this process in bytes, now or at its peak.

    Not `ru_maxrss`: that begins with what the parent had.
    """
    wanted = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not say how much memory is resident")


def main(group: Group, args: argparse.Namespace) -> None:
    if args.child:
        child(group, **json.loads(args.child))
        return
    if args.peer_python is None:
        raise UserError(
            "memory.py compares with PyTorch and needs an interpreter that has it",
            hint="python -m venv torch; torch/bin/pip install torch numpy; then --peer-python torch/bin/python",
            agreed=True,
        )
    records: list[Record] = []
    for name in args.models:
        with tempfile.TemporaryDirectory(prefix="hpctrain-memory-") as folder:
            inputs, targets = CASES[name].data(seed=0)
            data = {"inputs": inputs[:BATCHES], "targets": targets[:BATCHES]}
            np.savez(Path(folder) / "data.npz", kind=CASES[name].kind, **data)
            about, theirs = peer(args.peer_python, name, folder)
            measure(name, folder)  # fills the cache
            ours = measure(name, folder)
        top = [side["peak"] - side["imports"] for side in (theirs, ours)]
        records.append(
            {
                "case": name,
                "peer": about["peer"],
                "ours_s": ours["wall_s"],
                "peer_s": theirs["wall_s"],
                "ratio": theirs["peak"] / ours["peak"],
                "ratio_on_top": top[0] / top[1],
                **{f"ours_{key}": ours[key] for key in ("imports", "peak")},
                **{f"peer_{key}": theirs[key] for key in ("imports", "peak")},
            }
        )

    def megabytes(key: str) -> Any:
        return lambda record: size_text(round(record[key] / 2**20) * 2**20)

    columns = {
        "model": lambda record: record["case"],
        "our imports": megabytes("ours_imports"),
        "our peak": megabytes("ours_peak"),
        "PyTorch's imports": megabytes("peer_imports"),
        "PyTorch's peak": megabytes("peer_peak"),
        "on top": lambda record: f"{record['ratio_on_top']:.2f} (of {ON_TOP:g})",
        "in all": lambda record: f"{record['ratio']:.2f} (of {IN_ALL:.2f})",
    }
    common.report(group, "peak resident memory; PyTorch's over ours", records, columns, args)


def peer(python: Path, name: str, folder: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Train in PyTorch; return what it says of itself and what it took."""
    from train_step import Peer

    torch = Peer(python)
    about = torch.ask("open", model=name, folder=folder)
    found = torch.ask("time", steps=STEPS) | torch.ask("memory")
    torch.close()
    return about, found


def measure(name: str, folder: str) -> dict[str, float]:
    """Train ours in a process of its own; return what it took."""
    command = [sys.executable, __file__, "--child", json.dumps({"name": name, "folder": folder})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"training {name} failed\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def child(group: Group, name: str, folder: str) -> None:
    """Train and print what it took: what runs in the process that is measured."""
    from train_step import Ours

    import hpctrain.run.session  # noqa: F401 - what a training run imports

    imports = resident(peak=False)
    ours = Ours(group, CASES[name], Path(folder))
    times = ours.time(STEPS)
    print(json.dumps({"imports": imports, "peak": resident(peak=True), **times}))


if __name__ == "__main__":
    common.run(main, arguments())
