"""Splits of rows into training, validation and test part that are no mere arithmetic: by class, group, file or index.

`sharding.Split` draws rows at random and needs no memory; a `CodedSplit` keeps the part of every row.  Both tell the
part of any row on any rank.  Where examples are windows of rows, a "row" of a split is a window; `series` has what is
special about them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import h5py
import numpy as np

from hpctrain.data.datasets import find_datasets, type_name
from hpctrain.data.fields.examples import Windows
from hpctrain.data.fields.member import Member
from hpctrain.data.files import open_file
from hpctrain.data.series import by_time, check_way, largest_remainders
from hpctrain.data.sharding import TEST, TRAIN, UNUSED, VALIDATION, Split, check_fractions, permutation
from hpctrain.errors import UserError

PARTS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
_BLOCK = 1 << 18  # rows whose labels or groups are looked at together
_HINTS = {
    "group": "there are too few groups, or they are too large",
    "file": "there are too few files",
    "run": "there are too few runs",
    "time": "the runs are too short to be cut: make data.windows.length or the horizon smaller",
}
_MIXED = -1  # in place of the group of a window whose rows have several
_GROUPS, _CLASSES = 11, 12  # streams of the seed's permutations


class Labelled(Protocol):
    """What is needed of a source of rows; see `Hdf5Source` and `Access`."""

    files: list[str]
    windows: Windows | None

    def __len__(self) -> int: ...

    def rows_of_files(self) -> list[int]:
        """Return the number of rows of each file, in order."""

    def stored_rows(self) -> list[int]:
        """Return how many rows the datasets of each file have."""

    def of_rows(self, file: int, values: np.ndarray, mixed: int) -> np.ndarray:
        """Return each example's value, given those of a file's rows; `mixed` where its rows have several."""

    def stretches(self) -> np.ndarray:
        """Return the number of windows of each run."""

    def labels(self, lo: int, hi: int) -> np.ndarray:
        """Return the class labels of the rows lo..hi."""


class CodedSplit:
    """A split that keeps the part of every row, in two bits each.

    codes  (rows,) uint8: TRAIN, VALIDATION, TEST, or UNUSED for a row in none of them
    """

    def __init__(self, codes: np.ndarray) -> None:
        self.rows = len(codes)
        padded = np.zeros(-(-self.rows // 4) * 4, np.uint8)
        padded[: self.rows] = codes
        quarters = padded.reshape(-1, 4)
        self._packed = quarters[:, 0] | quarters[:, 1] << 2 | quarters[:, 2] << 4 | quarters[:, 3] << 6
        train, validation, test, self.unused = np.bincount(codes, minlength=4).tolist()
        self.counts: tuple[int, int, int] = (train, validation, test)

    def part_of(self, lo: int, hi: int) -> np.ndarray:
        """Return the part of the rows lo..hi: uint8, TRAIN, VALIDATION, TEST or UNUSED."""
        if not 0 <= lo <= hi <= self.rows:
            raise ValueError(f"rows {lo}..{hi} are not within 0..{self.rows}")
        packed = self._packed[lo // 4 : -(-hi // 4)]
        codes = (packed[:, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & np.uint8(3)
        return codes.reshape(-1)[lo % 4 : lo % 4 + hi - lo]

    @property
    def digest(self) -> str:
        """A hash of every row's part: what a resumed run must find again."""
        return hashlib.sha256(self._packed.tobytes()).hexdigest()[:16]

    @property
    def nbytes(self) -> int:
        """Bytes that the split takes on every rank."""
        return self._packed.nbytes


RowSplit = Split | CodedSplit
"""The part of every row: `counts` of the three parts, `unused` rows, `part_of(lo, hi)`."""


