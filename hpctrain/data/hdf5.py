"""`Hdf5Source`: examples of inputs and targets in HDF5 files, read in bounded blocks and checked.

Metadata (rows, shapes, types) are read and checked when the source is made.  Who reads which rows is not decided here;
what an example and what a field of it is, is said in `fields`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence

import numpy as np

from hpctrain.data.checked import Checked, blaming_changes
from hpctrain.data.fields.categories import Categories
from hpctrain.data.fields.examples import Windows, examples_of
from hpctrain.data.fields.field import Field
from hpctrain.data.fields.layout import Layout, Wishes
from hpctrain.data.fields.member import Member, Want
from hpctrain.data.fields.missing import Dropped, drop, replace_missing
from hpctrain.data.fields.opened import Opened
from hpctrain.data.format import Arrays
from hpctrain.data.mapping import Access
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.prepared import PreparedRows
from hpctrain.data.values import bad_weight, weight_error

_TARGET_BYTES = 32 << 20


class Hdf5Source(Access, PreparedRows, Checked):
    """The examples of several HDF5 files, one after another in the order given.

    files         paths (see `files.expand`)
    input         the inputs: numbers, read as float32, or text, read as the numbers of its categories; (rows,) counts
                  as (rows, 1).  A text or several, see `fields.expression`: "x", "jets[:, 0:53]", "events[px, py]",
                  "records_*", a group
    target        the targets, likewise: integers, booleans or text are class labels, (rows,) or (rows, 1), or one for
                  each position, (rows, ...); floating point numbers are real targets, (rows,) or (rows, ...)
    target_kind   "class" or "real" where the loss wants it so; "real" also takes integers
    weight        the weights: (rows,), or one for each position; finite numbers, 0 or more
    mask          of 0 and 1: (rows,) or one for each position.  Positions are those of the labels; for real targets,
                  their first axes or all of them
    ignore_label  the label of positions (or rows) that do not count
    channels_first  the inputs are stored (rows, channels, ...) and turned to (rows, ..., channels) as they are read; so
                  are real targets with channels at each place of the inputs, and weights of the targets' shape
    classes       class labels have to be below this; None: any
    bounds        real targets have to be within these, both included; None: any
    tokens        the inputs have to be whole numbers below this; None: any finite numbers
    examples      "rows": a row of the datasets is an example; "files": a file; "groups": a group that fits `group`
    combine       "columns", "stack" or "flat": how several datasets become one array, see `fields.field`
    one_hot       the last axis of the targets has a column for each class: read as class labels
    windows       the rows are series, and an example is a window of them
    missing       "error", "drop" (an example with NaN in it does not count), or a number that is put in its place
    categories    of text, as another source found them; None: this one's are found
    preparation   what is done to inputs and real targets as they are read; see `prepare`

    Weight, mask and `ignore_label` are multiplied.  Raises `UserError` for all that a user can have got wrong in the
    files; for values there is `check_values`.  One file at a time is kept open; `close` it when done, or `finish` after
    a pass, which also looks whether the files are what they were.
    """

    def __init__(
        self,
        files: list[str],
        input: str | Sequence[str],
        target: str | Sequence[str],
        target_kind: str | None = None,
        *,
        weight: str | None = None,
        mask: str | None = None,
        ignore_label: int | None = None,
        channels_first: bool = False,
        tokens: int | None = None,
        classes: int | None = None,
        bounds: tuple[float, float] | None = None,
        examples: str = "rows",
        group: str = "*",
        combine: str = "columns",
        one_hot: bool = False,
        windows: Windows | None = None,
        missing: str | float = "error",
        categories: Categories | None = None,
        preparation: Preparation | None = None,
    ) -> None:
        known = None if categories is None else {role: categories.get(role, {}) for role in ("input", "target")}
        named = {key: name for key, name in (("weight", weight), ("mask", mask)) if name is not None}
        self._layout = Layout(
            Field("data.input", input, combine, categories=known and known["input"]),
            Field("data.target", target, combine, one_hot, known and known["target"]),
            {key: Field(f"data.{key}", name) for key, name in named.items()},
            examples_of(examples, files, group, windows),
            Wishes(target_kind, ignore_label, channels_first, windows, missing == "drop"),
        )
        self._examples = self._layout.examples
        self._input, self._target, self._weights = self._layout.input, self._layout.target, self._layout.weights
        self.stored_format = self._layout.format
        self.prepare(preparation)
        self._tokens, self._ignore_label, self._missing = tokens, ignore_label, missing
        self._classes = classes if self.target_kind == "class" else None
        self._bounds = bounds if self.target_kind == "real" else None
        self._is_turned, self.windows = channels_first, windows
        self._dropped = Dropped(len(self))
        self._open: Opened | None = None

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def has_rows(self) -> bool:
        """Whether examples are rows, or windows of rows, and not whole files or groups."""
        return self._examples.has_rows

    @property
    def input(self) -> str:
        """What the job calls the inputs."""
        return self._input.name

    @property
    def target(self) -> str:
        """What the job calls the targets."""
        return self._target.name

    @property
    def input_parts(self) -> dict[str, tuple[int, int, tuple[int, ...] | None]]:
        """Names of the parts of the inputs' last axis, in order: lo, hi, and the own shape of one that is "flat"."""
        return self._input.parts

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """Names of the parts of the inputs' last axis, each with its lo and hi there, in order."""
        return dict(self._input.columns)

    @property
    def categories(self) -> Categories:
        """The categories of inputs and targets that are text; empty where there are none."""
        found = {"input": self._input.categories, "target": self._target.categories}
        return {role: names for role, names in found.items() if names}

    def dropped(self, lo: int, hi: int) -> np.ndarray:
        """Return which of the rows lo..hi were read and do not count, for something in them is missing; bool."""
        return self._dropped.of(lo, hi)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example's input."""
        return self.format.input_shape

    @property
    def target_kind(self) -> str:
        """Return "class" (int64 labels) or "real" (float32 numbers)."""
        return self.format.target_kind

    @property
    def target_width(self) -> int:
        """Numbers in one example's target; 1 for a single class label."""
        return self.format.target_width

    @property
    def files(self) -> list[str]:
        """The paths, in the order of the rows."""
        return self._examples.paths

    def fingerprint(self) -> dict[str, object]:
        """Return what must be the same when a run is resumed: rows, and shapes and types as in the files."""
        categories = json.dumps(self.categories, sort_keys=True).encode()
        return {
            "rows": len(self),
            "input_shape": list(self._input.stored_shape),
            "input_dtype": self._layout.types["data.input"],
            "target_shape": list(self._target.stored_shape),
            "target_dtype": self._layout.types["data.target"],
            **({"channels_first": True} if self._is_turned else {}),
            **({"categories": hashlib.sha256(categories).hexdigest()[:16]} if self.categories else {}),
            **{key: field.name for key, field in self._weights.items()},
        }

    def shared_numbers(self) -> str | None:
        """Return the name of a dataset of which some numbers are both target and input; None where that is not wrong.

        Real inputs may well be their own targets, all of them or one dataset of them: that is an autoencoder.
        """
        one, several = self._target, len(self._input.forms) > 1
        if self.windows is not None:  # what comes after a window is not in it
            may_be = min(self.windows.ahead) > 0
        else:
            may_be = self.target_kind == "real" and (not several or one.forms == self._input.forms)
        return None if may_be else one.shares_with(self._input)

    @property
    def target_rows_at_once(self) -> int:
        """How many rows' targets may be read at once, in bounded memory."""
        return max(1, _TARGET_BYTES // max(1, self._layout.target_bytes))

    @property
    def unwritten(self) -> list[str]:
        """Lines about datasets of which a part was never written, so that it reads as a fill value."""
        return self._layout.unwritten

    def locate(self, row: int) -> tuple[str, int]:
        """Return an example's file and its number in that file."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        file = self._examples.file_of(row)
        return self.files[file], row - self._examples.starts[file]

    def place(self, row: int, name: str | None = None, long: bool = True) -> str:
        """Return in words where an example stands; `name` is a dataset's, default: what the target is called.

        long  whether its number over all files is told too
        """
        file = self._examples.file_of(row)
        place = self._examples.place(name or self.target, file, row - self._examples.starts[file])
        counted = long and self._examples.has_rows and len(self.files) > 1
        return place + (f" (row {row} over all files)" if counted else "")

    def place_of(self, role: str, row: int) -> str:
        """Return in words where "inputs" or "targets" of an example stand."""
        return self.place(row, self.input if role == "inputs" else self.target)

    def blocks(self, lo: int, hi: int, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Cut the rows lo..hi into pieces of at most `max_bytes` (but at least one row).

        Pieces end where chunks end, so that a compressed chunk is decoded once, and where a file ends that has several.
        """
        starts, at = self._examples.starts, lo
        while at < hi:
            file = self._examples.file_of(at)
            cost, first = self._layout.cost_of(file), starts[file]
            stop = hi if self._examples.lazy else min(hi, starts[file + 1])
            most = max(1, max_bytes // max(cost.row_bytes, self.format.row_bytes))
            end = min(at + most, stop)
            if end < stop and cost.chunk_rows <= most:
                end -= (end - first) % cost.chunk_rows
            yield at, end
            at = end

    def reading_bytes(self, rows: int) -> int:
        """Return the memory that reading blocks of `rows` rows takes beside the arrays that are filled."""
        return self._layout.reading_bytes(rows) + self.preparing_bytes(rows)

    def read(self, lo: int, hi: int) -> Arrays:
        """Return inputs, targets and weights of the rows lo..hi, as `RowFormat.empty` describes them."""
        arrays = self.format.empty(hi - lo)
        self.read_into(lo, *arrays)
        return arrays

    @blaming_changes
    def read_into(
        self, lo: int, inputs: np.ndarray | None, targets: np.ndarray, weight: np.ndarray | None = None
    ) -> None:
        """Fill C-contiguous arrays as `read` makes them with the rows from `lo` on; inputs and weight may be None.

        What is missing is dealt with as `missing` says; without `weight` what would be dropped stays NaN.  Raises
        `UserError` for a weight or a mask with a value that it cannot have, and for a text that is no category.
        """
        rows = len(targets)
        roles = {"targets": (self._target, targets), "inputs": (self._input, inputs)}
        rooms = {role: self.room(role, out) for role, (_, out) in roles.items() if out is not None}
        wanted = [(roles[role][0], room) for role, room in rooms.items()]
        factors = self._factors(rows) if weight is not None and self.format.weight_words else {}
        wanted += [(self._weights[key], factor) for key, factor in factors.items()]
        self._fill_all(lo, rows, wanted)
        drops = self._missing == "drop" and weight is not None
        for role, room in rooms.items():
            self._replace_missing(room)
            self.fill_prepared(role, room, roles[role][1], drops)
        if weight is not None and self.format.weight_words:
            self._weigh(lo, targets, weight, factors)
        if drops:
            self._dropped.add(lo + drop(self.format, inputs, targets, weight))

    def _factors(self, rows: int) -> dict[str, np.ndarray]:
        """Return room for the weights and the mask of so many rows."""
        return {key: np.empty((rows, math.prod(field.shape)), np.float32) for key, field in self._weights.items()}

    @blaming_changes
    def stored_weight(self, lo: int, hi: int, inputs: np.ndarray | None = None) -> np.ndarray:
        """Return the weights of the rows lo..hi, float32 (rows, weight_words): 0 also where a row will be dropped.

        `inputs`: what `stored` says of them, where that is known already.
        """
        form, rows, drops = self.stored_format, hi - lo, self._missing == "drop"
        targets = np.empty((rows, form.target_width), np.int64 if form.target_kind == "class" else np.float64)
        factors, weight = self._factors(rows), np.empty((rows, form.weight_words), np.float32)
        wanted = [(self._weights[key], factor) for key, factor in factors.items()]
        if drops or self._ignore_label is not None:
            wanted.append((self._target, targets))
        self._fill_all(lo, rows, wanted)
        self._weigh(lo, targets, weight, factors)
        if drops:
            drop(form, None, targets, weight)
            inputs = self.stored("inputs", lo, hi) if inputs is None else inputs
            weight[np.isnan(inputs).reshape(rows, -1).any(axis=1)] = 0
        return weight

    @blaming_changes
    def stored(self, role: str, lo: int, hi: int) -> np.ndarray:
        """Return "inputs" or "targets" of the rows lo..hi before preparation: (hi - lo, *shape) of `stored_type`.

        Where `missing` is a number, it stands for what is missing.
        """
        is_input, form = role == "inputs", self.stored_format
        shape = form.input_shape if is_input else form.target_shape
        rows = np.empty((hi - lo, *shape), self.stored_type(role))
        self._fill_all(lo, hi - lo, [(self._input if is_input else self._target, rows)])
        self._replace_missing(rows)
        return rows

    def stored_type(self, role: str) -> type:
        """Return float32 where it holds the numbers of "inputs" or "targets" as they are meant, else float64."""
        return (
            np.float32 if self._layout.is_in_float32(self._input if role == "inputs" else self._target) else np.float64
        )

    def _replace_missing(self, values: np.ndarray) -> None:
        if not isinstance(self._missing, str) and values.dtype.kind == "f":
            replace_missing(values, self._missing)

    def _fill_all(self, lo: int, rows: int, wanted: Sequence[tuple[Field, np.ndarray]]) -> None:
        """Fill each field's array with its numbers of the rows from `lo` on."""
        for file, a, b in self._examples.spans(lo, lo + rows):
            at = self._examples.starts[file] + a - lo
            for field, out in wanted:
                self._fill(field, file, a, b, out[at : at + b - a])

    def _fill(self, field: Field, file: int, a: int, b: int, out: np.ndarray) -> None:
        """Fill `out` with a field of the examples a..b of a file."""
        layout, is_input = self._examples, field is self._input

        def check(found: Sequence[Member]) -> None:
            field.settle(found, lambda shape: layout.shaped(shape, is_input), opened.path)

        def fill(member: Member, part: np.ndarray, want: Want) -> None:
            layout.fill(member, file, a, b, part, is_input, want)

        opened = self._opened(file)
        field.fill(opened.members(field, layout.group(file, a), self._layout.members_of, check), out, fill)

    def _weigh(self, lo: int, targets: np.ndarray, weight: np.ndarray, factors: dict[str, np.ndarray]) -> None:
        weight[...] = 1
        for key, factor in factors.items():
            row = bad_weight(factor, key == "mask")
            if row >= 0:
                raise weight_error(factor[row], key == "mask", self.place(lo + row, self._weights[key].name))
            weight *= factor
        if self._ignore_label is not None:
            weight[targets.reshape(weight.shape) == self._ignore_label] = 0

    def _opened(self, file: int) -> Opened:
        path = self.files[file]
        if self._open is None or self._open.path != path:
            self.finish()
            self._open = Opened(path, self._layout.cost_of(file).cache_bytes, self._layout.stamps.get(path))
        return self._open

    def finish(self) -> None:
        """Close the file that is open; `UserError` where it has changed since the source was made."""
        if self._open is not None:
            opened, self._open = self._open, None
            opened.finish()

    def close(self) -> None:
        """Close the file that is open; reading opens it again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> Hdf5Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
