"""Finding datasets in an HDF5 file and judging whether they can be trained on; says what is there when they cannot."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import h5py
import numpy as np

from hpctrain.data.fields.expression import Expression, parse
from hpctrain.data.filters import check_filters
from hpctrain.data.virtual import files_behind
from hpctrain.errors import UserError, nearest

_LISTED = 40  # names in a message
_SPECIAL = frozenset("[]*?")  # characters of a text that may be more than a path


@dataclass(frozen=True)
class Found:
    """A dataset that a job names.

    path        from the file or group that it was looked for in
    expression  what is taken of it
    where       the job's key and text, for errors: "data.input = 'x'"
    behind      files beside the one it was looked for in, in which its numbers stand
    """

    path: str
    dataset: h5py.Dataset
    expression: Expression
    where: str
    behind: tuple[str, ...] = ()


def find_datasets(root: h5py.Group, text: str, key: str, several: bool = False) -> list[Found]:
    """Return the datasets that a job's text means, in a file or in a group of it.

    A group means all the datasets directly in it, a pattern (`*`, `?`) all that fit; both in the natural order of their
    names (p2 before p10).  `key` is the job key that holds the text ("data.input").

    Raises `UserError` for a missing name (lists the datasets that are there), a group without datasets, rows without a
    number in them, a compression filter that HDF5 does not have here, or a virtual dataset without its sources.
    `several`: there are other files, and this one may be none of the data.
    """
    where = f"{key} = {text!r}"
    is_plain = not _SPECIAL & set(text)
    literal = is_plain or text in root  # a name may have brackets and stars in it
    expression = Expression(text) if literal else parse(text, key)
    if expression.is_pattern and not literal:
        datasets = [(path, root[path]) for path in _matching(root, expression.path.strip("/").split("/"))]
        if not datasets:
            raise _missing(root, expression.path, f"{where} fits nothing", several)
    else:
        datasets = _at(root, expression.path, where, several)
    own = root.file.filename
    found = []
    for path, dataset in datasets:
        _check_shape(dataset, where)
        check_filters(dataset, where)
        found.append(Found(path.strip("/"), dataset, expression, where, files_behind(dataset, own, where)))
    return found


def natural(name: str) -> list[str | int]:
    """Return a key that sorts names as people count: p2 before p10."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", name)]


def matching_groups(root: h5py.Group, pattern: str) -> list[str]:
    """Return the paths of the groups that fit a pattern ("sample_*", "runs/*"), in natural order."""
    return list(_matching(root, pattern.strip("/").split("/"), h5py.h5o.TYPE_GROUP))


def _matching(root: h5py.Group, parts: list[str], kind: int = h5py.h5o.TYPE_DATASET, base: str = "") -> Iterator[str]:
    group = root[base] if base else root
    last = len(parts) == 1
    is_pattern = "*" in parts[0] or "?" in parts[0]
    for name in sorted(fnmatch.filter(group, parts[0]) if is_pattern else parts[:1], key=natural):
        path = f"{base}/{name}".lstrip("/")
        wanted = kind if last else h5py.h5o.TYPE_GROUP
        if _kind(group, name) == wanted:
            yield from [path] if last else _matching(root, parts[1:], kind, path)


def _kind(group: h5py.Group, name: str) -> int | None:
    """Return what a name in a group stands for, None for nothing; `UserError` for a link that leads nowhere."""
    try:
        return h5py.h5o.get_info(group.id, name.encode()).type
    except (KeyError, RuntimeError):
        link = group.get(name, getlink=True)
        if link is None:
            return None
    leads = f"{link.path!r} in {link.filename!r}" if isinstance(link, h5py.ExternalLink) else repr(link.path)
    raise UserError(
        f"a link leads nowhere: {name!r} in group {group.name!r} of {group.file.filename}",
        found=f"it leads to {leads}",
        hint="put what it leads to in its place, or name the datasets that are there",
    )


