"""`PreparedRows`: what a source of examples knows of the preparation of its inputs and targets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np

from hpctrain.data.fields.examples import Windows
from hpctrain.data.format import RowFormat
from hpctrain.data.prepare.chain import Chain
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.errors import UserError


class PreparedRows(ABC):
    """A source whose examples can be had as they are stored, or prepared.

    format         of the examples as they are read
    stored_format  of the examples before preparation
    windows        what cuts examples out of series of rows; None: nothing does
    chains         role ("inputs", "targets") -> what is done to it; none: nothing
    """

    format: RowFormat
    stored_format: RowFormat
    windows: Windows | None
    chains: dict[str, Chain]

    def prepare(self, preparation: Preparation | None) -> None:
        """Read prepared examples from now on (None: as they are stored), in the `format` that preparation gives them.

        Steps may learn later, but must have learned when examples are read.
        """
        self.chains = dict(preparation.chains()) if preparation else {}
        inputs = self.chains.get("inputs")
        shape = inputs.out_shape if inputs else self.stored_format.input_shape
        self.format = replace(self.stored_format, input_shape=shape)

    @abstractmethod
    def stored(self, role: str, lo: int, hi: int) -> np.ndarray:
        """Return "inputs" or "targets" of the rows lo..hi before preparation: (hi - lo, *shape) of `stored_type`."""

    @abstractmethod
    def stored_weight(self, lo: int, hi: int, inputs: np.ndarray | None = None) -> np.ndarray:
        """Return the weights of the rows lo..hi, float32 (rows, weight_words): 0 also where a row will be dropped."""

    def counting(self, role: str, lo: int, hi: int, stored: np.ndarray) -> np.ndarray | None:
        """Return which of the stored numbers of the rows lo..hi count, bool (rows, n); None: all do.

        An example's numbers are n equal parts, one behind the other: one, or as many as it has positions.  A position
        of the inputs counts where one of the targets there does; where these have other axes, those of an example count
        together.
        """
        shape = self.stored_format.weight_shape
        if shape is None:
            return None
        counts = self.stored_weight(lo, hi, stored if role == "inputs" else None) != 0
        if role == "targets":
            return counts
        shared = 0 if self.windows is not None else _common(shape, self.stored_format.input_shape)
        return counts.reshape(hi - lo, math.prod(shape[:shared]), -1).any(axis=2)

    @abstractmethod
    def stored_type(self, role: str) -> type:
        """Return float32 where it holds the numbers of "inputs" or "targets" as they are meant, else float64."""

    @abstractmethod
    def read_into(
        self, lo: int, inputs: np.ndarray | None, targets: np.ndarray, weight: np.ndarray | None = None
    ) -> None:
        """Fill arrays with the rows from `lo` on."""

    def room(self, role: str, out: np.ndarray) -> np.ndarray:
        """Return the array to read a role's stored numbers into, `out` itself where they are not prepared."""
        if role not in self.chains:
            return out
        return np.empty((len(out), *self.chains[role].shape), self.stored_type(role))

    def fill_prepared(self, role: str, room: np.ndarray, out: np.ndarray, drops: bool) -> None:
        """Fill `out` with what preparation makes of the numbers in `room`; see there.

        `drops`: what is missing in the file will be dropped, and stays NaN; what a step has no number for is infinite,
        so that it is told, not dropped.
        """
        if role not in self.chains:
            return
        self.chains[role].apply(room, out)
        if drops:
            rows, stored = out.reshape(len(out), -1), room.reshape(len(out), -1)
            rows[np.isnan(rows) & ~np.isnan(stored).any(axis=1, keepdims=True)] = np.inf

    def preparing_bytes(self, rows: int) -> int:
        """Return the memory that preparing so many rows takes beside the arrays that are filled."""
        sizes = {role: np.dtype(self.stored_type(role)).itemsize for role in self.chains}
        rooms = sum(size * rows * self.chains[role].size for role, size in sizes.items())
        return rooms + max((chain.passing_bytes for chain in self.chains.values()), default=0)

    def made_bad(self, role: str, row: int) -> str | None:
        """Return which step of a preparation made a bad value of a row's; None where it is so in the file."""
        chain = self.chains.get(role)
        return chain.explain(self.stored(role, row, row + 1)[0]) if chain else None

    def labels(self, lo: int, hi: int) -> np.ndarray:
        """Return the class labels of the rows lo..hi, int64 (hi - lo,).  `UserError` where rows have not one each."""
        if self.stored_format.target_kind != "class" or self.stored_format.target_shape:
            raise UserError(
                "the rows have no class label each, as a stratified split needs",
                found=str(self.stored_format),
                allowed="class labels, one a row",
            )
        labels = np.empty(hi - lo, np.int64)
        self.read_into(lo, None, labels)
        return labels


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many first axes two shapes have in common."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    return [*same, False].index(False)
