"""What the benchmarks share: arguments, timing in turn, records, the table, the JSON file.  Not a benchmark itself.

A benchmark compares ours with a peer *in turn in one run*: ours, peer, peer, ours, ours, ...  Each pair gives a ratio
(peer over ours, above 1 is a win for ours), and the median over the pairs counts: what slows the machine for a while
slows both.

Run from a checkout without installing: this file puts the checkout on the import path.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One thread a rank, as a run has it; must be set before numpy loads its BLAS.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpctrain.comm import Group, join  # noqa: E402 - after the path is set
from hpctrain.comm.environment import launched_rank  # noqa: E402
from hpctrain.errors import UserError  # noqa: E402

Record = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Medians over the pairs, in seconds a call; `ratio` is the median of the pairs' peer over ours."""

    ours_s: float
    peer_s: float
    ratio: float

    def record(self, case: str, peer: str, **more: Any) -> Record:
        """Return what goes into the JSON file for one case."""
        return {
            "case": case,
            "peer": peer,
            "ours_s": self.ours_s,
            "peer_s": self.peer_s,
            "ratio": self.ratio,
            **more,
        }


def parser(description: str, examples: str) -> argparse.ArgumentParser:
    """Return an argument parser with the options that every benchmark has, and examples below its help."""
    made = argparse.ArgumentParser(
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the records to this file, a JSON list")
    made.add_argument(
        "--peer-python",
        type=_interpreter,
        metavar="PATH",
        help="the Python interpreter that has the peers which are not in this environment (PyTorch, ...)",
    )
    made.add_argument("--pairs", type=_positive, default=7, help="ours-peer pairs for each case (default 7)")
    return made


def compare(
    group: Group, ours: Callable[[], Any], peer: Callable[[], Any], pairs: int, pair_s: float = 0.1
) -> Comparison:
    """Time two calls in turn; every rank calls it with the same arguments, and the slowest rank's time counts.

    A timing repeats its call so often that a pair takes about `pair_s` seconds, which hides the clock and the barrier.
    """
    timers = {name: functools.partial(seconds, group, call) for name, call in (("ours", ours), ("peer", peer))}
    times = in_turn(group, timers, pairs, pair_s / 2)
    return of_pairs(list(zip(times["ours"], times["peer"], strict=True)))


def of_pairs(pairs: list[tuple[float, float]]) -> Comparison:
    """Return what pairs of times, ours and the peer's of the same round, come to."""
    return Comparison(
        statistics.median(mine for mine, _ in pairs),
        statistics.median(other for _, other in pairs),
        statistics.median(other / mine for mine, other in pairs),
    )


def in_turn(
    group: Group, timers: dict[str, Callable[[int], float]], rounds: int, each_s: float = 0.05
) -> dict[str, list[float]]:
    """Time several things in turn, `rounds` times; every rank calls it, and the slowest rank's time counts.

    A timer makes so many calls as it is told (such that they take about `each_s`) and returns the seconds of one.
    """
    repeats = {}
    for name, timer in timers.items():
        timer(1)  # the first call makes buffers and connections
        once = max(group.all_gather_objects(timer(1)))
        repeats[name] = int(min(max(each_s / max(once, 1e-9), 1), 10_000))
    times: dict[str, list[float]] = {name: [] for name in timers}
    for turn in range(rounds):
        # Who goes first changes, so that nobody always finds the caches as another left them.
        for name in timers if turn % 2 == 0 else reversed(timers):
            times[name].append(max(group.all_gather_objects(timers[name](repeats[name]))))
    return times


def seconds(group: Group, call: Callable[[], Any], repeats: int) -> float:
    """Return the seconds of one call on this rank, over `repeats` of them after a barrier."""
    group.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def report(
    group: Group, title: str, records: list[Record], columns: dict[str, Callable[[Record], str]], args: Any
) -> None:
    """Print the table and write the JSON file, on rank 0; see `show`."""
    if group.rank == 0:
        show(title, records, columns, args)


def show(title: str, records: list[Record], columns: dict[str, Callable[[Record], str]], args: Any) -> None:
    """Print the table and write the JSON file; `columns` maps a heading to the text of a record's cell."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        table.add_row(*(cell(record) for cell in columns.values()))
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)  # a file has room for every column
    if args.json:
        _write(args.json, json.dumps(records, indent=1) + "\n")
        print(f"records: {args.json}")


def _write(path: Path, text: str) -> None:
    """Write to a temporary name and rename, so that a reader never finds half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def run(main: Callable[[Group, argparse.Namespace], None], arguments: argparse.ArgumentParser) -> None:
    """Parse the arguments, join the ranks and run `main(group, args)`: the whole life of a benchmark script.

    A mistake is told once and ends with code 2; a failure on one rank ends all of them.
    """
    args = _parse(arguments)
    try:
        group = join()
    except UserError as error:
        if launched_rank() == 0:
            print(error.message, file=sys.stderr)
        sys.exit(2)
    try:
        main(group, args)
    except UserError as error:
        if not error.agreed:  # the others would wait for ever
            print(f"[rank {group.rank}/{group.size}] {error.message}", file=sys.stderr, flush=True)
            group.abort(1)
        if group.rank == 0:
            print(error.message, file=sys.stderr)
        sys.exit(1)
    except BaseException:
        print(f"[rank {group.rank}/{group.size} {group.hostname}]\n{traceback.format_exc()}", file=sys.stderr)
        group.abort(1)


def _parse(arguments: argparse.ArgumentParser) -> argparse.Namespace:
    if launched_rank() == 0:
        return arguments.parse_args()
    # Every rank finds the same; help and usage errors are rank 0's to print.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return arguments.parse_args()


def time_text(seconds: float) -> str:
    """Return a time with three digits and a fitting unit."""
    unit, factor = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)
    return f"{seconds * factor:.3g} {unit}"


def size_text(count: int) -> str:
    """Return a number of bytes in KB or MB of 1024, as the benchmarks name their cases."""
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if count >= factor:
            return f"{count / factor:g} {unit}"
    return f"{count} B"


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return value


def _interpreter(text: str) -> Path:
    path = Path(text)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"{text!r} is not a program; give the path of a Python interpreter")
    return path
