"""The section `[data]` of a job: its keys, defaults and bounds.  `docs/job-file.md` tells the user the same."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from hpctrain.data.prepare import PREPARATIONS
from hpctrain.errors import UserError
from hpctrain.job.file import absolute, absolute_staged
from hpctrain.job.sections import registered_list
from hpctrain.memory import bytes_text, parse_bytes
from hpctrain.options import Bytes, Part


def _read_paths(value: Any) -> Any:
    paths = [value] if isinstance(value, (str, PathLike)) else value
    if not isinstance(paths, (list, tuple)) or not paths or not all(isinstance(p, (str, PathLike)) for p in paths):
        raise ValueError("must be a path, a glob or a list of them")
    if not all(fspath(path) for path in paths):
        raise ValueError("must not hold an empty path")
    found = tuple(absolute(fspath(path)) for path in paths)
    return found[0] if isinstance(value, (str, PathLike)) else found


def _read_folder(value: Any) -> Any:
    if not isinstance(value, (str, PathLike)) or not fspath(value):
        raise ValueError("must be the path of a folder")
    return absolute_staged(fspath(value))


def _read_names(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("must be the path of a dataset or a list of them")
    if not all(names):
        raise ValueError("must not hold an empty path")
    return value if isinstance(value, str) else tuple(names)


def _read_horizon(value: Any) -> Any:
    if isinstance(value, str):
        lo, colon, hi = value.partition(":")
        try:
            bounds = int(lo), int(hi if colon else lo)
        except ValueError:
            bounds = (1, 0)
        if bounds[0] > bounds[1]:
            raise ValueError('must be a number of rows, a list of them, or the first and the last as in "1:24"')
        return tuple(range(bounds[0], bounds[1] + 1))
    return tuple(value) if isinstance(value, list) else value


_BUFFER_BYTES = 64_000_000

Paths = Annotated[str | tuple[str, ...], BeforeValidator(_read_paths)]


Folder = Annotated[str, BeforeValidator(_read_folder)]
DatasetPath = Annotated[str, Field(min_length=1)]
DatasetPaths = Annotated[str | tuple[str, ...], BeforeValidator(_read_names)]
Rows = Annotated[int, Field(ge=0)]
Horizon = Annotated[Rows | tuple[Rows, ...], BeforeValidator(_read_horizon)]
Inputs = registered_list(PREPARATIONS, "data.prepare", key="name")
Targets = registered_list(PREPARATIONS, "data.prepare_target", key="name")


class SplitIndex(Part):
    """`data.split.index`: datasets with the numbers of the rows of each part, or true and false for each row."""

    train: DatasetPath
    validation: DatasetPath | None = None
    test: DatasetPath | None = None


class Split(Part):
    """`data.split`: what is kept of the rows for validation and for the test; the rest trains.

    Fractions of the rows, and `by` what they are drawn: at random, alike of each class, or whole files or groups of
    rows (`group`: a dataset that says each row's).  Or `index`: datasets of row numbers.  Windows are cut in time, or
    drawn by whole runs.  `by` is None until it is known: "random", but for windows that overlap.
    """

    validation: float = Field(0.0, ge=0, lt=1)
    test: float = Field(0.0, ge=0, lt=1)
    by: Literal["random", "stratified", "file", "group", "index", "time", "run"] | None = None
    group: DatasetPath | None = None
    index: SplitIndex | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_what_is_named(cls, values: Any) -> Any:
        """Take `group` or `index` for what the rows are split by where `by` is left out."""
        if isinstance(values, dict) and values.get("by") is None:
            named = next((key for key in ("group", "index") if values.get(key) is not None), None)
            return {**values, "by": named}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Split:
        if self.validation + self.test >= 1:
            raise ValueError("validation + test must be less than 1: the rest of the rows trains the network")
        for key in ("group", "index"):
            if (self.by == key) != (getattr(self, key) is not None):
                raise ValueError(f'by = "{key}" and {key} go together')
        if self.by == "index" and (self.validation or self.test):
            raise ValueError("by index, the datasets say what each part has: leave the fractions out")
        if self.by in ("stratified", "file", "group", "time", "run") and not (self.validation or self.test):
            raise ValueError("needs a fraction of the rows: validation = 0.1, test = 0.2 or both")
        return self

    @property
    def parts(self) -> tuple[str, ...]:
        """Which of "validation" and "test" take rows."""
        takes = self.index if self.by == "index" else self
        return tuple(part for part in ("validation", "test") if getattr(takes, part))


class Windows(Part):
    """`data.windows`: the rows are series, and an example is `length` of them and what comes `horizon` rows after."""

    length: int = Field(gt=0)
    horizon: Horizon = 1
    stride: int = Field(1, gt=0)
    run: DatasetPath | None = None

    @model_validator(mode="after")
    def _has_a_horizon(self) -> Windows:
        if self.horizon == ():
            raise ValueError("horizon must not be an empty list")
        return self


class DataSection(Part):
    """`[data]`: the HDF5 files, the datasets in them, and how rows are split, handed out and shuffled.

    Paths are absolute, but for "builtin:digits" and what begins with a variable; globs stay globs.
    """

    files: Paths
    exclude: DatasetPaths | None = None
    examples: Literal["rows", "files", "groups"] = "rows"
    group: DatasetPath = "*"
    input: DatasetPaths
    target: DatasetPaths
    combine: Literal["columns", "stack", "flat"] = "columns"
    target_encoding: Literal["one_hot"] | None = None
    windows: Windows | None = None
    missing: Literal["error", "drop"] | float = "error"
    weight: DatasetPath | None = None
    mask: DatasetPath | None = None
    ignore_label: int | None = None
    channels_first: bool = False
    split: Split | None = None
    validation_files: Paths | None = None
    test_files: Paths | None = None
    prepare: Inputs | None = None
    prepare_target: Targets | None = None
    distribute: Literal["auto", "scatter", "shared", "local", "mpio"] = "auto"
    staged: Folder | None = None
    memory: Bytes | Literal["auto"] = "auto"
    shuffle: Literal["global", "chunks", "local", "none"] = "global"
    shuffle_buffer: Bytes | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _one_source_of_a_part(self) -> DataSection:
        for part in ("validation", "test"):
            files = getattr(self, f"{part}_files")
            if files is not None and self.split is not None and part in self.split.parts:
                by_index = self.split.index is not None
                key, taken = (f"index.{part}", self.split.index) if by_index else (part, self.split)
                raise UserError(
                    f"data.split.{key} and data.{part}_files are both given",
                    found=f"data.split.{key} = {getattr(taken, part)!r}, data.{part}_files = {files!r}",
                    allowed="one of the two",
                    hint=f"keep data.{part}_files to use rows of their own, or the split to take rows of data.files",
                )
        return self

    @model_validator(mode="after")
    def _time_needs_windows(self) -> DataSection:
        if self.split is not None and self.split.by in ("time", "run") and self.windows is None:
            raise UserError(
                f'data.split.by = "{self.split.by}" is for data.windows, which are not given',
                allowed='by = "random", "stratified", "file", a group or an index',
                hint="set data.windows where the rows are series",
            )
        return self

    @model_validator(mode="after")
    def _examples_are_one_thing(self) -> DataSection:
        instead = {"examples": "rows", "channels_first": False}
        for key, value in instead.items():
            if self.windows is not None and getattr(self, key) != value:
                raise UserError(
                    f"data.windows and data.{key} do not go together",
                    found=f"data.{key} = {getattr(self, key)!r}",
                    allowed=f"with data.windows: data.{key} = {value!r}",
                )
        if self.combine == "flat" and self.channels_first:
            raise UserError(
                'data.combine = "flat" and data.channels_first do not go together',
                found="inputs that are flat have no channels",
                hint='turn a part with channels first by a layer {type = "permute", axes = [1, 2, 0]}',
            )
        if self.group != "*" and self.examples != "groups":
            raise UserError(
                "data.group is for examples that are groups",
                found=f"data.group = {self.group!r}, data.examples = {self.examples!r}",
                hint='set data.examples = "groups", or leave data.group out',
            )
        return self

    @property
    def memory_bytes(self) -> int | None:
        """The bytes that data may take on a rank; None: it depends on what is available."""
        return None if self.memory == "auto" else parse_bytes(self.memory)

    @property
    def buffer_bytes(self) -> int:
        """The bytes of rows that are mixed with each other under "chunks".

        "auto" is a matter of the job alone, since the order follows from it: neither of the machine nor of the ranks.
        """
        if self.shuffle_buffer != "auto":
            return parse_bytes(self.shuffle_buffer)
        if self.memory_bytes is None:
            return _BUFFER_BYTES
        # Two buffers, chunks, and what is under way between ranks have to fit; whole kB can be written into the job.
        return min(_BUFFER_BYTES, max(1, self.memory_bytes // 4000) * 1000)

    def with_order(self, shuffle: str) -> DataSection:
        """Return the section with the order that training takes, and all that the order follows from, filled in."""
        update = {"shuffle": shuffle}
        if shuffle == "chunks" and self.shuffle_buffer == "auto":
            update["shuffle_buffer"] = bytes_text(self.buffer_bytes)
        return self.model_copy(update=update)

    @property
    def has_validation(self) -> bool:
        """Whether there will be rows to validate on."""
        return self.validation_files is not None or (self.split is not None and "validation" in self.split.parts)

    @model_validator(mode="after")
    def _targets_turn_back(self) -> DataSection:
        for number, step in enumerate(self.prepare_target or ()):
            if not step.turns_back:
                able = [name for name in PREPARATIONS if PREPARATIONS.get(name).turns_back]
                raise UserError(
                    f"data.prepare_target.{number}: predictions could not be turned back to the target's own units",
                    found=step.name,
                    allowed=able,
                )
        return self
