"""Choosing the targets among the datasets, and saying what kind they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.tools.guessing.candidates import MANY_CLASSES, Candidate
from hpctrain.tools.guessing.names import TARGETS, fits, is_neither
from hpctrain.tools.inspecting.contents import kind_of

_SMALL = 64  # numbers of a target that nothing but its size tells
_MUCH_SMALLER = 8


@dataclass(frozen=True)
class Target:
    """The targets that were chosen.

    expression  as the job has it: a path, with columns or fields of records
    columns     how many of the last columns of a dataset they are, 0 for all of it
    field       the field of records that they are
    one_hot     whether each is a row of 0 and one 1
    ignore      the label that marks what has none
    why         the reason
    """

    candidate: Candidate
    expression: str
    kind: str
    shape: tuple[int, ...]
    why: str
    classes: int | None = None
    columns: int = 0
    field: str | None = None
    one_hot: bool = False
    as_real: bool = False
    ignore: int | None = None


def choose_target(candidates: Sequence[Candidate]) -> tuple[Target | None, list[Candidate]]:
    """Return the targets, None where nothing tells them, and other datasets that could be targets."""
    named = [one for one in candidates if one.sounds_like_target and (one.is_number or _names_classes(one))]
    if named:
        # Where several are named so: the name that says it most plainly, labels before numbers, the smallest.
        best = sorted(named, key=lambda one: (-one.sounds_like_target, one.classes() is None, one.size))
        return _whole(best[0], "its name says so"), best[1:]
    for one in candidates:
        if (count := one.one_hot_columns()) and count < one.shape[0]:
            why = f"the last {count} columns hold one 1 and else 0 in each row"
            return Target(one, f"{one.path}[:, -{count}:]", "class", (), why, count, count, None, True), []
    for one in candidates:
        if one.entry.kind == "record" and (target := _field(one)):
            return target, []
    inputs = [one for one in candidates if one.is_number and not is_neither(one.path)]
    singles = [one for one in candidates if one.shape in ((), (1,)) and not is_neither(one.path)]
    labels = [one for one in singles if one in inputs and one.is_whole and _has_few(one)]
    if len(labels) == 1 and len(inputs) > 1:
        return _whole(labels[0], "it is the one dataset of whole numbers with few values, one an example"), []
    texts = [one for one in singles if _names_classes(one) and 2 * one.classes() <= one.survey.summary(one.entry).read]
    if len(texts) == 1 and not labels and inputs:
        return _whole(texts[0], "it is the one dataset of text with few values, one an example"), []
    largest = max((one.size for one in inputs), default=0)
    small = [one for one in inputs if one.size <= min(_SMALL, largest // _MUCH_SMALLER) and not _is_count(one)]
    if small:
        small.sort(key=lambda one: one.size)
        return _whole(small[0], "it is small beside the others, whose names say nothing"), small[1:]
    return None, []


def _names_classes(one: Candidate) -> bool:
    """Return whether a dataset holds texts of which few are different."""
    return one.entry.kind == "text" and one.entry.readable and one.classes() is not None


def _is_count(one: Candidate) -> bool:
    return one.shape in ((), (1,)) and one.counts_rows()


def _has_few(one: Candidate) -> bool:
    """Return whether whole numbers have few values, and each of them often."""
    summary = one.survey.summary(one.entry)
    return summary.classes is not None and 2 <= len(summary.classes) <= max(2, summary.read // 5)


def _whole(one: Candidate, why: str) -> Target:
    """Return all of a dataset as targets."""
    summary = one.survey.summary(one.entry)
    if one.entry.kind == "text":
        return Target(one, one.path, "class", one.shape, f"{why}; its texts are the classes", one.classes())
    if one.shape and one.one_hot_columns() == one.shape[-1]:
        return Target(one, one.path, "class", (), f"{why}; its rows are one-hot", one.shape[-1], one_hot=True)
    shape = () if one.shape == (1,) else one.shape
    if one.is_whole and (count := one.classes()) is not None:
        low = summary.minimum
        return Target(one, one.path, "class", shape, why, count, ignore=-1 if low == -1 else None)
    if summary.whole and summary.classes and summary.minimum >= 0 and summary.maximum < MANY_CLASSES and not shape:
        why += "; small whole numbers: stored as integers, they would be classes"
    return Target(one, one.path, "real", shape or (1,), why, as_real=one.is_whole)


def _field(one: Candidate) -> Target | None:
    """Return a field of records as targets."""
    kinds = {name: kind_of(one.entry.dtype[name].base) for name in one.entry.dtype.names}
    names = [name for name, kind in kinds.items() if kind in ("number", "text") and fits(name, TARGETS)]
    if not names or list(kinds.values()).count("number") <= (kinds[names[0]] == "number"):
        return None
    name = max(names, key=lambda name: fits(name, TARGETS))
    dtype = one.entry.dtype[name]
    summary = one.survey.summaries(one.entry)[f".{name}"]
    expression, why = f"{one.path}[{name}]", f"the name of the field {name!r} says so"
    if kinds[name] == "text":
        count = max(summary.distinct or 0, 2)
        return Target(one, expression, "class", (), f"{why}; its texts are the classes", count, 0, name)
    if dtype.base.kind in "biu" and summary.classes is not None and summary.minimum >= -1:
        low = -1 if summary.minimum == -1 else None
        count = int(summary.maximum) + 1
        return Target(one, expression, "class", dtype.shape, why, count, 0, name, ignore=low)
    real = dtype.shape or (1,)
    return Target(one, expression, "real", real, why, None, 0, name, as_real=dtype.base.kind in "biu")
