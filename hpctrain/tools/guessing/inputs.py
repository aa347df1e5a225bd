"""Choosing the inputs among the datasets that are left when the targets are chosen, and writing them as a job does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from hpctrain.tools.guessing.candidates import Candidate
from hpctrain.tools.guessing.names import INPUTS, fits, is_neither, is_target, words
from hpctrain.tools.guessing.pieces import Piece, alive_columns, can_be_named
from hpctrain.tools.guessing.roles import Roles
from hpctrain.tools.guessing.target import Target


@dataclass(frozen=True)
class Inputs:
    """The inputs that were chosen: what the job has for them, the shape of an example, why."""

    members: tuple[Piece, ...]
    expression: str | list[str]
    shape: tuple[int, ...]
    why: str
    combine: str | None = None


def choose_inputs(
    candidates: Sequence[Candidate], target: Target, roles: Roles
) -> tuple[Inputs | None, list[Candidate]]:
    """Return the inputs, None where there are none, and other datasets that could be inputs.

    Columns and fields that hold no number at all are noted in `roles.left_out`.
    """
    own = target.candidate
    others = [one for one in candidates if one is not own and (one.is_input or one.entry.kind == "record")]
    others = [one for one in others if one.size and not roles.takes(one)]
    if target.columns:
        left = own.shape[0] - target.columns
        columns = _alive(own, range(left), roles)
        if not columns:
            return None, others
        piece = Piece(own, columns, left - len(columns))
        why = f"the other {piece.size} columns of that dataset"
        return Inputs((piece,), _expression((piece,), candidates), piece.shape, why), others
    if target.field and (names := _fields(own, target, roles)):
        piece = Piece(own, fields=names)
        inputs = Inputs((piece,), piece.texts[0], piece.shape, "the other fields of its records that hold numbers")
        return inputs, others
    possible = [piece for one in others if (piece := _piece(one, target, roles)) is not None]
    if not possible:
        return None, []
    best = max(possible, key=lambda one: (len(one.shape) > 1, fits(one.path, INPUTS) >= 2, one.size))
    tables = tuple(piece for piece in possible if len(piece.shape) <= 1)
    combine = None
    if (stacked := _with_mask(best, candidates)) is not None:
        members, shape, combine = stacked, (*best.shape, len(stacked)), "stack"
        why = "values and mask of each place, side by side"
    elif len(best.shape) > 1 and tables and _is_of_an_example(target):
        members, combine = (best, *tables), "flat"
        shape, why = (sum(piece.size for piece in members),), "numbers of different shapes, each with a branch"
    elif len(best.shape) > 1:
        members, shape, why = (best,), best.shape, "the largest dataset with an example for each target"
    else:
        members, shape = tables, (sum(piece.size for piece in tables),)
        why = "all of these are numbers, side by side" if len(tables) > 1 else "numbers with an example for each target"
    owners = [piece.owner for piece in members]
    return Inputs(members, _expression(members, candidates, combine == "flat"), shape, why, combine), [
        piece.owner for piece in possible if piece.owner not in owners
    ]


def _is_of_an_example(target: Target) -> bool:
    """Return whether there is one target an example, and none for each place of it."""
    return target.shape == () if target.kind == "class" else len(target.shape) == 1


def _piece(one: Candidate, target: Target, roles: Roles) -> Piece | None:
    """Return what of a dataset can be input, None where nothing can."""
    if one.entry.kind == "record":
        names = _fields(one, target, roles)
        return Piece(one, fields=names) if names else None
    if len(one.shape) > 1:
        return Piece(one)
    columns = _alive(one, range(one.size), roles)
    if not columns:
        return None
    empty = one.size - len(columns)
    return Piece(one, columns, empty) if empty else Piece(one)


def _alive(one: Candidate, columns: Sequence[int], roles: Roles) -> tuple[int, ...]:
    """Return the columns that hold numbers; notes the others."""
    found = alive_columns(one, columns)
    for column in sorted(set(columns) - set(found)):
        name = one.path if one.shape in ((), (1,)) else f"{one.path}[:, {column}]"
        roles.left_out[name] = "missing (NaN) in every example"
    return found


def _fields(one: Candidate, target: Target, roles: Roles) -> tuple[str, ...]:
    """Return the fields of records that can be inputs: numbers whose names do not say that they are something else."""
    names = []
    for name in one.entry.dtype.names:
        if one.entry.dtype[name].base.kind not in "biuf" or roles.takes(one, name) or not can_be_named(name):
            continue
        # More fields that sound like targets would tell the answer.
        if is_target(name) or (target.field and fits(name, frozenset(words(target.field)))):
            continue
        summary = one.survey.summaries(one.entry)[f".{name}"]
        if summary.read and summary.missing == summary.read:
            roles.left_out[f"{one.path}[{name}]"] = "missing (NaN) in every example"
        elif not is_neither(name):
            names.append(name)
    return tuple(names)


def _with_mask(best: Piece, candidates: Sequence[Candidate]) -> tuple[Piece, ...] | None:
    """Return datasets of one group that are to be stacked: they have one axis, and one of them is a mask."""
    group = best.path.rpartition("/")[0]
    beside = [
        one for one in candidates if one.path.rpartition("/")[0] == group and one.shape == best.shape and one.is_number
    ]
    masks = [one for one in beside if words(one.name)[:1] in (["mask"], ["masks"])]
    is_stack = group and len(best.shape) == 1 and best.size > 1 and masks and len(beside) > 1
    return tuple(map(Piece, beside)) if is_stack else None


def _expression(members: Sequence[Piece], candidates: Sequence[Candidate], listed: bool = False) -> str | list[str]:
    """Write datasets as a path, a group, a pattern or a list; `listed`: in this order."""
    paths = [text for piece in members for text in piece.texts]
    if len(paths) == 1:
        return paths[0]
    if listed or not all(piece.is_whole_dataset for piece in members):
        return paths
    groups = {path.rpartition("/")[0] for path in paths}
    everything = [one.path for one in candidates]
    group = groups.pop() if len(groups) == 1 else ""
    if group and [path for path in everything if path.startswith(f"{group}/")] == paths:
        return group
    stems = {re.sub(r"\d+", "#", path) for path in paths}
    if len(stems) == 1 and stems.copy().pop().count("#") == 1:
        pattern = stems.pop().replace("#", "*")
        if [path for path in everything if fnmatch(path, pattern)] == paths:
            return pattern
    return paths


def toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return repr(value)
