"""What a rank does when in a step: forward, backward, the sums of buckets, the update; and a picture of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import common

if TYPE_CHECKING:
    from overlap import Stepper

COMPUTING, SUMS = "computing", "sums"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
COLORS = {FORWARD: ("#2f5d8a",), BACKWARD: ("#6a9fd0", "#89b5de"), UPDATE: ("#3d8f5f",), SUMS: ("#e08a3c", "#c05a2c")}


class Bar(NamedTuple):
    """Something that a rank did: seconds since the step began, and the bytes of a transfer."""

    row: str  # COMPUTING or SUMS
    what: str  # FORWARD, BACKWARD, UPDATE or SUMS
    begin_s: float
    end_s: float
    bytes: int = 0


def traced(stepper: Stepper, steps: int) -> list[Bar]:
    """Make some steps; return what happened in the one of median length.  Every rank calls it."""
    timelines = []
    with _forward_told(stepper), _calls_noted(stepper) as (sums, waits):
        for index in range(steps):
            sums.clear()
            waits.clear()
            started = time.perf_counter()
            stepper.step(index)
            ended = time.perf_counter()
            timelines.append(_bars(started, stepper.told, sums, waits, ended))
    length = statistics.median_low(bars[-1].end_s for bars in timelines)
    return next(bars for bars in timelines if bars[-1].end_s == length)


def _bars(
    started: float,
    told: list[tuple[int, float]],
    sums: list[tuple[float, float, int]],
    waits: list[tuple[float, float, int]],
    ended: float,
) -> list[Bar]:
    """Return the bars in order of their ends within each row; the update last."""
    (_, forward), *segments = told
    bars = [Bar(COMPUTING, FORWARD, 0.0, forward - started)]
    for _, when in segments:
        bars.append(Bar(COMPUTING, BACKWARD, bars[-1].end_s, when - started))
    transfers = [Bar(SUMS, SUMS, begin - started, end - started, size) for begin, end, size in sums]
    return [*bars, *transfers, Bar(COMPUTING, UPDATE, waits[-1][1] - started, ended - started)]


@contextmanager
def _forward_told(stepper: Stepper) -> Iterator[None]:
    """Within, the model tells when the loss is there, too: as if an empty end of the gradients were final."""
    model = stepper.model
    calls = bool(model.state_layout.size) + sum(len(step.calls) for step in model.plan.forward) + 1
    plain = model._stops
    model._stops = tuple(
        part
        for first, last, numbers, lo in plain
        for part in (
            ((first, calls, None, len(model.grad_buffer)), (calls, last, numbers, lo))
            if first < calls < last
            else ((first, last, numbers, lo),)
        )
    )
    yield
    model._stops = plain


@contextmanager
def _calls_noted(stepper: Stepper) -> Iterator[tuple[list, list]]:
    """Within, (begin, end, bytes) of sums of buckets and of the waiting for all of them are noted."""
    reducer = stepper.strategy._reducer
    sums, waits = [], []
    reducer._collective.all_reduce = _noting(reducer._collective.all_reduce, sums)
    reducer.reduce = _noting(reducer.reduce, waits)
    yield sums, waits
    del reducer._collective.all_reduce, reducer.reduce


def _noting(call: Callable[[Any], None], notes: list[tuple[float, float, int]]) -> Callable[[Any], None]:
    def noting(given: Any) -> None:
        begun = time.perf_counter()
        call(given)
        notes.append((begun, time.perf_counter(), getattr(given, "nbytes", 0)))

    return noting


def draw(path: Path, title: str, timelines: dict[str, list[Bar]]) -> None:
    """Draw timelines one below the other on the same axis: by name, such as "mlp-wide with overlap"."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, every = pyplot.subplots(
        len(timelines), figsize=(10, 0.8 + 1.5 * len(timelines)), layout="constrained", squeeze=False
    )
    for axes, (name, bars) in zip(every.flat, timelines.items(), strict=True):
        counts: dict[str, int] = {}
        length = bars[-1].end_s
        for bar in bars:
            colors, number = COLORS[bar.what], counts.get(bar.what, 0)
            counts[bar.what] = number + 1
            seconds = bar.end_s - bar.begin_s
            axes.barh([bar.row], [seconds * 1e3], left=bar.begin_s * 1e3, color=colors[number % len(colors)])
            if bar.bytes and seconds > length / 16:
                middle = (bar.begin_s + bar.end_s) / 2 * 1e3
                axes.text(middle, bar.row, f"{bar.bytes / 2**20:.3g} MB", ha="center", va="center", fontsize=8)
        axes.set_title(f"{name}: {common.time_text(length)}", loc="left", fontsize=10)
        axes.invert_yaxis()
    _same_scale(list(zip(every.flat, timelines, strict=True)), timelines)
    every[-1, 0].set_xlabel("ms")
    figure.suptitle(title, fontsize=11)
    figure.legend(handles=[Patch(color=colors[0], label=what) for what, colors in COLORS.items()], loc="outside right")
    temporary = path.with_name(f".{path.name}.tmp{path.suffix}")
    figure.savefig(temporary, dpi=120)
    temporary.replace(path)
    print(f"plot: {path}")


def _same_scale(placed: list[tuple[Any, str]], timelines: dict[str, list[Bar]]) -> None:
    """Give the two timelines of a model the same axis: its name is the first word."""
    for axes, name in placed:
        model = name.split()[0]
        longest = max(bars[-1].end_s for other, bars in timelines.items() if other.split()[0] == model)
        axes.set_xlim(0, longest * 1e3)