def split_rows(
    source: Labelled,
    seed: int,
    validation: float = 0.0,
    test: float = 0.0,
    by: str = "random",
    group: str | None = None,
    index: Mapping[str, str] | None = None,
) -> RowSplit:
    """Return the split of a source's rows.

    validation, test  fractions of the rows
    by     "random"; "stratified": every class has these fractions, to a row; "group": rows with the same value of the
           dataset `group` stay together; "file": the rows of a file do; "index": as the datasets in `index` say; of
           windows also "run": those of a run stay together, and "time": see `series.by_time`
    index  part ("train", "validation", "test") -> path of a dataset of row numbers in its file, or of true and false

    A window has the group, or the part that an index says, of its rows, those of its target too; where they have
    several it is in no part.  Raises `UserError` for what cannot be split so, or where a part that was asked for gets
    no row.
    """
    if validation or test:
        check_way(source, by)
    if by == "random":
        return Split(len(source), seed, validation, test)
    check_fractions(validation, test)
    fractions = (validation, test) if by != "index" else (0.0, 0.0)
    makers = {
        "stratified": lambda: _by_class(source, seed, fractions),
        "group": lambda: _by_group(source, seed, fractions, group),
        "file": lambda: _by_stretch(np.array(source.rows_of_files(), np.int64), seed, fractions),
        "run": lambda: _by_stretch(source.stretches(), seed, fractions),
        "time": lambda: by_time(source, fractions),
        "index": lambda: _by_index(source, index or {}),
    }
    if by not in makers:
        raise UserError("unknown data.split.by", found=repr(by), allowed=["random", *makers])
    found = CodedSplit(makers[by]())
    asked = {name for name, fraction in zip(("validation", "test"), fractions, strict=True) if fraction > 0}
    asked |= {"train", *(index or {})} if by == "index" else {"train"}
    for name in PARTS:
        if name in asked and found.counts[PARTS[name]] == 0:
            raise UserError(
                f"data.split by {by} leaves no rows for {'training' if name == 'train' else f'the {name} part'}",
                found=", ".join(f"{part}: {n} rows" for part, n in zip(PARTS, found.counts, strict=True)),
                hint=_HINTS.get(by),
            )
    return found


def _by_class(source: Labelled, seed: int, fractions: tuple[float, float]) -> np.ndarray:
    sizes: dict[int, int] = {}
    for lo, hi in _blocks(len(source)):
        for label, count in zip(*np.unique(source.labels(lo, hi), return_counts=True), strict=True):
            sizes[int(label)] = sizes.get(int(label), 0) + int(count)
    classes = sorted(sizes)
    held = np.array([sizes[label] for label in classes])
    tests = largest_remainders(held, fractions[1], held)
    validations = largest_remainders(held, fractions[0], held - tests)
    codes = np.empty(len(source), np.uint8)
    seen = dict.fromkeys(classes, 0)
    place = {label: at for at, label in enumerate(classes)}
    for lo, hi in _blocks(len(source)):
        labels = source.labels(lo, hi)
        for label in np.unique(labels).tolist():
            rows, at, first = np.flatnonzero(labels == label), place[label], seen[label]
            seen[label] += len(rows)
            drawn = permutation(seed, _CLASSES, label, sizes[label], first, seen[label])
            part = np.full(len(rows), TRAIN, np.uint8)
            part[drawn < tests[at] + validations[at]] = VALIDATION
            part[drawn < tests[at]] = TEST
            codes[lo + rows] = part
    return codes


def _by_group(source: Labelled, seed: int, fractions: tuple[float, float], path: str | None) -> np.ndarray:
    if path is None:
        raise UserError('data.split.by = "group" needs data.split.group', allowed="the path of a dataset (rows,)")
    numbers: dict[object, int] = {}

    def groups(file: h5py.File, rows: int) -> np.ndarray:
        codes = np.empty(rows, np.int32)
        for lo, values in _dataset_blocks(file, rows, path, "data.split.group"):
            found, first, inverse = np.unique(values, return_index=True, return_inverse=True)
            for at in np.argsort(first, kind="stable"):  # numbered as they first come in the files
                numbers.setdefault(found[at].item() if hasattr(found[at], "item") else found[at], len(numbers))
            own = np.array([numbers[v.item() if hasattr(v, "item") else v] for v in found], np.int32)
            codes[lo : lo + len(values)] = own[inverse.reshape(-1)]
        return codes

    codes = _of_examples(source, groups, np.int32, _MIXED)
    sizes = np.bincount(codes[codes != _MIXED], minlength=len(numbers))
    parts = _whole_groups(sizes, seed, fractions)
    return np.append(parts, np.uint8(UNUSED))[codes]  # the last is that of _MIXED


def _of_examples(
    source: Labelled, of_file: Callable[[h5py.File, int], np.ndarray], dtype: type, mixed: int
) -> np.ndarray:
    """Return a number for each example, given those of a file's rows, which `of_file(file, rows)` returns."""
    codes, first = np.empty(len(source), dtype), 0
    counts = zip(source.files, source.stored_rows(), source.rows_of_files(), strict=True)
    for number, (path, rows, examples) in enumerate(counts):
        if examples:
            with open_file(path) as file:
                codes[first : first + examples] = source.of_rows(number, of_file(file, rows), mixed)
        first += examples
    return codes


def _by_stretch(sizes: np.ndarray, seed: int, fractions: tuple[float, float]) -> np.ndarray:
    """Return the parts of rows that lie together in stretches of these sizes, each of which goes into one part."""
    return np.repeat(_whole_groups(sizes, seed, fractions), sizes)


