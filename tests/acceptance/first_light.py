"""First light's acceptance: what the suite samples, in full, as a table (pytest does not collect it).

    python tests/acceptance/first_light.py              # everything
    python tests/acceptance/first_light.py times kills  # some of it: times, trajectory, kills

times       the built-in job at 8 and at 2 ranks, with a cold and a warm kernel cache, from the mpirun call to its end
trajectory  the built-in job at 1, 2, 3, 4, 5, 8 ranks, ring and native, scatter and shared, against one rank
kills       ten SIGKILLs at random steps at 1 and at 4 ranks, resumed, against the uninterrupted run
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from datasets import summary
from interrupting import killed, long_job, uninterrupted
from launching import hpctrain
from rich.console import Console
from rich.table import Table

WORLD_SIZES = (1, 2, 3, 4, 5, 8)
LIMITS_S = {(8, "cold"): 90, (8, "warm"): 15, (2, "cold"): 45, (2, "warm"): 10}
KILLS = 10

Rows = list[tuple[str, str, str, bool]]  # what, found, demanded, whether it holds


def times(folder: Path) -> Rows:
    """Wall time of the built-in job, cold and warm."""
    rows: Rows = []
    for ranks in (8, 2):
        env = {"HPCTRAIN_CACHE_DIR": str(folder / f"cache-{ranks}")}
        for number, state in enumerate(("cold", "warm"), start=1):
            done = hpctrain(ranks, timeout=300, env=env, cwd=folder)
            run = summary(folder / "runs" / f"digits-{len(rows) + 1:03d}")
            limit, accuracy = LIMITS_S[ranks, state], run["test"]["accuracy"]
            holds = done.returncode == 0 and done.seconds <= limit and accuracy >= 0.97
            found = f"{done.seconds:.1f} s, accuracy {100 * accuracy:.2f} %, compiling {run['compile_s']:.1f} s"
            rows.append((f"{ranks} ranks, {state} (run {number})", found, f"{limit} s, 97 %", holds))
    return rows


def trajectory(folder: Path) -> Rows:
    """Every world size, collective and way to hand out data, against one rank."""
    rows: Rows = []
    alone = None
    for ranks, collective, distribute in product(WORLD_SIZES, ("ring", "native"), ("scatter", "shared")):
        name = f"{ranks}-{collective}-{distribute}"
        settings = ("--set", f"strategy.collective={collective}", "--set", f"data.distribute={distribute}")
        done = hpctrain(ranks, "train", *settings, "--run-dir", folder / name, timeout=300, cwd=folder)
        if done.returncode:
            rows.append((name, done.stderr[-300:], "code 0", False))
            continue
        run = summary(folder / name)
        alone = alone or run
        loss = abs(run["train_loss"] / alone["train_loss"] - 1)
        accuracy = abs(run["test"]["accuracy"] - alone["test"]["accuracy"])
        examples = run["examples_per_epoch"]
        holds = loss <= 1e-4 and accuracy <= 0.005 and examples == alone["examples_per_epoch"]
        found = (
            f"loss {loss:.1e} off, accuracy {100 * accuracy:.2f} points off, {examples} examples, {done.seconds:.1f} s"
        )
        rows.append((name, found, f"1e-4, 0.5, {alone['examples_per_epoch']}", holds))
    return rows


def kills(folder: Path) -> Rows:
    """Ten kills of one run at 1 and at 4 ranks."""
    rows: Rows = []
    for ranks in (1, 4):
        here = folder / f"kills-{ranks}"
        here.mkdir()
        job = long_job(here)
        whole = uninterrupted(ranks, job, here / "whole")
        found, at = killed(ranks, job, here / "killed", KILLS, random.Random())
        same = found["weights_sha256"] == whole["weights_sha256"]
        words = f"{found['weights_sha256'][:12]}, killed at {', '.join(map(str, at))}"
        rows.append((f"{KILLS} kills at {ranks} ranks", words, whole["weights_sha256"][:12], same and min(at) > 0))
    return rows


PARTS: dict[str, Callable[[Path], Rows]] = {"times": times, "trajectory": trajectory, "kills": kills}


def main() -> int:
    """Run the parts named on the command line, or all; return 1 when something does not hold."""
    chosen = sys.argv[1:] or list(PARTS)
    if not set(chosen) <= PARTS.keys():
        sys.exit(__doc__)
    table = Table("what", "found", "demanded", "holds")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="hpctrain-acceptance-") as folder:
        for name in chosen:
            here = Path(folder, name)
            here.mkdir()
            for what, found, demanded, holds in PARTS[name](here):
                print(f"{what}: {found} [{demanded}] {'holds' if holds else 'MISSED'}", flush=True)
                table.add_row(what, found, demanded, "yes" if holds else "NO")
                missed += not holds
            table.add_section()
    Console(width=160).print(table)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
