"""Choosing the inputs among the datasets that are left when the targets are chosen, and writing them as a job does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from hpctrain.tools.guessing.candidates import Candidate
from hpctrain.tools.guessing.names import INPUTS, fits, words
from hpctrain.tools.guessing.target import Target


@dataclass(frozen=True)
class Inputs:
    """The inputs that were chosen: what the job has for them, the shape of an example, why."""

    members: tuple[Candidate, ...]
    expression: str | list[str]
    shape: tuple[int, ...]
    why: str
    combine: str | None = None


def choose_inputs(candidates: Sequence[Candidate], target: Target) -> tuple[Inputs | None, list[Candidate]]:
    """Return the inputs, None where there are none, and other datasets that could be inputs."""
    own = target.candidate
    if target.columns:
        left = own.shape[0] - target.columns
        inputs = Inputs((own,), f"{own.path}[:, 0:{left}]", (left,), f"the other {left} columns of that dataset")
        return inputs, [one for one in candidates if one.is_input and one is not own]
    if target.field:
        names = [
            name
            for name in own.entry.dtype.names
            if name != target.field and own.entry.dtype[name].base.kind in "biuf" and own.entry.dtype[name].shape == ()
        ]
        # More fields that sound like targets would tell the answer.
        names = [name for name in names if not fits(name, frozenset(words(target.field)))]
        if names:
            text = f"{own.path}[{', '.join(names)}]"
            return Inputs((own,), text, (len(names),), "the other fields of its records that hold numbers"), []
    possible = [one for one in candidates if one.is_input and one is not own and one.size]
    if not possible:
        return None, []
    best = max(possible, key=lambda one: (len(one.shape) > 1, fits(one.path, INPUTS) >= 2, one.size))
    if (stacked := _with_mask(best, candidates)) is not None:
        members, shape, combine = stacked, (*best.shape, len(stacked)), "stack"
        why = "values and mask of each place, side by side"
    elif len(best.shape) > 1:
        members, shape, combine = (best,), best.shape, None
        why = "the largest dataset with an example for each target"
    else:
        members = tuple(one for one in possible if len(one.shape) <= 1)
        shape, combine = (sum(one.size for one in members),), None
        why = (
            "numbers with an example for each target" if len(members) == 1 else "all of these are numbers, side by side"
        )
    others = [one for one in possible if one not in members]
    return Inputs(tuple(members), _expression(members, candidates), shape, why, combine), others


def _with_mask(best: Candidate, candidates: Sequence[Candidate]) -> tuple[Candidate, ...] | None:
    """Return datasets of one group that are to be stacked: they have one axis, and one of them is a mask."""
    group = best.path.rpartition("/")[0]
    beside = [
        one for one in candidates if one.path.rpartition("/")[0] == group and one.shape == best.shape and one.is_number
    ]
    masks = [one for one in beside if words(one.name)[:1] in (["mask"], ["masks"])]
    return tuple(beside) if group and len(best.shape) == 1 and best.size > 1 and masks and len(beside) > 1 else None


def _expression(members: Sequence[Candidate], candidates: Sequence[Candidate]) -> str | list[str]:
    """Write datasets as a path, a group, a pattern or a list."""
    paths = [one.path for one in members]
    if len(paths) == 1:
        return paths[0]
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
