"""`Layout`: what a job's fields and examples are in the files at hand, found by looking at their metadata."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import h5py
import numpy as np

from hpctrain.data.datasets import Found, find_datasets, type_name
from hpctrain.data.fields.examples import Examples, GroupExamples, Windows
from hpctrain.data.fields.field import Field
from hpctrain.data.fields.member import Member
from hpctrain.data.fields.opened import Opened, Stamp
from hpctrain.data.fields.roles import common_rows, target_form, weight_form
from hpctrain.data.format import RowFormat
from hpctrain.errors import UserError

_KINDS = {"class": "class labels", "real": "real targets"}
_CACHE_BYTES = (1 << 20, 96 << 20)  # least and most for one dataset's cache of decoded chunks


@dataclass(frozen=True)
class Cost:
    """What reading an example of a file takes."""

    chunk_rows: int = 1  # 1 where the inputs are contiguous
    row_bytes: int = 0  # in the file's own types, uncompressed
    converted_bytes: int = 0  # of a row of the dataset with most of them that is read into memory of its own
    target_bytes: int = 0  # of what is read where the inputs are not
    is_chunked: bool = False
    in_float32: frozenset[str] = frozenset()  # keys of the fields whose numbers, as they are meant, are float32

    @property
    def cache_bytes(self) -> int:
        """Size of HDF5's cache of decoded chunks: one row of chunks."""
        least, most = _CACHE_BYTES
        return min(max(least, self.chunk_rows * self.row_bytes), most)


@dataclass(frozen=True)
class Wishes:
    """What a job says of its examples beside their datasets; `Hdf5Source` explains it."""

    target_kind: str | None = None
    ignore_label: int | None = None
    channels_first: bool = False
    windows: Windows | None = None
    drops: bool = False


