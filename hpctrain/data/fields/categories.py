"""Text as categories: the sorted distinct values of the training files, numbered from 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.errors import UserError, nearest

Categories = dict[str, dict[str, list[str]]]
"""Role ("input", "target") -> name of a dataset -> its categories, in the order of their numbers."""

MOST = 1 << 16  # beyond this a text is no category but a name of its own for each example
_LISTED = 20  # in a message


def words(stored: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts of an array of HDF5 strings, and for each element which of them it is (int64, flat).

    Bytes that are no UTF-8 are written with backslashes; the padding of strings of fixed length is no part of them.
    """
    flat = stored.reshape(-1)
    if flat.dtype.kind != "S":
        flat = np.array([item if isinstance(item, bytes) else str(item).encode() for item in flat], object)
    distinct, which = np.unique(flat, return_inverse=True) if len(flat) else (flat, np.empty(0, np.int64))
    texts = [item.decode("utf-8", "backslashreplace") for item in distinct.tolist()]
    return [text.rstrip(" \0") for text in texts] if flat.dtype.kind == "S" else texts, which.reshape(-1)


class Gatherer:
    """Collects the distinct texts of a dataset, block by block."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._seen: set[str] = set()

    def add(self, stored: np.ndarray) -> None:
        """Take a block of strings; `UserError` where there are too many distinct ones."""
        self._seen.update(words(stored)[0])
        if len(self._seen) > MOST:
            raise UserError(
                f"{self._where} is text with too many distinct values for categories",
                found=f"more than {MOST:,}, such as {sorted(self._seen)[:3]}",
                allowed="a few values that come again and again",
                hint="turn it into numbers, or leave it out",
            )

    def sorted(self) -> list[str]:
        """Return the categories in order."""
        return sorted(self._seen)


def codes(stored: np.ndarray, categories: list[str]) -> tuple[np.ndarray, tuple[int, str] | None]:
    """Return the numbers of an array of HDF5 strings, int64 of the same shape, and the first that is no category.

    That one as its place along the first axis, and its text; -1 is its number.
    """
    texts, which = words(stored)
    number = {text: code for code, text in enumerate(categories)}
    table = np.array([number.get(text, -1) for text in texts], np.int64)
    found = table[which] if len(table) else np.empty(0, np.int64)
    if not (table < 0).any():
        return found.reshape(stored.shape), None
    first = int(np.argmax(found < 0))
    return found.reshape(stored.shape), (first * len(stored) // found.size, texts[which[first]])


@dataclass(frozen=True)
class TextInputs:
    """Which inputs of a network are text.

    categories  name of a dataset of text -> its categories
    parts       names of the parts of the inputs' last axis: lo, hi, ... (see `Hdf5Source.input_parts`)
    """

    categories: Mapping[str, list[str]]
    parts: Mapping[str, Sequence[Any]]

    def numbers(self, inputs: np.ndarray) -> np.ndarray:
        """Return inputs as a source reads them from files, (rows, ..., columns) float64.

        inputs  of text, or of objects where some columns are numbers; (rows,) counts as (rows, 1)

        `UserError` for a text that is no category, and for what is no number where numbers are wanted.
        """
        table = inputs[:, None] if inputs.ndim == 1 else inputs
        result = np.full(table.shape, np.nan)
        for name, (lo, hi, *_) in self.parts.items():
            part, known = table[..., lo:hi], self.categories.get(name)
            if known is not None:
                result[..., lo:hi], stranger = codes(part, known)
                if stranger is not None:
                    raise unknown(stranger[1], known, f"row {stranger[0]} of {name!r} in the inputs")
                continue
            try:
                result[..., lo:hi] = part.astype(np.float64)
            except (TypeError, ValueError):
                found = f"text in the columns {lo} to {hi - 1}"
                raise UserError(f"{name!r} takes numbers", found=found, allowed="numbers") from None
        return result


def unknown(text: str, categories: list[str], place: str) -> UserError:
    """Return the error for a text that the training files do not have."""
    listed = [repr(name) for name in categories[:_LISTED]]
    if len(categories) > _LISTED:
        listed.append(f"... ({len(categories):,} in all)")
    guess = nearest(text, categories)
    return UserError(
        f"a category that the training files do not have: {place}",
        found=repr(text),
        allowed=listed,
        hint=f"did you mean {guess!r}?" if guess else "add examples of it to the training files, or leave its rows out",
    )
