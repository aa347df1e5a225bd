"""`Survey`: files and what is known of their values, looked at once and only where somebody asks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpctrain.tools.inspecting.contents import Entry, FileSet, look
from hpctrain.tools.inspecting.values import Limits, Summary, sample, summarise

SAMPLE_ROWS = 2048


class Survey:
    """Sets of files that are alike (`contents.look`), with summaries and samples of their datasets.

    Asked twice, it answers from memory.
    """

    def __init__(self, sets: Sequence[FileSet], limits: Limits | None = None) -> None:
        self.sets = list(sets)
        self.limits = limits or Limits()
        self._summaries: dict[int, dict[str, Summary]] = {}
        self._samples: dict[tuple[int, str | None], np.ndarray] = {}

    @classmethod
    def of(cls, paths: Sequence[str], limits: Limits | None = None) -> Survey:
        """Look at files."""
        return cls(look(paths), limits)

    def summaries(self, entry: Entry, by_column: bool = False) -> dict[str, Summary]:
        """Return what the values of a dataset are like; see `values.summarise`."""
        key = id(entry)
        if key not in self._summaries or (by_column and len(self._summaries[key]) == 1):
            self._summaries[key] = summarise(entry, self.limits, by_column)
        return self._summaries[key]

    def summary(self, entry: Entry) -> Summary:
        """Return what the values of a dataset of numbers or texts are like."""
        return self.summaries(entry).get("", Summary())

    def sample(self, entry: Entry, field: str | None = None) -> np.ndarray:
        """Return some rows of a dataset of numbers, or of a field of records, as float64."""
        key = (id(entry), field)
        if key not in self._samples:
            self._samples[key] = sample(entry, SAMPLE_ROWS, field)
        return self._samples[key]
