"""`Field`: one role of the data (input, target, weight, mask) and how its datasets become one array of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import h5py
import numpy as np

from hpctrain.data.datasets import Found, find_datasets
from hpctrain.data.fields.categories import Gatherer
from hpctrain.data.fields.expression import overlap
from hpctrain.data.fields.member import Form, Member, Want
from hpctrain.data.format import NO_ONE_HOT, channels_last
from hpctrain.errors import UserError

Shaped = Callable[[tuple[int, ...]], tuple[int, ...]]
"""From the shape of a row of a dataset to that of an example."""

Fill = Callable[[Member, np.ndarray, Want], None]
"""Fills an array (n, *shape) with a member's values of some examples."""


class Field:
    """The datasets that a job names for one role.

    key          the job's key ("data.input"), for messages
    texts        what it says, see `expression`
    combine      how several datasets become one array: "columns", one behind the other along the last axis; "stack",
                 equal shapes on a new last axis; "flat", any shapes, all their numbers one behind the other
    one_hot      whether the last axis stands for a class label
    turned       whether an example is stored channels first; set when it is known
    forms        what the datasets are like, the same in all files; empty before the first file with rows
    shape        of one example in memory, before `one_hot`
    ranges       for each dataset its part lo..hi of the last axis
    shapes       of an example of each dataset, where they are combined "flat"
    categories   name of a dataset of text -> its categories
    """

    def __init__(
        self,
        key: str,
        texts: str | Sequence[str],
        combine: str = "columns",
        one_hot: bool = False,
        categories: dict[str, list[str]] | None = None,
    ) -> None:
        self.key = key
        self.texts = (texts,) if isinstance(texts, str) else tuple(texts)
        self.one_hot = one_hot
        self.turned = False
        self.forms: tuple[Form, ...] = ()
        self.shape: tuple[int, ...] = ()
        self.ranges: list[tuple[int, int]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.columns: dict[str, tuple[int, int]] = {}
        self.categories = dict(categories or {})
        self._combine = combine
        self._gatherers: dict[str, Gatherer] | None = None if categories is not None else {}

    @property
    def name(self) -> str:
        """What the job says."""
        return ", ".join(self.texts)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of an example as it is stored: channels first where it is turned."""
        return (*self.shape[-1:], *self.shape[:-1]) if self.turned else self.shape

    @property
    def gathers(self) -> bool:
        """Whether there is text whose categories are not known yet."""
        return self._gatherers is not None and any(form.text for form in self.forms)

    @property
    def kind(self) -> str:
        """Return "class" where all that is stored are whole numbers or text, else "real"."""
        return "class" if all(form.kind == "class" for form in self.forms) else "real"

    def find(self, root: h5py.Group, several: bool = False) -> list[Found]:
        """Return the datasets of the field in a file or a group; `several` as in `find_datasets`."""
        return [found for text in self.texts for found in find_datasets(root, text, self.key, several)]

    def settle(self, members: Sequence[Member], shaped: Shaped, path: str) -> None:
        """Take the form of the first members that are seen; or raise a `UserError` where others do not fit them."""
        forms = tuple(member.form for member in members)
        if not self.forms:
            self.forms = forms
            self._combined([shaped(form.shape) for form in forms], path)
            self._name_columns([column for member in members for column in member.columns])
        elif forms != self.forms:
            mine, theirs = ("; ".join(map(str, some)) for some in (forms, self.forms))
            raise UserError(
                "the data files do not fit together",
                found=f"{self.key}: {mine} in {path}, but {theirs} before",
                allowed="the same datasets, of the same shape and kind, in all files",
            )

    def turn(self, path: str) -> None:
        """Note that examples, which have two axes or more, are stored channels first."""
        self.turned = True
        self._combined([channels_last(form.shape) for form in self.forms], path)

    def _combined(self, shapes: list[tuple[int, ...]], path: str) -> None:
        """Set shape and ranges for datasets with examples of these shapes."""
        if self._combine == "flat":
            self._cut([math.prod(shape) for shape in shapes])
            self.shape = (self.ranges[-1][1],)
            self.shapes = shapes
            return
        stack = self._combine == "stack" and len(shapes) > 1
        if stack and len(set(shapes)) == 1:
            self.shape = (*shapes[0], len(shapes))
            self.ranges = [(i, i + 1) for i in range(len(shapes))]
            return
        if len(shapes) == 1:
            widths = [shapes[0][-1] if shapes[0] else 1]
            self.shape = shapes[0]
        elif not stack and all(len(shape) < 2 for shape in shapes):
            widths = [math.prod(shape) for shape in shapes]
            self.shape = (sum(widths),)
        elif not stack and all(shapes) and len({shape[:-1] for shape in shapes}) == 1:
            widths = [shape[-1] for shape in shapes]
            self.shape = (*shapes[0][:-1], sum(widths))
        else:
            listed = ", ".join(f"{form.name} {shape}" for form, shape in zip(self.forms, shapes, strict=True))
            raise UserError(
                f"{self.key} = {self.name!r}: datasets of these shapes cannot be {'stacked' if stack else 'columns'}"
                f" of one array, in {path}",
                found=f"examples of {listed}",
                allowed="equal shapes" if stack else "one axis or none; or shapes equal but for the last axis",
                hint="leave out what does not fit"
                if stack or self.key != "data.input"
                else 'data.combine = "flat" takes any shapes; the layer "columns" gives each dataset a branch',
            )
        self._cut(widths)

    def _cut(self, widths: Sequence[int]) -> None:
        """Set `ranges`: the members' parts of the last axis, one behind the other."""
        ends = np.cumsum([0, *widths]).tolist()
        self.ranges = list(zip(ends, ends[1:], strict=False))

    def _name_columns(self, names: list[tuple[str, int]]) -> None:
        """Set `columns`, the names of the parts of the last axis."""
        if len(names) == len(self.ranges):
            spans = self.ranges
        else:  # records, whose fields have names of their own
            ends = np.cumsum([0, *(width for _, width in names)]).tolist()
            spans = list(zip(ends, ends[1:], strict=False))
        self.columns = {name: span for (name, _), span in zip(names, spans, strict=True)}

    @property
    def parts(self) -> dict[str, tuple[int, int, tuple[int, ...] | None]]:
        """Names of the parts of the last axis, each with its lo and hi there, and where it is "flat" its own shape."""
        flat = len(self.shapes) == len(self.columns)
        shapes = self.shapes if flat else [None] * len(self.columns)
        return {name: (*span, shape) for (name, span), shape in zip(self.columns.items(), shapes, strict=True)}

    def name_at(self, column: int) -> str:
        """Return the name of the dataset that fills a place of the last axis."""
        at = next((i for i, (lo, hi) in enumerate(self.ranges) if lo <= column < hi), 0)
        return self.forms[at].name

    def shares_with(self, other: Field) -> str | None:
        """Return the name of a dataset of which both fields take some number; None where there is none."""
        for one in self.forms:
            for two in other.forms:
                same = one.path == two.path and overlap(one.axes, two.axes)
                if same and (not one.names or set(one.names) & set(two.names)):
                    return one.name
        return None

    def gather(self, members: Sequence[Member], rows: int, block: int = 1 << 16) -> None:
        """Collect the categories of the members that are text, unless they were given; `rows` of each, 0: no rows."""
        if not self.gathers:
            return
        for form, member in zip(self.forms, members, strict=True):
            if not form.text:
                continue
            gatherer = self._gatherers.setdefault(form.name, Gatherer(member.where))
            for lo in range(0, max(rows, 1), block):
                gatherer.add(member.raw(lo, min(lo + block, rows)))
            self.categories[form.name] = gatherer.sorted()

    def fill(self, members: Sequence[Member], out: np.ndarray, fill: Fill) -> None:
        """Fill a C-contiguous array with some examples: (n, ...) numbers, or labels where it is of int64.

        `fill` reads one member's part of them.
        """
        if self.one_hot:
            values = np.empty((len(out), *self.shape), np.float32)
            self._fill(members, values, fill, False)
            out[...] = _hot(values).reshape(out.shape)
        else:
            self._fill(members, out.reshape(len(out), *self.shape), fill, out.dtype == np.int64)

    def _fill(self, members: Sequence[Member], out: np.ndarray, fill: Fill, labels: bool) -> None:
        for form, member, (lo, hi) in zip(self.forms, members, self.ranges, strict=True):
            stacked = self._combine == "stack"
            part = out if len(members) == 1 else out[..., lo] if stacked else out[..., lo:hi]
            part = np.moveaxis(part, -1, 1) if self.turned else part
            fill(member, part, Want(labels, self.categories.get(form.name)))


def _hot(values: np.ndarray) -> np.ndarray:
    """Return the places of the ones along the last axis, int64; `NO_ONE_HOT` where there is anything but one 1."""
    labels = values.argmax(axis=-1)
    good = (values.sum(axis=-1) == 1) & ((values == 0) | (values == 1)).all(axis=-1)
    return np.where(good, labels, NO_ONE_HOT)
