"""Which row goes where: pure arithmetic on row numbers, seed and epoch.  No files, no communication, no stored index.

Nothing here but `row_range`, `worker_range` and `own_shares` knows the world size: parts and batches are the same on
one rank and on a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpctrain.errors import UserError
from hpctrain.kernels.rows import permute_range

TRAIN, VALIDATION, TEST = 0, 1, 2  # codes of the parts in `Split.part_of`
UNUSED = 3  # of rows that are in no part, see `splits`

_SPLIT_STREAM = 2  # keeps a seed's split and its epochs (`order`) independent of each other
_MASK64 = 2**64 - 1


def row_range(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return the rows lo..hi that a rank holds: even contiguous shares, the first rows % size ranks have one more."""
    base, extra = divmod(rows, size)
    lo = rank * base + min(rank, extra)
    return lo, lo + base + (rank < extra)


def worker_range(batch_rows: int, rank: int, size: int, unit: int = 1) -> tuple[int, int]:
    """Return the rows lo..hi of a global batch that a rank works on; empty where there are more ranks than units.

    Shares are whole units of `unit` rows, the same units at every world size: a layer that looks at a group of examples
    (batch norm) then sees the same groups.
    """
    lo, hi = row_range(-(-batch_rows // unit), rank, size)
    return min(lo * unit, batch_rows), min(hi * unit, batch_rows)


def own_shares(held: Sequence[int], rank: int, batch: int) -> np.ndarray:
    """Return how many of its own rows a rank has used before each step of an epoch, and after the last: int64.

    held   rows that each rank holds: each works on its own alone
    batch  rows of a step over all ranks; the last step has what is left

    Row j of a rank with h rows has its time at (j + p) / h of the epoch, where the phases p in (0, 1) are apart for
    ranks that hold as many rows; steps take the rows of all ranks in the order of time.  So every step but the last is
    full, and a rank's rows are spread evenly.  All of it is exact, and a rank works out its own part.
    """
    size, own, total = len(held), held[rank], sum(held)
    taken = np.minimum(batch * np.arange(-(-total // batch) + 1), total)
    if size == 1:
        return taken
    phases = _phases(held)
    expected = np.floor(taken * (own / total)).astype(np.int64)
    slack = own * size // total + 3  # every other rank is at most one row ahead or behind
    low, high = np.maximum(expected - slack, 0), np.minimum(expected + slack, own)
    while (open_ := low < high).any():
        middle = (low + high) // 2
        is_before = open_ & (_place(held, phases, rank, middle) < taken)
        low, high = np.where(is_before, middle + 1, low), np.where(open_ & ~is_before, middle, high)
    return low


def _phases(held: Sequence[int]) -> list[int]:
    """Return for each rank an odd number below 2 x ranks: its phase in units of 1 / (2 x ranks)."""
    size = len(held)
    stride = next(step for step in range(max(1, round(0.618 * size)), 2 * size) if math.gcd(step, size) == 1)
    phases = [0] * size
    for place, rank in enumerate(sorted(range(size), key=lambda rank: (held[rank], rank))):
        phases[rank] = 2 * (place * stride % size) + 1  # neighbours by number of rows are far apart
    return phases


def _place(held: Sequence[int], phases: Sequence[int], rank: int, rows: np.ndarray) -> np.ndarray:
    """Return how many rows of all ranks come before some of a rank's rows, in the order of time."""
    unit, own = 2 * len(held), held[rank]
    whole, rest = np.divmod(unit * rows + phases[rank], own)  # the time, times 2 x ranks
    before = rows.copy()
    for other, count in enumerate(held):
        if other == rank or not count:
            continue
        # Of the other's rows i those with (unit i + phase) / count < time; of equal times the smaller phase is first.
        least, over = np.divmod(count * rest, own)
        bound = count * whole + least - ((over == 0) & (phases[other] > phases[rank]))
        before += np.clip((bound - phases[other]) // unit + 1, 0, count)
    return before


def check_fractions(validation: float, test: float) -> None:
    """Raise a `UserError` for a fraction of the rows that is none."""
    for name, fraction in (("validation", validation), ("test", test)):
        if not 0 <= fraction < 1:
            raise UserError(f"data.split.{name} is out of range", found=fraction, allowed="a fraction, 0 <= f < 1")


@dataclass(frozen=True)
class Split:
    """The random split of `rows` rows into training, validation and test part, by fractions of the rows.

    The test part has exactly round(rows * test) rows, the validation part round(rows * validation), training the rest.
    A row's part is read off its place in a pseudo-random permutation keyed by the seed, so any rank can tell it for any
    row.  Raises `UserError` for fractions that leave a part that was asked for, or the training part, without rows.
    """

    rows: int
    seed: int
    validation: float = 0.0
    test: float = 0.0

    def __post_init__(self) -> None:
        check_fractions(self.validation, self.test)
        for part, fraction in ((VALIDATION, self.validation), (TEST, self.test)):
            if fraction > 0 and self.counts[part] == 0:
                name = ("validation", "test")[part - 1]
                raise UserError(
                    f"data.split.{name} = {fraction} of {self.rows} rows leaves the {name} part without a row",
                    hint="use a larger fraction or more data",
                )
        if self.counts[TRAIN] <= 0:
            raise UserError(
                "data.split leaves no rows for training",
                found=f"validation = {self.validation} and test = {self.test} of {self.rows} rows: "
                f"{self.counts[VALIDATION]} validate and {self.counts[TEST]} test",
                allowed="fractions that leave a row or more",
                hint="use smaller fractions or more data",
            )

    @property
    def unused(self) -> int:
        """Rows that are in no part: none."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory that telling a row's part takes: none."""
        return 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """Rows of the training, the validation and the test part."""
        validation, test = round(self.rows * self.validation), round(self.rows * self.test)
        return self.rows - validation - test, validation, test

    def part_of(self, lo: int, hi: int) -> np.ndarray:
        """Return the part of the rows lo..hi: uint8, TRAIN, VALIDATION or TEST."""
        part = np.zeros(hi - lo, np.uint8)
        _, validation, test = self.counts
        if validation + test:
            place = permutation(self.seed, _SPLIT_STREAM, 0, self.rows, lo, hi)
            part[place < validation + test] = VALIDATION
            part[place < test] = TEST
        return part


def permutation(
    seed: int, stream: int, number: int, count: int, lo: int, hi: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Return the places lo..hi (int64) of the permutation of [0, count) that (seed, stream, number) name."""
    if not 0 <= lo <= hi <= count:
        raise ValueError(f"positions {lo}..{hi} are not within 0..{count}")
    if out is None:
        out = np.empty(hi - lo, np.int64)
    permute_range(np.uint64(seed & _MASK64), stream, number, count, lo, out)
    return out
