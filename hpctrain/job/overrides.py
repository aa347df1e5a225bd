"""`--set a.b=value`: changes to a job document before it is checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from typing import Any

from hpctrain.errors import UserError

_EXAMPLE = "--set optimizer.lr=0.01, --set data.split.test=0.2, --set model.layers.0.units=64"
# Where a bare word names a part: "relu" is short for {type = "relu"}.
_NAMES_A_PART = re.compile(
    r"(optimizer|schedule|loss|strategy|metrics\.names\.\d+|data\.prepare(?:_target)?\.\d+)|(model\.layers\.\d+)"
)
_EXCLUDE = {"run.epochs": "run.steps", "run.steps": "run.epochs"}


def apply_overrides(document: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of a job document with "a.b=value" overrides applied in order.

    The value is TOML; what is not TOML is taken as text.  Missing tables are made; a number in the key is an index into
    a list.  Setting `run.steps` takes the document's `run.epochs` away, and the reverse: a job has one length.
    """
    document = _copy(document)
    changes = [(*_split(text), text) for text in overrides]
    given = {key for key, _, _ in changes}
    for key in given & _EXCLUDE.keys():
        if _EXCLUDE[key] not in given and isinstance(document.get("run"), dict):
            document["run"].pop(_EXCLUDE[key].removeprefix("run."), None)
    for key, value, text in changes:
        _set(document, key, value, text)
    return document


def _split(text: str) -> tuple[str, Any]:
    key, equals, value = (piece.strip() for piece in text.partition("="))
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key) or not value:
        raise UserError(
            "--set takes KEY=VALUE, with a dotted key and a value",
            found=repr(text),
            allowed=_EXAMPLE,
            hint="for an empty text, write KEY='\"\"'" if equals and not value else None,
        )
    return key, _value(value, text)


def _value(value: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError as error:
        if value[0] in "[{\"'":
            reason = re.sub(r" \(at [^()]*\)$", "", str(error))
            raise UserError(
                f"the value of --set is not TOML: {reason[:1].lower()}{reason[1:]}",
                found=repr(text),
                allowed='numbers, true, false, "text", [lists] and {key = value} tables; a bare word is text',
                hint="put quotes around the whole of KEY=VALUE, so that the shell leaves brackets and quotes alone",
            ) from None
        return value
    # Dates and times mean nothing in a job: 2026-01-31 is the name of a folder.
    is_plain = parsed.keys() == {"value"} and isinstance(parsed["value"], (bool, int, float, str, list, dict))
    return parsed["value"] if is_plain else value


def _set(document: dict[str, Any], key: str, value: Any, text: str) -> None:
    *parents, last = key.split(".")
    node: Any = document
    for depth, step in enumerate(parents):
        node = _child(node, step, ".".join(parents[: depth + 1]), text)
    node[_place(node, last, ".".join(parents), text)] = value


def _child(node: dict | list, step: str, path: str, text: str) -> dict | list:
    """Return the table or list at `step`; makes it where it is missing, and opens "relu" up to {type = "relu"}."""
    place: Any = _place(node, step, path.rpartition(".")[0], text)
    child = node[place] if isinstance(node, list) else node.get(place)
    if child is None:
        child = node[place] = {}
    part = _NAMES_A_PART.fullmatch(path)
    if isinstance(child, str) and part:
        child = node[place] = {"name" if part[1] else "type": child}
    if not isinstance(child, (dict, list)):
        raise UserError(f"--set {text}: {path} has no keys of its own", found=f"{path} = {child!r}")
    return child


def _place(node: dict | list, step: str, path: str, text: str) -> str | int:
    """Return the key or the list index that `step` means in the table or list at `path`."""
    if isinstance(node, list):
        if step.isdecimal() and int(step) < len(node):
            return int(step)
        raise UserError(
            f"--set {text}: {path} is a list, and {step!r} is not a place in it",
            allowed=f"{path}.0 to {path}.{len(node) - 1}" if node else f"{path}=[...], because the list is empty",
        )
    if step.isdecimal():
        raise UserError(
            f"--set {text}: {path} is not a list in this job",
            found=f"{path} = {node!r}" if node else f"{path} is not given",
            allowed=f"--set '{path}=[...]' sets the whole list",
        )
    return step


def _copy(value: Any) -> Any:
    """Copy tables and lists, not the parts (layer objects) in them."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy(item) for item in value]
    return value
