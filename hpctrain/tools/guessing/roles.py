"""Telling what is no input although it holds numbers: weights, groups of examples, their names and numbers, nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hpctrain.tools.guessing.candidates import Candidate
from hpctrain.tools.guessing.names import is_group, is_id, is_mask, is_neither, is_target, is_weight
from hpctrain.tools.guessing.pieces import can_be_named
from hpctrain.tools.guessing.target import Target
from hpctrain.tools.inspecting.contents import kind_of
from hpctrain.tools.inspecting.values import Summary

_FEWEST_GROUPS = 10  # so that a tenth of them can be kept apart


@dataclass(frozen=True)
class Single:
    """One number or text an example: a dataset, or a field of records."""

    owner: Candidate
    field: str | None = None

    @property
    def name(self) -> str:
        """Its own name."""
        return self.field or self.owner.name

    @property
    def text(self) -> str:
        """What a job says for it."""
        return f"{self.owner.path}[{self.field}]" if self.field else self.owner.path

    @property
    def kind(self) -> str:
        """Return "number", "text" or "other"."""
        entry = self.owner.entry
        return kind_of(entry.dtype[self.field].base) if self.field else entry.kind

    @property
    def is_whole(self) -> bool:
        """Whether its type holds whole numbers."""
        entry = self.owner.entry
        return self.owner.is_whole if self.field is None else entry.dtype[self.field].base.kind in "biu"

    @property
    def summary(self) -> Summary:
        """What its values are like."""
        return self.owner.survey.summaries(self.owner.entry).get(f".{self.field}" if self.field else "", Summary())

    def distinct(self) -> int:
        """Return how many values are different, as far as was looked at; 0 where that says nothing."""
        if self.kind == "text":
            return self.summary.distinct or 0
        return len(np.unique(self.owner.survey.sample(self.owner.entry, self.field))) if self.is_whole else 0

    def comes_again(self) -> bool:
        """Return whether each value has two examples or more, on average."""
        looked_at = (
            self.summary.read if self.kind == "text" else len(self.owner.survey.sample(self.owner.entry, self.field))
        )
        return 2 * self.distinct() <= looked_at


@dataclass
class Roles:
    """What was found.

    weight, group  of the examples
    left_out       text -> why it is no input
    """

    weight: Single | None = None
    group: Single | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    def takes(self, owner: Candidate, name: str | None = None) -> bool:
        """Return whether a dataset, or a field of one, has a role and is no input."""
        single = Single(owner, name)
        return single.text in self.left_out or single in (self.weight, self.group)


def find_roles(candidates: Sequence[Candidate], target: Target, has_rows: bool) -> Roles:
    """Return the roles of what is not the target; groups only where examples are rows."""
    roles = Roles()
    everything = list(_singles(candidates, target))
    names = {single.name.lower() for single in everything}
    for single in everything:
        summary = single.summary
        if not summary.read:
            continue
        if single.kind == "number" and summary.missing == summary.read:
            roles.left_out[single.text] = "missing (NaN) in every example"
        elif _is_weight(single, names):
            if roles.weight is None and summary.minimum >= 0 and not summary.missing + summary.infinite:
                roles.weight = single
            else:
                roles.left_out[single.text] = "named like weights, which are numbers of 0 or more"
        elif is_group(single.name) or is_id(single.name):
            is_one = has_rows and single.distinct() >= _FEWEST_GROUPS and single.comes_again()
            if is_one and roles.group is None:
                roles.group = single
            else:
                roles.left_out[single.text] = "by its name it tells examples apart"
        elif single.owner.counts_rows(single.field):
            roles.left_out[single.text] = "it counts the examples"
        elif single.kind == "number" and is_neither(single.name) and not is_mask(single.name):
            roles.left_out[single.text] = "by its name it is no input"
    return roles


def _singles(candidates: Sequence[Candidate], target: Target) -> Iterator[Single]:
    for one in candidates:
        if not one.entry.readable:
            continue
        if one.entry.kind == "record":
            for name in one.entry.dtype.names:
                is_target_too = one is target.candidate and name == target.field
                if one.entry.dtype[name].shape == () and can_be_named(name) and not is_target_too:
                    yield from [Single(one, name)] if not is_target(name) else []
        elif one is not target.candidate and one.shape in ((), (1,)) and not one.sounds_like_target:
            yield from [Single(one)] if one.entry.kind in ("number", "text") else []


def _is_weight(single: Single, names: set[str]) -> bool:
    """Return whether the name says weights; `w` beside `u` and `v` is a part of a vector."""
    if single.kind != "number" or not is_weight(single.name):
        return False
    return single.name.lower() != "w" or not {"u", "v"} <= names
