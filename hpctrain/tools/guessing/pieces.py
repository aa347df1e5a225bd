"""`Piece`: what of a dataset is input: all of it, some columns of a table, or fields of records; as a job names it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpctrain.data.fields.expression import parse
from hpctrain.errors import UserError
from hpctrain.tools.guessing.candidates import Candidate


@dataclass(frozen=True)
class Piece:
    """A part of the inputs.

    owner    the dataset
    columns  of a table (rows, columns): those that are meant, where they are not all
    empty    how many of its other columns hold nothing
    fields   of records: those that are meant
    """

    owner: Candidate
    columns: tuple[int, ...] | None = None
    empty: int = 0
    fields: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The path of the dataset."""
        return self.owner.path

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an example's part."""
        if self.fields:
            return (sum(math.prod(self.owner.entry.dtype[name].shape) for name in self.fields),)
        return self.owner.shape if self.columns is None else (len(self.columns),)

    @property
    def size(self) -> int:
        """Numbers in an example's part."""
        return math.prod(self.shape)

    @property
    def is_whole_dataset(self) -> bool:
        """Whether all of the dataset is meant."""
        return self.columns is None and not self.fields

    @property
    def texts(self) -> list[str]:
        """What a job says for it: "x", "x[:, 0:3]" and "x[:, 4:9]", "events[px, py]"."""
        if self.fields:
            return [f"{self.path}[{', '.join(self.fields)}]"]
        if self.columns is None:
            return [self.path]
        starts = [column for column in self.columns if column - 1 not in self.columns]
        ends = [column + 1 for column in self.columns if column + 1 not in self.columns]
        return [f"{self.path}[:, {first}:{end}]" for first, end in zip(starts, ends, strict=True)]

    def missing(self) -> float:
        """Return the share of values that are missing."""
        summaries = self.owner.survey.summaries(self.owner.entry)
        used = [summaries[f".{name}"] for name in self.fields] if self.fields else list(summaries.values())[:1]
        read, missing = sum(one.read for one in used), sum(one.missing for one in used)
        if self.empty:
            nothing = read // self.owner.size * self.empty
            read, missing = read - nothing, missing - nothing
        return missing / max(read, 1)

    def spreads(self) -> list[tuple[str, float, float]]:
        """Return words, mean and deviation: of each column of a table and each field; of larger examples over all."""
        owner = self.owner
        if self.fields:
            known = owner.survey.summaries(owner.entry)
            return [(f"{name!r}", known[f".{name}"].mean, known[f".{name}"].deviation) for name in self.fields]
        if owner.entry.kind != "number":
            return []
        if len(owner.shape) > 1 or not owner.has_rows:
            summary = owner.survey.summary(owner.entry)
            return [(f"{owner.path!r}", summary.mean, summary.deviation)]
        table, found = owner.table(), []
        for column in range(table.shape[1]) if self.columns is None else self.columns:
            values = table[np.isfinite(table[:, column]), column]
            words = f"{owner.path!r}" if table.shape[1] == 1 else f"column {column} of {owner.path!r}"
            if values.size:
                found.append((words, float(values.mean()), float(values.std())))
        return found


def alive_columns(one: Candidate, columns: Sequence[int]) -> tuple[int, ...]:
    """Return those columns of a table, of one axis an example or none, that hold a number in some row."""
    if not one.has_rows:
        return tuple(columns)
    table = one.table()
    suspected = [column for column in columns if len(table) and np.isnan(table[:, column]).all()]
    if not suspected:
        return tuple(columns)
    summaries = one.survey.summaries(one.entry, by_column=True)
    empty = {
        column
        for column in suspected
        if (summary := summaries.get(f"[:, {column}]", summaries[""])).missing == summary.read
    }
    return tuple(column for column in columns if column not in empty)


def can_be_named(field: str) -> bool:
    """Return whether a job can name a field of records, as in "events[px, py]"."""
    try:
        return parse(f"x[{field}, x]", "").names == (field, "x")
    except UserError:
        return False
