"""Choosing what is done to numbers as they are read: filled where missing, standardised where they are far from 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpctrain.tools.guessing.guess import Guess
from hpctrain.tools.guessing.pieces import Piece

_FAR, _WIDE, _NARROW = 2.0, 3.0, 0.1  # of means and deviations that a network had better not see


def choose_preparation(found: Guess, members: Sequence[Piece], target: Piece | None) -> None:
    """Add `prepare` and `prepare_target` to a guess, where they are called for; `target`: where it may be prepared."""
    steps: list[Any] = []
    why = []
    missing = {one.path: share for one in members if (share := one.missing())}
    if missing:
        most = max(missing, key=missing.get)
        steps.append("fill")
        why.append(f"values are missing ({missing[most]:.2%} of {most!r}): the mean takes their place")
    if _tokens(found, members):
        return
    far = [one for one in members if one.fields or any(_is_far(*spread) for _, *spread in one.spreads())]
    if far:
        step: dict[str, Any] = {"name": "standardise"}
        if (axis := _axis(found)) != "column":
            step["axis"] = axis
        if found.data.get("combine") == "flat" and len(far) < len(members):
            step["columns"] = [text for one in far for text in _named(one)]
        steps.append(step if len(step) > 1 else "standardise")
        why.append(_reason(far))
    if steps:
        found.data["prepare"], found.why["prepare"] = steps, "; ".join(why)
    is_real = target is not None and found.target_kind == "real"
    if is_real and any(_is_far(*rest) for _, *rest in target.spreads()):
        found.data["prepare_target"] = ["standardise"]
        found.why["prepare_target"] = "the loss is in these units; metrics and predictions are in the targets' own"


def _named(one: Piece) -> list[str]:
    """Return the names of a piece's columns, as a step of a preparation has them."""
    return [f"{one.path}[{name}]" for name in one.fields] or one.texts


def _reason(far: Sequence[Piece]) -> str:
    """Return why numbers are standardised, with the ones that are furthest from mean 0 and deviation 1."""
    if any(one.fields for one in far):
        return "mean 0 and deviation 1 suit networks; each field of the records has units of its own"
    spreads = [spread for one in far for spread in one.spreads() if _is_far(*spread[1:])]
    words, mean, deviation = max(spreads, key=lambda one: max(abs(one[1]), one[2], 1 / max(one[2], 1e-300)))
    return f"mean 0 and deviation 1 suit networks; {words} has the mean {mean:.3g} and the deviation {deviation:.3g}"


def _tokens(found: Guess, members: Sequence[Piece]) -> bool:
    """Return whether inputs are tokens, whose numbers mean nothing."""
    return (
        len(found.input_shape) == 1
        and found.target_shape == found.input_shape
        and all(one.owner.is_whole for one in members)
    )


def _axis(found: Guess) -> str:
    """Return over what means are taken: each column of a table, each channel of an image, volume or series."""
    if len(found.input_shape) < 2:
        return "column"
    return "all" if len(found.input_shape) == 2 and found.input_is == "image" else "channel"


def _is_far(mean: float, deviation: float) -> bool:
    return abs(mean) > _FAR or deviation > _WIDE or 0 < deviation < _NARROW
