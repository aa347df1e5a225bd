"""`DataFacts`: what the data is like, for checking the job against it before any row is handed out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from hpctrain.data.fields.categories import Categories
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.sharding import Split
from hpctrain.data.splits import CodedSplit, RowSplit
from hpctrain.data.values import bad_label, counts
from hpctrain.errors import UserError

_FIRST_ROWS, _FIRST_EXAMPLES = 4096, 16  # looked at; the second where each has a file or a group of its own
_FEW = 1000  # examples of many that are files or groups
_FEW_CLASSES = 100  # whole numbers below this are taken for classes that somebody stored as real numbers
_BLOCK_LABELS = 1 << 18
_MOST_CLASSES = 1 << 16  # beyond this nobody wants to read which labels are missing


@dataclass(frozen=True)
class Label:
    """A class label and the place where it first stands: `row` is counted within the file, `place` says it in words."""

    value: int
    row: int
    file: str
    place: str

    def __str__(self) -> str:
        return f"{self.value} in {self.place}"


@dataclass(frozen=True)
class DataFacts:
    """Facts about all parts of a job's data.

    rows         part ("train", "validation", "test") -> number of rows; only parts that there are
    input_shape  of one example, as the network is given it
    stored_shape  of one example's input before preparation
    columns      names of the parts of its last axis, each with lo and hi
    target_kind  "class" or "real"
    target_shape of one example's target: () for one class label, else an axis or more
    weighted     whether examples or positions have weights of their own
    classes      largest label + 1; None for real targets
    label_min, label_max  the extreme labels and their first places; None for real targets
    missing      labels from 0 to the largest that no row has
    all_labels_seen  whether these are all the labels; else they are those of some examples
    fingerprint  for each source what a resumed run must find again
    input_parts  names of the parts of the inputs, see `Hdf5Source.input_parts`
    categories   of inputs and targets that are text, see `fields.categories`
    unwritten    lines about datasets of which a part was never written
    whole_targets  whether real targets are small whole numbers, such as classes have, as far as the first rows show
    """

    rows: dict[str, int]
    input_shape: tuple[int, ...]
    target_kind: str
    target_shape: tuple[int, ...]
    weighted: bool = False
    classes: int | None = None
    label_min: Label | None = None
    label_max: Label | None = None
    missing: list[int] = field(default_factory=list)
    all_labels_seen: bool = True
    fingerprint: dict[str, dict[str, object]] = field(default_factory=dict)
    input_parts: dict[str, tuple[int, int, tuple[int, ...] | None]] = field(default_factory=dict)
    categories: Categories = field(default_factory=dict)
    whole_targets: bool = False
    unwritten: list[str] = field(default_factory=list)
    stored_shape: tuple[int, ...] = ()
    columns: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def collect(
        cls,
        train: Hdf5Source,
        validation: Hdf5Source | None = None,
        test: Hdf5Source | None = None,
        split: RowSplit | None = None,
        few: bool = False,
    ) -> DataFacts:
        """Gather the facts: metadata, and for class targets one bounded pass over the labels.

        split  which rows of the training files become the validation and the test part; default: none
        few    where every example has a file or a group of its own, look at the labels of some only: enough where the
               network is known, and does not follow from the labels

        Raises `UserError` where sources do not fit together or a label is negative.
        """
        sources = {"train": train, "validation": validation, "test": test}
        sources = {part: source for part, source in sources.items() if source is not None}
        for part, source in sources.items():
            if source.stored_format != train.stored_format:
                raise UserError(
                    f"the {part} files do not fit the training files",
                    found=f"{source.stored_format} in {source.files[0]}, but {train.stored_format} in {train.files[0]}",
                    allowed="inputs of the same shape and targets of the same kind and width",
                )
        held = (split or Split(len(train), 0)).counts
        rows = {part: count for part, count in zip(("train", "validation", "test"), held, strict=True) if count}
        rows |= {part: len(source) for part, source in sources.items() if part != "train"}
        labels = _labels(list(sources.values()), few) if train.target_kind == "class" else {}
        prints = {part: source.fingerprint() for part, source in sources.items()}
        if isinstance(split, CodedSplit):
            prints["train"]["split"] = split.digest
        form = train.format
        weighted = form.weight_shape is not None
        return cls(
            rows,
            form.input_shape,
            form.target_kind,
            form.target_shape,
            weighted,
            fingerprint=prints,
            input_parts=train.input_parts,
            categories=train.categories,
            unwritten=[line for source in sources.values() for line in source.unwritten],
            whole_targets=train.target_kind == "real" and _are_whole(train),
            stored_shape=train.stored_format.input_shape,
            columns=train.columns,
            **labels,
        )

    @property
    def target_width(self) -> int:
        """Numbers in one target; 1 for a single class label."""
        return math.prod(self.target_shape)


def _are_whole(source: Hdf5Source) -> bool:
    """Return whether the first targets of a source are a few numbers such as 0.0, 1.0, 2.0."""
    rows = min(len(source), _FIRST_ROWS if source.has_rows else _FIRST_EXAMPLES)
    targets = source.stored("targets", 0, rows)
    source.finish()
    if source.format.target_width != 1:
        return False
    found = np.unique(targets[~np.isnan(targets)])  # sorted
    is_whole = len(found) > 0 and (found == np.floor(found)).all()
    return bool(is_whole and found[0] >= 0 and found[-1] < _FEW_CLASSES)


def _looked_at(source: Hdf5Source, few: bool) -> Iterator[tuple[int, int]]:
    """Yield the blocks lo..hi of examples whose labels are looked at."""
    if few and not source.has_rows and len(source) > _FEW:
        yield from ((at, at + 1) for at in np.linspace(0, len(source) - 1, _FEW).astype(int).tolist())
        return
    block = max(1, min(_BLOCK_LABELS // source.format.target_width, source.target_rows_at_once))
    for lo in range(0, len(source), block):
        yield lo, min(lo + block, len(source))


def _labels(sources: list[Hdf5Source], few: bool) -> dict[str, object]:
    """Return the extreme labels and the gaps, from one pass over the targets of all sources."""
    low: Label | None = None
    high: Label | None = None
    seen: set[int] = set()
    seen_all = True
    for source in sources:
        form = source.format
        blocks = list(_looked_at(source, few))
        seen_all &= sum(hi - lo for lo, hi in blocks) == len(source)
        _, targets, weight = replace(form, input_shape=(0,)).empty(max(hi - lo for lo, hi in blocks))
        for lo, hi in blocks:
            rows = hi - lo
            source.read_into(lo, None, targets[:rows], weight[:rows])
            at = np.flatnonzero(counts(form, targets[:rows], weight[:rows]))
            if not len(at):
                continue
            labels = targets[:rows].reshape(-1)[at]
            first = int(np.argmin(labels))
            if low is None or labels[first] < low.value:
                row = lo + int(at[first]) // form.target_width
                low = _label(source, int(labels[first]), row)
                if low.value < 0:
                    source.check_files()
                    raise bad_label(source.stored_label(row, low.value), low.place)
            first = int(np.argmax(labels))
            if high is None or labels[first] > high.value:
                high = _label(source, int(labels[first]), lo + int(at[first]) // form.target_width)
            if len(seen) <= _MOST_CLASSES:
                seen.update(np.unique(labels).tolist())
        source.finish()
    if low is None:
        raise UserError(
            "no label counts: every one has the weight 0",
            allowed="at least one label with a weight above 0",
            hint="check data.weight, data.mask and data.ignore_label",
        )
    classes = high.value + 1
    missing = sorted(set(range(classes)) - seen) if classes <= _MOST_CLASSES and seen_all else []
    return {
        "classes": classes,
        "label_min": low,
        "label_max": high,
        "missing": missing,
        "all_labels_seen": seen_all,
    }


def _label(source: Hdf5Source, value: int, row: int) -> Label:
    path, row_in_file = source.locate(row)
    return Label(value, row_in_file, path, source.place(row, long=False))
