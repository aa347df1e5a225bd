"""Splits of windows over series, of which no stored row is in two parts.

Windows that follow one another share rows: of one that tests, drawn at random, the neighbours would train on the same
time steps.  So the series are cut in time, with a gap of the windows that overlap a cut (purging: Lopez de Prado,
"Advances in financial machine learning", 2018, 7.4), or whole runs are drawn.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hpctrain.data.fields.examples import Windows
from hpctrain.data.sharding import TEST, TRAIN, UNUSED, VALIDATION
from hpctrain.errors import UserError

_MOST_LOST = 0.2  # of the windows: where cuts in time would take more, whole runs are drawn


class Series(Protocol):
    """What is needed of a source of windows; `windows` is None where examples are something else."""

    windows: Windows | None

    def stretches(self) -> np.ndarray:
        """Return the numbers of windows in each run of each file, in order."""


def default_way(source: Series, validation: float, test: float) -> str:
    """Return by what a job is split that does not say it: "random" where no windows overlap, else "time" or "run".

    "run" where there are as many runs as parts, and cuts in time would take more than a fifth of the windows: many
    short runs are no loss, and one short series can be cut in no other way.
    """
    cuts = (validation > 0) + (test > 0)
    if source.windows is None or not source.windows.sharing or not cuts:
        return "random"
    sizes = source.stretches()
    lost = np.minimum(sizes, cuts * source.windows.sharing).sum()
    return "run" if np.count_nonzero(sizes) > cuts and lost > _MOST_LOST * sizes.sum() else "time"


def check_way(source: Series, by: str) -> None:
    """Refuse a way to split that would put a row into two parts."""
    if by in ("random", "stratified") and source.windows is not None and source.windows.sharing:
        windows = source.windows
        raise UserError(
            f'data.split.by = "{by}" would put the same rows into several parts, for the windows overlap',
            found=f"windows of {windows.length} rows with targets up to {max(windows.ahead)} rows behind them, "
            f"one every {windows.stride}",
            allowed=f'by = "time", "run", "file" or a group; or data.windows.stride = {windows.reach} or more',
            hint="leave data.split.by out: the run then chooses, and says what it does",
        )


def by_time(source: Series, fractions: tuple[float, float]) -> np.ndarray:
    """Return each window's part (uint8): of every run the first train, then some validate, and the last ones test.

    fractions  of the windows for validation and test

    Between two parts the windows that share rows with both are left out (UNUSED).  The fractions are those of all that
    is left, to a window.  A run that would lose more than is left of it is not cut but trains, if others can be cut.
    """
    gap, sizes = source.windows.sharing, source.stretches()
    cuts = sum(fraction > 0 for fraction in fractions)
    room = np.maximum(0, sizes - cuts * gap)
    is_long = room >= cuts * gap
    if (room[is_long] > 0).any():
        room[~is_long] = 0
    tests = largest_remainders(room, fractions[1], room)
    validations = largest_remainders(room, fractions[0], room - tests)
    codes = np.full(int(sizes.sum()), TRAIN, np.uint8)
    for end, test, validation in zip(np.cumsum(sizes).tolist(), tests.tolist(), validations.tolist(), strict=True):
        for part, count in ((TEST, test), (VALIDATION, validation)):
            if count:
                codes[end - count : end] = part
                codes[end - count - gap : end - count] = UNUSED
                end -= count + gap
    return codes


def largest_remainders(sizes: np.ndarray, fraction: float, most: np.ndarray) -> np.ndarray:
    """Return whole numbers (int64) near fraction x sizes, at most `most`, whose sum is round(fraction x sum of sizes).

    Each is fraction x size rounded down; those with the largest remainders get one more, the first of equal ones first.
    """
    quota = fraction * sizes
    counts = np.minimum(np.floor(quota).astype(np.int64), most)
    left = min(round(fraction * int(sizes.sum())), int(most.sum())) - int(counts.sum())
    for place in np.argsort(-(quota - counts), kind="stable"):
        if left <= 0:
            break
        if counts[place] < most[place]:
            counts[place] += 1
            left -= 1
    return counts
