"""What to do where a value is missing (NaN, or a label that its file says is missing): `data.missing`."""

from __future__ import annotations

import numpy as np

from hpctrain.data.format import MISSING_LABEL, RowFormat
from hpctrain.data.values import counts


class Dropped:
    """Which examples do not count because something in them is missing: a bit for each, made with the first of them."""

    def __init__(self, examples: int) -> None:
        self._bytes = -(-examples // 8)
        self._bits: np.ndarray | None = None

    def add(self, examples: np.ndarray) -> None:
        """Note examples by their numbers; noted again, as in another epoch, they stay one."""
        if len(examples) == 0:
            return
        if self._bits is None:
            self._bits = np.zeros(self._bytes, np.uint8)
        np.bitwise_or.at(self._bits, examples >> 3, np.uint8(1) << (examples & 7).astype(np.uint8))

    def of(self, lo: int, hi: int) -> np.ndarray:
        """Return which of the examples lo..hi are known not to count so far, bool (hi - lo,)."""
        if self._bits is None:
            return np.zeros(hi - lo, bool)
        bits = np.unpackbits(self._bits[lo // 8 : -(-hi // 8)], bitorder="little")
        return bits[lo % 8 :][: hi - lo].astype(bool)


def replace_missing(values: np.ndarray, number: float) -> None:
    """Put a number in the place of every NaN."""
    np.copyto(values, number, where=np.isnan(values))


def drop(form: RowFormat, inputs: np.ndarray | None, targets: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Make what is missing not count, in place, and return the rows in which something was.

    Where an input is missing, the row's weights become 0, and so does the input: a network multiplies it, and NaN times
    0 is NaN.  Where a target that counts is missing, its weight becomes 0: the position's, where there are positions.
    """
    rows = len(targets)
    absent = targets == MISSING_LABEL if form.target_kind == "class" else np.isnan(targets)
    absent = absent.reshape(rows, -1) & counts(form, targets, weight)
    places = absent.reshape(rows, form.weight_words, -1).any(axis=2)
    weight[places] = 0
    bad = places.any(axis=1)
    if inputs is not None:
        missing = np.isnan(inputs)
        some = missing.reshape(rows, -1).any(axis=1)
        inputs[missing] = 0
        weight[some] = 0
        bad |= some
    return np.flatnonzero(bad)
