"""`Checked`: what `Hdf5Source` has to judge the values that it has read, and to say where a bad one stands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hpctrain.data.values import (
    bad_label,
    bad_value,
    beyond_error,
    counts,
    first_bad,
    first_bad_token,
    first_beyond,
    first_unknown_label,
    label_error,
    token_error,
    unprepared,
)


def blaming_changes(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a source's method: where it fails and a file has changed meanwhile, that is the error.

    Half of the old numbers and half of the new ones may look like anything: NaN, bad labels, damaged chunks.
    """

    @functools.wraps(method)
    def watched(self: Checked, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except Exception:
            self.check_files()
            raise

    return watched


class Checked:
    """Checks of rows that a source has read."""

    def check_files(self) -> None:
        """Raise a `UserError` where a file that is open has changed since the source was made."""
        if self._open is not None:
            self._open.stamp.check()

    @blaming_changes
    def check_values(self, inputs: np.ndarray, targets: np.ndarray, weight: np.ndarray, first_row: int) -> None:
        """Raise `UserError` for NaN or infinity, a negative label that counts or no token; names the first such row.

        `first_row` is the number, among all rows, of the arrays' first.
        """
        found = first_bad(self.format, inputs, targets, weight)
        if found:
            row, where = found
            field, values = (self._input, inputs) if where == "input" else (self._target, targets)
            if values is targets and self.target_kind == "class":
                labels, its_weight = targets[row : row + 1].reshape(1, -1), weight[row : row + 1]
                label = int(labels[counts(self.format, labels, its_weight)].min())
                raise bad_label(self.stored_label(first_row + row, label), self.place(first_row + row))
            last = field.shape[-1] if field.shape else 1
            if made_by := self.made_bad(f"{where}s", first_row + row):
                raise unprepared(self.place(first_row + row, field.name), made_by)
            numbers = self.stored(f"{where}s", first_row + row, first_row + row + 1) if self.chains else values[row]
            column = int(np.argmin(np.isfinite(numbers.reshape(-1)))) % last
            raise bad_value(values[row], self.place(first_row + row, field.name_at(column)))
        self.check_range(targets, weight, first_row)
        if self._tokens is not None and (row := first_bad_token(inputs, self._tokens)) >= 0:
            raise token_error(inputs[row], self._tokens, self.place(first_row + row, self.input))

    def check_range(self, targets: np.ndarray, weight: np.ndarray, first_row: int) -> None:
        """Raise `UserError` for a target that counts but is none that network and loss can take."""
        classes, bounds = self._classes, self._bounds
        if classes is not None and (row := first_unknown_label(self.format, targets, weight, classes)) >= 0:
            raise label_error(int(targets[row].max()), classes, self.place(first_row + row))
        if bounds is not None and (row := first_beyond(self.format, targets, weight, bounds)) >= 0:
            raise beyond_error(targets[row], bounds, self.place(first_row + row))

    def stored_label(self, row: int, label: int) -> int:
        """Return a label of a row as the file has it: read as int64, one above int64's largest becomes negative."""
        file = self._examples.file_of(row)
        group = self._examples.group(file, row - self._examples.starts[file])
        members = self._opened(file).members(self._target, group, self._layout.members_of, lambda found: None)
        if self._target.one_hot or any(member.scaling.fills for member in members):
            return label  # it may stand for something else than a label
        return label % 2**64 if any(member.stored_type.kind == "u" for member in members) else label
