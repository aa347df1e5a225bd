"""`guess`: from what is in files to a section `[data]` that reads it.

Looked for, in this order: one example a group; one example a row, with targets that have as many rows; one example a
file; windows of a long series.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from hpctrain.errors import UserError
from hpctrain.tools.guessing.candidates import Candidate
from hpctrain.tools.guessing.guess import LARGE, Guess, is_channels_first
from hpctrain.tools.guessing.inputs import choose_inputs
from hpctrain.tools.guessing.names import IMAGES, RUNS, fits, is_target, words
from hpctrain.tools.guessing.pieces import Piece
from hpctrain.tools.guessing.prepare import choose_preparation
from hpctrain.tools.guessing.roles import Roles, find_roles
from hpctrain.tools.guessing.survey import Survey
from hpctrain.tools.guessing.target import Target, choose_target
from hpctrain.tools.inspecting.contents import Entry, FileSet

_WINDOW = 48  # rows of a window over a series that is long enough
_SHORTEST_SERIES = 16
_FEWEST_OF_A_CLASS = 10  # so that a tenth of each class can be kept apart
_FEWEST_FILES = 3  # that look like one example each, where they could also hold rows
_LISTED = 20


def guess(survey: Survey) -> Guess:
    """Return a guess at the section `[data]`; `UserError` where nothing fits, which says what was looked for."""
    for number, files in enumerate(survey.sets):
        found = _groups(files, survey) or _files_first(files, survey) or _rows(files, survey) or _files(files, survey)
        if found is None:
            continue
        for other in survey.sets[:number] + survey.sets[number + 1 :]:
            why = "it holds other datasets than the files with the examples"
            found.left_out |= dict.fromkeys(other.files, why)
        _parts_by_name(found)
        return found
    for files in survey.sets:
        if found := _series(files, survey):
            return found
    there = [f"{entry.name} {_shapes(entry)} {entry.type}" for files in survey.sets for entry in files.entries]
    more = [f"... and {len(there) - _LISTED} more"] if len(there) > _LISTED else []
    raise UserError(
        "no inputs with targets were found in these files",
        found="\n           ".join(there[:_LISTED] + more) or "no datasets",
        allowed="targets named label, target, y, class, truth, ... (or one-hot last columns, or a small dataset of "
        "whole numbers), and numbers with as many rows; or one example a file or a group; or one long series",
        hint="write the job by hand: `python -m hpctrain job` prints one to edit, data.input and data.target name "
        "any dataset",
    )


def _shapes(entry: Entry) -> str:
    shapes = ["an empty dataspace" if shape is None else str(shape) for shape in dict.fromkeys(entry.shapes)]
    return " + ".join(shapes[:3]) + (" + ..." if len(shapes) > 3 else "")


def _groups(files: FileSet, survey: Survey) -> Guess | None:
    """One example a group."""
    patterns = dict.fromkeys(entry.name[: entry.name.index("*") + 1] for entry in files.entries if entry.grouped)
    for pattern in patterns:
        inside = [entry for entry in files.entries if entry.name.startswith(f"{pattern}/")]
        candidates = [
            Candidate(entry.name.removeprefix(f"{pattern}/"), entry, entry.shape, survey)
            for entry in inside
            if len(set(entry.shapes)) == 1 and entry.count == max(one.count for one in inside)
        ]
        keys = {"examples": "groups"} | ({} if pattern == "*" else {"group": pattern})
        why = {"examples": f"the groups {pattern} hold the same each"}
        if found := _put_together(files, candidates, keys, why, inside[0].count):
            return found
    return None


def _rows(files: FileSet, survey: Survey) -> Guess | None:
    """One example a row: of the numbers of rows that several datasets share, the one with the most bytes."""
    by_rows: dict[tuple[int, ...], list[Entry]] = {}
    for entry in files.entries:
        if not entry.grouped and entry.shape and sum(entry.rows):
            by_rows.setdefault(entry.rows, []).append(entry)
    for rows, entries in sorted(by_rows.items(), key=lambda item: -sum(entry.raw for entry in item[1])):
        candidates = [Candidate(entry.name, entry, entry.shape[1:], survey) for entry in entries]
        count = sum(rows) * len(files.files) // max(files.looked, 1)
        if found := _put_together(files, candidates, {}, {}, count):
            return found
    return None


def _files_first(files: FileSet, survey: Survey) -> Guess | None:
    """One example a file, where that is likelier than a row: images of one size, and targets for each place of them."""
    entries = [entry for entry in files.entries if not entry.grouped]
    if len(files.files) < _FEWEST_FILES or any(len(set(entry.shapes)) > 1 for entry in entries):
        return None
    largest = max(entries, key=lambda entry: entry.raw, default=None)
    # Files of other datasets beside them (statistics, say) are one more sign.
    edge = 2 if len(survey.sets) > 1 else LARGE
    if largest is None or len(largest.shape) < 3 or min(largest.shape[:2]) < edge:
        return None
    is_square = max(largest.shape[:2]) <= 4 * min(largest.shape[:2])
    has_places = any(entry.shape == largest.shape[:-1] for entry in entries if entry is not largest)
    return _files(files, survey) if is_square and has_places else None


def _files(files: FileSet, survey: Survey) -> Guess | None:
    """One example a file."""
    if len(files.files) < 2:
        return None
    candidates = [
        Candidate(entry.name, entry, entry.shape, survey)
        for entry in files.entries
        if not entry.grouped and len(set(entry.shapes)) == 1 and entry.shapes[0] is not None
    ]
    why = {"examples": "the datasets have no axis in common, and the same shape in every file"}
    return _put_together(files, candidates, {"examples": "files"}, why, len(files.files))


def _series(files: FileSet, survey: Survey) -> Guess | None:
    """Windows over one long series of numbers, whose next row is to be foretold."""
    series = [
        Candidate(entry.name, entry, entry.shape[1:], survey)
        for entry in files.entries
        if entry.kind == "number" and entry.dtype.kind == "f" and 1 <= len(entry.shape) <= 2 and not entry.grouped
    ]
    series = [one for one in series if one.is_input]
    # What is named like targets, but has no examples that fit, is no series whose next row is wanted.
    if len(series) != 1 or any(is_target(entry.name) for entry in files.entries):
        return None
    one = series[0]
    shortest = min((rows for rows in one.entry.rows if rows), default=0)
    length = min(_WINDOW, shortest // 4)
    if shortest < _SHORTEST_SERIES or shortest < one.size:
        return None
    windows: dict[str, object] = {"length": length, "horizon": 1, "stride": 1}
    runs = [
        entry.name for entry in files.entries if entry.rows == one.entry.rows and entry is not one.entry
        and (fits(entry.name, RUNS) or words(entry.name)[:1] == ["run"])
    ]  # fmt: skip
    if runs:
        windows["run"] = runs[0]
    rows = sum(max(count - length, 0) for count in one.entry.rows)
    shape = one.shape or (1,)
    found = Guess(
        {"input": one.path, "target": one.path, "windows": windows},
        {
            "input": "the one series of numbers there is",
            "target": "nothing is named like targets: the next row is foretold",
            "windows": f"{length} rows an example; the target is the row behind them",
        },
        list(files.files),
        rows,
        (length, *shape),
        "real",
        shape,
        input_is="series",
    )
    choose_preparation(found, [Piece(one)], Piece(one))
    return found


def _put_together(
    files: FileSet, candidates: Sequence[Candidate], keys: dict[str, object], why: dict[str, str], rows: int
) -> Guess | None:
    """Choose targets and inputs among datasets that have an example each; None where either is missing."""
    target, other_targets = choose_target(candidates)
    if target is None:
        return None
    roles = find_roles(candidates, target, "examples" not in keys)
    inputs, other_inputs = choose_inputs(candidates, target, roles)
    if inputs is None:
        return None
    if target.kind == "class" and target.shape and inputs.shape[: len(target.shape)] != target.shape:
        # Several labels an example that are not one for each place: numbers to predict.
        target = replace(target, kind="real", classes=None, as_real=True, ignore=None)
    data: dict[str, object] = {**keys, "input": inputs.expression}
    if inputs.combine:
        data["combine"] = inputs.combine
    data["target"] = target.expression
    reasons = {**why, "input": inputs.why, "target": target.why}
    if target.one_hot:
        data["target_encoding"] = "one_hot"
        reasons["target_encoding"] = f"{target.classes} columns of 0 and one 1: classes 0 to {target.classes - 1}"
    if target.ignore is not None:
        data["ignore_label"] = target.ignore
        reasons["ignore_label"] = f"{target.ignore} is the one negative label: taken for 'no label'"
    found = Guess(
        data, reasons, list(files.files), rows, inputs.shape, target.kind, target.shape, target.classes, target.as_real
    )
    _give_roles(found, roles)
    _mask(found, candidates, target)
    _channels_first(found)
    bytes_alone = len(inputs.members) == 1 and inputs.members[0].owner.entry.dtype == "u1"
    if bytes_alone or any(fits(one.path, IMAGES) for one in inputs.members):
        found.input_is = "image"
    if inputs.combine == "flat":
        found.parts = [(one.path, one.shape) for one in inputs.members]
    choose_preparation(found, inputs.members, None if target.columns or target.field else Piece(target.candidate))
    if share := Piece(target.candidate).missing():
        found.data["missing"] = "drop"
        found.why["missing"] = f"the target is missing (NaN) in {share:.2%} of its values: those do not count"
    has_label = target.kind == "class" and target.shape == ()
    found.stratify = has_label and (target.candidate.least_class(target.field) or 0) >= _FEWEST_OF_A_CLASS
    found.others += [f"target = {one.describe()}" for one in other_targets]
    found.others += [f"input = {one.describe()}" for one in other_inputs]
    taken = (target.candidate, *other_targets)
    words_of = [one for one in candidates if one.entry.kind == "text" and one not in taken and not roles.takes(one)]
    found.others += [f"input = {one.describe()}, whose texts are numbered" for one in words_of]
    return found


def _give_roles(found: Guess, roles: Roles) -> None:
    """Take weights and groups of the examples; say what is left out."""
    if roles.weight is not None:
        found.data["weight"], found.why["weight"] = roles.weight.text, "its name says so; it is one number an example"
    if roles.group is not None:
        found.group = roles.group.text
    found.left_out |= {repr(name): why for name, why in roles.left_out.items()}


def _mask(found: Guess, candidates: Sequence[Candidate], target: Target) -> None:
    """Take a mask, by name, where it has a place for each label."""
    for one in candidates:
        is_mask = words(one.name) in (["mask"], ["masks"]) and len(one.shape) > 0 and one.shape == target.shape
        if not is_mask or not one.is_number or one is target.candidate:
            continue
        if "mask" not in found.data and set(one.survey.summary(one.entry).classes or [2]) <= {0, 1}:
            found.data["mask"], found.why["mask"] = one.path, "its name says so; it has the targets' shape"


def _channels_first(found: Guess) -> None:
    """Turn images whose first axis is much the shortest: that is how PyTorch stores channels."""
    shape = found.input_shape
    if not is_channels_first(shape):
        return
    found.data["channels_first"] = True
    found.why["channels_first"] = f"{shape[0]} is much the shortest axis: {shape} becomes {(*shape[1:], shape[0])}"
    found.input_shape = (*shape[1:], shape[0])


def _parts_by_name(found: Guess) -> None:
    """Keep files for the test and the validation apart that say in their names that they are for these."""
    if found.data.get("examples") == "files":
        return
    kinds = {path: set(words(os.path.splitext(os.path.basename(path))[0])) for path in found.files}
    test = [path for path in found.files if kinds[path] & {"test", "testing"}]
    validation = [path for path in found.files if kinds[path] & {"valid", "validation", "val", "dev"}]
    train = [path for path in found.files if path not in test and path not in validation]
    if train and any(kinds[path] & {"train", "training"} for path in train):
        found.files, found.test_files, found.validation_files = train, test, validation
