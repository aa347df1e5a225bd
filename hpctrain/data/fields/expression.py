"""What a job says about a dataset: a path, and in brackets the columns of it, or the fields of its records.

    "images"           a whole dataset          "jets[:, 0:53]"      columns, a slice of each further axis
    "jets[:, -1]"      one column               "events[px, py]"     fields of a dataset of records
    "records_*"        all datasets of a name   "features"           a group: all datasets in it

Pure text and arithmetic: no file is looked at here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpctrain.errors import UserError

Axis = slice | int

_BRACKETS = re.compile(r"(?P<path>[^\[\]]+?)\s*\[(?P<inside>[^\[\]]*)\]\s*")
_AXIS = re.compile(r"([-+]?\d+)|([-+]?\d+)?\s*:\s*([-+]?\d+)?\s*(?::\s*([-+]?\d+)?)?")
_FORMS = '"name[:, 0:53]" (columns), "name[:, -1]" (one column), "name[px, py]" (fields of records)'


@dataclass(frozen=True)
class Expression:
    """A path, and what is taken of each dataset there.

    path       of a dataset or a group, or with `*` and `?` of several
    axes       a slice or an index for each of the first axes; none: everything
    names      fields of records, in this order; none where the dataset holds no records
    selection  the brackets as they are written, or nothing
    """

    path: str
    axes: tuple[Axis, ...] = ()
    names: tuple[str, ...] = ()
    selection: str = ""

    @property
    def is_pattern(self) -> bool:
        """Whether the path stands for all the datasets that fit it."""
        return "*" in self.path or "?" in self.path


def parse(text: str, key: str) -> Expression:
    """Return what a text means; `key` is the job's key that holds it ("data.input").  `UserError` for bad brackets."""
    match = _BRACKETS.fullmatch(text)
    if match is None:
        if "[" in text or "]" in text:
            raise _bad(text, key, "brackets that do not close, or more than one pair")
        return Expression(text)
    inside = [item.strip() for item in match["inside"].split(",")]
    axes = [_AXIS.fullmatch(item) for item in inside]
    if not all(inside):
        raise _bad(text, key, "nothing between two commas, or nothing at all")
    selection = f"[{', '.join(inside)}]"
    if all(axes):
        return Expression(match["path"], tuple(_axis(axis, text, key) for axis in axes), (), selection)
    if any(axes) or any(":" in item for item in inside):
        raise _bad(text, key, "slices and names mixed")
    return Expression(match["path"], (), tuple(inside), selection)


def _axis(match: re.Match[str], text: str, key: str) -> Axis:
    index, *bounds = match.groups()
    if index is not None:
        return int(index)
    lo, hi, step = (None if bound is None else int(bound) for bound in bounds)
    if step is not None and step < 1:
        raise _bad(text, key, f"a step of {step}")
    return slice(lo, hi, step)


def _bad(text: str, key: str, found: str) -> UserError:
    return UserError(f"{key} = {text!r}: what is in the brackets cannot be read", found=found, allowed=_FORMS)


def without_rows(expression: Expression, where: str) -> tuple[Axis, ...]:
    """Return the axes behind that of the rows.  `UserError` where rows are cut: which are used is said elsewhere."""
    axes = expression.axes
    if axes and axes[0] != slice(None):
        raise UserError(
            f"{where}: the first axis counts the examples and is not cut",
            found=expression.selection,
            allowed='":" for the first axis, as in [:, 0:53]',
            hint="data.split keeps rows apart; data.weight or data.mask leave rows out",
        )
    return axes[1:]


def settle(axes: tuple[Axis, ...], shape: tuple[int, ...], where: str) -> tuple[Axis, ...]:
    """Return a slice or index for every axis of a shape, from 0 on and within it; counted from the end where negative.

    `UserError` for too many axes, a bound outside the shape, or nothing left.
    """
    if len(axes) > len(shape):
        raise UserError(
            f"{where}: more axes are cut than an example has",
            found=f"{len(axes)} behind that of the rows",
            allowed=f"an example has the shape {shape}",
        )
    settled: list[Axis] = []
    for number, (axis, size) in enumerate(zip(axes, shape, strict=False)):
        bounds = [axis] if isinstance(axis, int) else [axis.start, axis.stop]
        lo, *hi = (None if bound is None else bound + size if bound < 0 else bound for bound in bounds)
        if isinstance(axis, int):
            good = 0 <= lo < size
            settled.append(lo)
        else:
            lo, stop = lo or 0, size if hi[0] is None else hi[0]
            good = 0 <= lo < stop <= size
            settled.append(slice(lo, stop, axis.step or 1))
        if not good:
            last = size - 1 if isinstance(axis, int) else size
            raise UserError(
                f"{where}: columns that are not there",
                found=f"{_words(axis)} of axis {number} of an example, which has {size}",
                allowed=f"0 to {last} (or counted from the end, -{size} to -1), and at least one",
            )
    return (*settled, *(slice(0, size, 1) for size in shape[len(axes) :]))


def cut_shape(settled: tuple[Axis, ...]) -> tuple[int, ...]:
    """Return the shape that is left of an example."""
    return tuple(len(range(axis.start, axis.stop, axis.step)) for axis in settled if isinstance(axis, slice))


def overlap(a: tuple[Axis, ...], b: tuple[Axis, ...]) -> bool:
    """Return whether two settled selections of one dataset have a number in common."""

    def places(axis: Axis) -> set[int]:
        return {axis} if isinstance(axis, int) else set(range(axis.start, axis.stop, axis.step))

    return all(places(one) & places(other) for one, other in zip(a, b, strict=True))


def _words(axis: Axis) -> str:
    if isinstance(axis, int):
        return str(axis)
    bounds = "" if axis.start is None else str(axis.start), "" if axis.stop is None else str(axis.stop)
    return ":".join(bounds) + (f":{axis.step}" if axis.step else "")