def _at(root: h5py.Group, path: str, where: str, several: bool) -> list[tuple[str, h5py.Dataset]]:
    """Return a dataset, or the datasets in a group, each with its path."""
    try:
        found = root[path] if path.strip("/") else root
    except (KeyError, ValueError):
        raise _missing(root, path, f"{where}: there is no such dataset", several) from None
    if isinstance(found, h5py.Dataset):
        return [(path, found)]
    is_group = isinstance(found, h5py.Group)
    inside = list(_matching(found, ["*"])) if is_group else []
    if inside:
        base = path.strip("/")
        return [(f"{base}/{name}".lstrip("/"), found[name]) for name in inside]
    below = _listing(found) if is_group else ""
    there = below or _listing(root)
    raise UserError(
        f"{where} is a {'group' if is_group else 'type'}, not a dataset, in {_place(root)}",
        found=f"a group without datasets{' directly in it' if below else ''}" if is_group else None,
        allowed=there or "the file has no datasets",
        hint="name one of these datasets" if there else None,
    )


def _missing(root: h5py.Group, path: str, what: str, several: bool) -> UserError:
    there = [name for name, _ in _walk(root)]
    guess = nearest(path.strip("/"), there)
    hint = f"did you mean {guess!r}?" if guess else "name one of the datasets that are there"
    if root.name != "/":
        hint += f"; if {root.name!r} is no example, say with data.group which groups are"
    elif several:
        name = os.path.basename(root.file.filename)
        hint += f'; if this file holds no examples, leave it out with data.exclude = "{name}"'
    return UserError(f"{what} in {_place(root)}", allowed=_listing(root) or "the file has no datasets", hint=hint)


def _place(root: h5py.Group) -> str:
    return root.file.filename if root.name == "/" else f"group {root.name!r} of {root.file.filename}"


def _walk(group: h5py.Group) -> Iterator[tuple[str, h5py.Dataset]]:
    found: list[tuple[str, h5py.Dataset]] = []
    group.visititems(lambda name, item: found.append((name, item)) if isinstance(item, h5py.Dataset) else None)
    prefix = group.name.strip("/")
    yield from ((f"{prefix}/{name}".lstrip("/"), item) for name, item in found)


def _listing(group: h5py.Group) -> str:
    lines = [f"{name} {item.shape} {type_name(item.dtype)}" for name, item in _walk(group)]
    if len(lines) > _LISTED:
        lines[_LISTED:] = [f"... and {len(lines) - _LISTED} more"]
    return "\n           ".join(lines)


def type_name(dtype: np.dtype) -> str:
    """Return a word for an HDF5 element type: "float32", "text", "records (a, b)", ..."""
    if is_text(dtype):
        return "text"
    if h5py.check_ref_dtype(dtype):
        return "references"
    if h5py.check_vlen_dtype(dtype) is not None:
        return "lists of varying length"
    if dtype.names:
        return f"records ({', '.join(dtype.names)})"
    return str(dtype.base.newbyteorder("=")) if dtype.kind in "biufc" else f"opaque data ({dtype})"


def is_text(dtype: np.dtype) -> bool:
    """Return whether elements are strings, of fixed or of any length."""
    return h5py.check_string_dtype(dtype) is not None or dtype.kind in "SU"


def check_type(dataset: h5py.Dataset, dtype: np.dtype, where: str) -> None:
    """Raise a `UserError` unless elements are numbers or text; `dtype` is that of what is taken of the dataset."""
    if dtype.kind in "biuf" or is_text(dtype):
        return
    hint = "turn it into numbers first: lists of varying length, for example, into rows filled up with zeros and a mask"
    if dtype.names:
        some = ", ".join(dtype.names[:3])
        hint = f'name the fields that are wanted: "{dataset.name.strip("/")}[{some}]"'
    raise UserError(
        f"{where} does not hold numbers in {dataset.file.filename}",
        found=f"{dataset.shape} {type_name(dtype)}",
        allowed="integers, floating point numbers, booleans, or text as categories",
        hint=hint,
    )


def _check_shape(dataset: h5py.Dataset, where: str) -> None:
    if dataset.shape and 0 in dataset.shape[1:]:
        raise UserError(
            f"{where} has no rows of numbers in {dataset.file.filename}",
            found=f"shape {dataset.shape}: rows without a number in them",
            allowed="shape (rows, ...): the first dimension counts the examples",
        )
