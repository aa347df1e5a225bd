"""Choosing what is done to numbers as they are read: filled where missing, standardised where they are far from 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.tools.guessing.candidates import Candidate
from hpctrain.tools.guessing.guess import Guess

_FAR, _WIDE, _NARROW = 1.0, 3.0, 0.1  # of means and deviations that a network had better not see


def choose_preparation(
    found: Guess, members: Sequence[Candidate], target: Candidate, columns: int = 0, whole: bool = True
) -> None:
    """Add `prepare` and `prepare_target` to a guess, where they are called for.

    columns  how many of the last columns of the target's dataset are targets; whole  whether all of it are
    """
    steps: list[Any] = []
    why = []
    missing = {}
    for one in members:
        summaries = one.survey.summaries(one.entry)
        if count := sum(summary.missing for summary in summaries.values()):
            missing[one.path] = count / max(sum(summary.read for summary in summaries.values()), 1)
    if missing:
        most = max(missing, key=missing.get)
        steps.append("fill")
        why.append(f"values are missing ({missing[most]:.2%} of {most!r}): the mean takes their place")
    if _tokens(found, members):
        return
    inputs = [both for one in members for both in _spreads(one, columns if one is target else 0)]
    has_records = any(one.entry.kind == "record" for one in members)
    if has_records or any(_is_far(*both) for both in inputs):
        axis = _axis(found)
        steps.append("standardise" if axis == "column" else {"name": "standardise", "axis": axis})
        why.append(
            "mean 0 and deviation 1 suit networks; each field of the records has units of its own"
            if has_records
            else "mean 0 and deviation 1 suit networks; these numbers are far from that"
        )
    if steps:
        found.data["prepare"], found.why["prepare"] = steps, "; ".join(why)
    if found.target_kind == "real" and whole and any(_is_far(*both) for both in _spreads(target, 0)):
        found.data["prepare_target"] = ["standardise"]
        found.why["prepare_target"] = "the loss is in these units; metrics and predictions are in the targets' own"


def _tokens(found: Guess, members: Sequence[Candidate]) -> bool:
    """Return whether inputs are tokens, whose numbers mean nothing."""
    return (
        len(found.input_shape) == 1 and found.target_shape == found.input_shape and all(one.is_whole for one in members)
    )


def _axis(found: Guess) -> str:
    """Return over what means are taken: each column of a table, each channel of an image, volume or series."""
    if len(found.input_shape) < 2:
        return "column"
    return "all" if len(found.input_shape) == 2 and found.input_is == "image" else "channel"


def _spreads(one: Candidate, without: int) -> list[tuple[float, float]]:
    """Return mean and deviation: of each column of a table, but the last ones; of larger examples over all numbers."""
    if one.entry.kind != "number":
        return []
    if len(one.shape) > 1:
        summary = one.survey.summary(one.entry)
        return [(summary.mean, summary.deviation)]
    rows = one.survey.sample(one.entry).reshape(-1, max(one.size, 1))
    packed = one.entry.packed
    for name in ("_FillValue", "missing_value"):
        if name in packed:
            rows = np.where(rows == packed[name], np.nan, rows)
    rows = rows * packed.get("scale_factor", 1.0) + packed.get("add_offset", 0.0)
    columns = (rows[np.isfinite(rows[:, index]), index] for index in range(rows.shape[1] - without))
    return [(float(column.mean()), float(column.std())) for column in columns if column.size]


def _is_far(mean: float, deviation: float) -> bool:
    return abs(mean) > _FAR or deviation > _WIDE or 0 < deviation < _NARROW