def _whole_groups(sizes: np.ndarray, seed: int, fractions: tuple[float, float]) -> np.ndarray:
    """Return each group's part (uint8).

    In the seed's order each group goes to the test part if that brings it nearer to its fraction of the rows, else
    likewise to the validation part, else to training.  A part that was asked for and got none, for all are too large,
    gets the smallest of those that would train.
    """
    parts = np.full(len(sizes), TRAIN, np.uint8)
    wanted = {TEST: fractions[1] * sizes.sum(), VALIDATION: fractions[0] * sizes.sum()}
    held = dict.fromkeys(wanted, 0)
    for at in permutation(seed, _GROUPS, 0, len(sizes), 0, len(sizes)):
        size = int(sizes[at])
        for part, rows in wanted.items():
            is_nearer = abs(held[part] + size - rows) <= abs(held[part] - rows)
            if size and rows and is_nearer:
                parts[at] = part
                held[part] += size
                break
    for part, rows in wanted.items():
        left = np.flatnonzero((parts == TRAIN) & (sizes > 0))
        if rows and not held[part] and left.size:
            parts[left[np.argmin(sizes[left])]] = part
    return parts


def _by_index(source: Labelled, index: Mapping[str, str]) -> np.ndarray:
    def parts(file: h5py.File, rows: int) -> np.ndarray:
        codes = np.full(rows, UNUSED, np.uint8)
        for part, name in index.items():
            _mark(codes, _numbers(file, part, name, rows), part, name, file.filename)
        return codes

    return _of_examples(source, parts, np.uint8, UNUSED)


def _mark(codes: np.ndarray, numbers: np.ndarray, part: str, name: str, path: str) -> None:
    """Write a part's code at its row numbers of one file."""
    where = f"data.split.index.{part} = {name!r} in {path}"
    outside = numbers[(numbers < 0) | (numbers >= len(codes))]
    if outside.size:
        raise UserError(
            f"{where} has a row number that is not in the file", found=outside[0], allowed=f"0 to {len(codes) - 1}"
        )
    taken = numbers[codes[numbers] != UNUSED]
    if taken.size:
        other = {code: other for other, code in PARTS.items()}[int(codes[taken[0]])]
        raise UserError(
            f"{where} has a row that is in the {other} part too",
            found=f"row {taken[0]}",
            allowed="every row in one part",
        )
    values, times = np.unique(numbers, return_counts=True)
    if (times > 1).any():
        raise UserError(f"{where} has a row twice", found=f"row {values[times > 1][0]}")
    codes[numbers] = PARTS[part]


def _numbers(file: h5py.File, part: str, name: str, rows: int) -> np.ndarray:
    """Return the row numbers (int64) that a dataset of a file holds or marks."""
    dataset = _find(file, name, f"data.split.index.{part}")
    if dataset.dtype.kind == "b" and dataset.shape == (rows,):
        return np.flatnonzero(dataset[()])
    if dataset.dtype.kind not in "iu" or len(dataset.shape) != 1:
        raise UserError(
            f"data.split.index.{part} = {name!r} holds no row numbers in {file.filename}",
            found=f"{dataset.shape} {type_name(dataset.dtype)}",
            allowed=f"whole numbers (n,), or true and false ({rows},)",
        )
    return dataset[()].astype(np.int64)


def _find(file: h5py.File, name: str, where: str) -> h5py.Dataset:
    found = file.get(name)
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        there = [key for key, item in file.items() if isinstance(item, h5py.Dataset)]
        raise UserError(
            f"{where} = {name!r}: there is no such dataset in {file.filename}", allowed=", ".join(there) or None
        )
    return found


def _dataset_blocks(file: h5py.File, rows: int, name: str, where: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first row, values) of what a file's dataset, or a field or column of it, says for each row."""
    found = find_datasets(file, name, where)
    members = [Member(each, True) for each in found if each.dataset.shape]
    if (
        len(members) != len(found)
        or [member.dataset.shape[0] for member in members] != [rows]
        or members[0].form.shape not in ((), (1,))
        or members[0].form.kind != "class"
    ):
        types = ", ".join(f"{each.dataset.shape} {type_name(each.dataset.dtype)}" for each in found)
        raise UserError(
            f"{where} = {name!r} does not say a group for each row, in {file.filename}",
            found=types,
            allowed=f"({rows},): whole numbers or text",
        )
    is_text = members[0].form.text
    for lo, hi in _blocks(rows):
        values = members[0].raw(lo, hi).reshape(-1)
        yield lo, values.astype(bytes) if is_text else values


def _blocks(rows: int) -> Iterator[tuple[int, int]]:
    yield from ((lo, min(lo + _BLOCK, rows)) for lo in range(0, rows, _BLOCK))