class Layout:
    """Fields and examples of some files.

    input, target, weights  the fields; `weights` by key ("weight", "mask")
    examples  where each example is
    format    of an example in memory
    types     key of a field -> the types that are stored, in words
    stamps    path -> what the file was when it was looked at
    unwritten  lines about datasets of which a part was never written

    Raises `UserError` for all that does not fit together.
    """

    def __init__(
        self, input: Field, target: Field, weights: dict[str, Field], examples: Examples, wishes: Wishes
    ) -> None:
        self.input, self.target, self.weights = input, target, weights
        self.fields = (input, target, *weights.values())
        self.examples = examples
        self.format = RowFormat((), "")
        self.types: dict[str, str] = {}
        self.stamps: dict[str, Stamp] = {}
        self.unwritten: list[str] = []
        self._wishes = wishes
        self._windows = wishes.windows
        self._costs: list[Cost] = []
        paths = examples.paths
        for number, path in enumerate(paths):
            # Examples that are whole files are looked at when they are read, all but the first.
            if examples.lazy and number and not (input.gathers or target.gathers):
                break
            opened = Opened(path, _CACHE_BYTES[0])
            try:
                self._add(opened)
            finally:
                opened.close()
            self.stamps[path] = opened.stamp
        if len(examples) == 0:
            self._refuse_nothing()

    def cost_of(self, file: int) -> Cost:
        """Return what reading a file takes."""
        return self._costs[0 if self.examples.lazy else file]

    def is_in_float32(self, field: Field) -> bool:
        """Return whether every number of a field is known to be a float32: all files were looked at."""
        costs = [cost for cost in self._costs if cost.row_bytes]
        return self.examples.has_rows and all(field.key in cost.in_float32 for cost in costs)

    @property
    def target_bytes(self) -> int:
        """Bytes of a row of all that is read beside the inputs."""
        return max(cost.target_bytes for cost in self._costs)

    def reading_bytes(self, rows: int) -> int:
        """Return the memory that reading blocks of `rows` examples takes beside the arrays that are filled."""
        caches = [cost.cache_bytes for cost in self._costs if cost.is_chunked]
        return max(caches, default=0) + rows * max(cost.converted_bytes for cost in self._costs)

    def _refuse_nothing(self) -> None:
        files = ", ".join(map(repr, self.examples.paths))
        if isinstance(self.examples, GroupExamples):
            raise UserError(
                "the data has no examples", found=f"no group fits data.group = {self.examples.pattern!r} in {files}"
            )
        if self._windows is not None:
            least = self._windows.reach
            raise UserError(
                "the data has no examples",
                found=f"no run of {least} rows (data.windows.length and the horizon) of {self.input.name!r} in {files}",
                hint="make data.windows.length or the horizon smaller",
            )
        raise UserError("the data has no rows", found=f"data.input = {self.input.name!r} has 0 rows in {files}")

    def _add(self, opened: Opened) -> None:
        """Look at a file: count its examples and check that they fit those before."""
        layout, file, path = self.examples, opened.file, opened.path
        cost = Cost()
        for number, group in enumerate(layout.begin(file)):
            root = file[group] if group else file
            found = {field.key: field.find(root, len(layout.paths) > 1) for field in self.fields}
            for datasets in found.values():
                opened.watch(datasets)
            rows = 0
            if layout.has_rows:
                rows = common_rows(found, path)
                layout.add_rows(rows, self._runs(file, rows, path))
                if rows == 0:
                    break
            members = {key: self.members_of(found[key]) for key in found}
            self._settle(members, path)
            for field in (self.input, self.target):
                field.gather(members[field.key], rows)
            if number == 0:
                cost = self._cost(members)
                self.unwritten += filter(None, (member.unwritten for key in members for member in members[key]))
            if not (self.input.gathers or self.target.gathers):
                break  # the other groups are looked at when they are read
        self._costs.append(cost)

    def members_of(self, found: Sequence[Found]) -> list[Member]:
        """Return what is taken of datasets that were found; `UserError` for one that cannot be taken."""
        has_rows = self.examples.has_rows
        for each in found:
            if each.dataset.shape is None:
                raise UserError(f"{each.where} is an empty dataspace in {each.dataset.file.filename}")
        return [Member(each, has_rows) for each in found]

    def _runs(self, file: h5py.File, rows: int, path: str) -> np.ndarray | None:
        """Return what tells the runs of a file's series apart (rows,)."""
        if self._windows is None or self._windows.run is None or rows == 0:
            return None
        name = self._windows.run
        found = find_datasets(file, name, "data.windows.run")[0]
        shape = found.dataset.shape
        member = Member(found, True) if shape and shape[0] == rows else None
        if member is None or member.form.shape not in ((), (1,)):
            raise UserError(
                f"data.windows.run = {name!r} does not fit the inputs in {path}",
                found=f"shape {shape}, and {rows} rows of the inputs",
                allowed=f"({rows},): one value a row, the same throughout a run",
            )
        return member.raw(0, rows).reshape(-1)

    def _settle(self, members: dict[str, list[Member]], path: str) -> None:
        """Take the form of the first file's examples; refuse others that are not like them."""
        for field in self.fields:
            is_input = field is self.input
            field.settle(members[field.key], lambda shape, i=is_input: self.examples.shaped(shape, i), path)
        kind = self._kind(members)
        if not self.format.target_kind:
            self._find_turned(members, kind, path)
            target_shape = target_form(self.target, members["data.target"], kind, path)
            rows = members["data.target"][0].dataset.shape[0] if self.examples.has_rows else None
            weight_shape = weight_form(self.weights, kind, target_shape, self._wishes.ignore_label, rows, path)
            if self._wishes.drops and weight_shape is None:
                weight_shape = ()
            self.format = RowFormat(self.input.shape or (1,), kind, target_shape, weight_shape)
            self.types = {
                field.key: ", ".join(dict.fromkeys(type_name(each.stored_type) for each in members[field.key]))
                for field in self.fields
            }
        elif kind != self.format.target_kind:
            raise UserError(
                "the data files do not fit together",
                found=f"{_KINDS[kind]} in {path}, but {_KINDS[self.format.target_kind]} before",
                allowed="the same shape and kind in all files",
            )

    def _kind(self, members: dict[str, list[Member]]) -> str:
        """Return the kind of targets: as the loss wants them, else by their type."""
        if self._wishes.target_kind is not None:
            return self._wishes.target_kind
        stored = {member.form.kind for member in members["data.target"]}
        return "class" if self.target.one_hot or stored == {"class"} else "real"

    def _find_turned(self, members: dict[str, list[Member]], kind: str, path: str) -> None:
        """Find out which fields have their channels in front."""
        if not self._wishes.channels_first:
            return
        shape, target_shape = self.input.shape, self.target.shape
        for member in members["data.input"]:
            if len(member.form.shape) < 2:
                raise UserError(
                    "data.channels_first is true, but the inputs have no axis of channels and others behind it",
                    found=f"{member.form.name!r} has shape {member.dataset.shape} in {path}",
                    allowed="(rows, channels, length), (rows, channels, height, width), ...",
                    hint="leave data.channels_first out: an example of one axis has no order of axes",
                )
        self.input.turn(path)
        if kind == "real" and len(target_shape) > 1 and target_shape[1:] == shape[1:]:
            for field in (self.target, *self.weights.values()):
                if field.shape == target_shape:
                    field.turn(path)

    def _cost(self, members: dict[str, list[Member]]) -> Cost:
        everything = [member for key in members for member in members[key]]
        converted = 0
        for field in self.fields:
            is_label = field is self.target and self.format.target_kind == "class"
            for member in members[field.key]:
                plain = member.is_plain(np.int64 if is_label else np.float32) and not field.turned
                values = 8 * math.prod(member.form.shape) if member.scaling.is_needed or member.form.text else 0
                converted = max(converted, 0 if plain and len(members[field.key]) == 1 else member.row_bytes + values)
        largest = max(members["data.input"], key=lambda member: member.row_bytes)
        chunks = largest.dataset.chunks
        return Cost(
            chunk_rows=max(chunks[0], 1) if chunks and self.examples.has_rows else 1,
            row_bytes=sum(member.row_bytes for member in everything),
            converted_bytes=converted,
            target_bytes=sum(member.row_bytes for key in members for member in members[key] if key != "data.input"),
            is_chunked=any(member.dataset.chunks for member in everything),
            in_float32=frozenset(key for key in members if all(member.is_in_float32 for member in members[key])),
        )
