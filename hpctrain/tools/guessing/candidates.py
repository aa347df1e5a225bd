"""`Candidate`: a dataset that could be an input or a target, once it is settled what an example is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpctrain.tools.guessing.names import is_neither, is_target, last
from hpctrain.tools.guessing.survey import Survey
from hpctrain.tools.inspecting.contents import Entry

MANY_CLASSES = 1000
_ONE_HOT_WIDEST = 4096
_FEWEST_ROWS, _MOSTLY = 16, 0.9  # that tell a count of the rows, and how many of the steps between them


@dataclass(frozen=True)
class Candidate:
    """A dataset: its path as a job names it, and the shape of an example in it."""

    path: str
    entry: Entry
    shape: tuple[int, ...]
    survey: Survey

    @property
    def has_rows(self) -> bool:
        """Whether an example is a row of the dataset, not all of it."""
        return len(self.entry.shape) == len(self.shape) + 1

    @property
    def size(self) -> int:
        """Numbers in an example."""
        return math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether its type holds whole numbers: integers, booleans, an enumeration."""
        return self.entry.kind == "number" and self.entry.dtype.kind in "biu" and not self.entry.packed

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers that can be read here."""
        return self.entry.kind == "number" and self.entry.readable

    @property
    def sounds_like_target(self) -> int:
        """How much its name sounds like targets, 0 to 3."""
        return is_target(self.path)

    @property
    def is_input(self) -> bool:
        """Whether it may be an input: numbers whose name does not say that they are something else."""
        return self.is_number and not self.sounds_like_target and not is_neither(self.path)

    def classes(self) -> int | None:
        """Return largest label + 1 (of text: different texts), 2 or more, where it can hold class labels, else None."""
        summary = self.survey.summary(self.entry)
        if self.entry.kind == "text":
            return max(summary.distinct, 2) if summary.distinct and summary.distinct <= MANY_CLASSES else None
        if not self.is_whole or not summary.read or math.isnan(summary.minimum) or summary.minimum < -1:
            return None
        count = max(int(summary.maximum) + 1, 2)
        return count if summary.classes is not None or count <= min(MANY_CLASSES, summary.read // 4) else None

    def least_class(self, field: str | None = None) -> int | None:
        """Return how many of the values that were looked at are of the rarest class; None where that is not known.

        field  of records, whose classes are meant
        """
        if field is not None:
            summary = self.survey.summaries(self.entry)[f".{field}"]
            is_counted = summary.classes and len(summary.classes) >= (summary.distinct or 0)
            return min(summary.classes.values()) if is_counted else None
        if columns := self.one_hot_columns():
            return int(self.survey.sample(self.entry)[:, -columns:].sum(axis=0).min())
        classes = self.survey.summary(self.entry).classes
        return min(classes.values()) if classes else None

    def counts_rows(self, field: str | None = None) -> bool:
        """Return whether whole numbers, one an example, rise by one from row to row; `field` of records."""
        dtype = self.entry.dtype if field is None else self.entry.dtype[field]
        if not self.has_rows or dtype.base.kind not in "iu" or not self.entry.readable:
            return False
        steps = np.diff(self.survey.sample(self.entry, field).reshape(-1))
        # Files follow one another, and a sample has gaps.
        return len(steps) >= _FEWEST_ROWS and np.mean(steps == 1) > _MOSTLY

    def one_hot_columns(self) -> int:
        """Return how many of the last columns are one-hot labels (a 1 and else 0 in each row), 0 if none are."""
        if not self.is_number or len(self.shape) != 1 or not 2 <= self.shape[0] <= _ONE_HOT_WIDEST:
            return 0
        rows = self.survey.sample(self.entry)
        rows = rows.reshape(len(rows), -1)
        if not len(rows):
            return 0
        sums = np.zeros(len(rows))
        for count in range(1, rows.shape[1] + 1):
            column = rows[:, -count]
            if not np.all((column == 0) | (column == 1)):
                return 0
            sums += column
            if np.all(sums == 1):
                return count if count > 1 else 0
            if np.any(sums > 1):
                return 0
        return 0

    def table(self) -> np.ndarray:
        """Return some rows of numbers, float64 (rows, size), as they are meant: NaN where a value is missing."""
        rows, packed = self.survey.sample(self.entry).reshape(-1, max(self.size, 1)), self.entry.packed
        for name in ("_FillValue", "missing_value"):
            if name in packed:
                rows = np.where(rows == packed[name], np.nan, rows)
        return rows * packed.get("scale_factor", 1.0) + packed.get("add_offset", 0.0)

    def describe(self) -> str:
        """Return path and shape in words."""
        shape = f" of {self.shape}" if self.shape else ""
        return f"{self.path!r} ({self.entry.type}{shape} an example)"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return last(self.path)
