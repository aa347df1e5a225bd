"""Checks of the values in the data: where the first bad one stands, and how it is worded."""

from __future__ import annotations

import math

import numpy as np

from hpctrain.data.format import MISSING_LABEL, NO_ONE_HOT, RowFormat
from hpctrain.errors import UserError
from hpctrain.kernels.rows import first_nonfinite_row


def first_bad(form: RowFormat, inputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> tuple[int, str] | None:
    """Return the first row with a bad value and which array it is in, "input" or "target"; None where all is well.

    Bad are NaN, infinity and, in labels, what is below 0.  Targets of weight 0 may be anything: they do not count.
    """
    words = form.words(inputs, targets, weight)
    found = [(first_nonfinite_row(words[0]), "input")]
    if form.weight_words:
        bad = targets < 0 if form.target_kind == "class" else ~np.isfinite(targets)
        found.append((_first_true(bad.reshape(len(targets), -1) & counts(form, targets, weight)), "target"))
    elif form.target_kind == "real":
        found.append((first_nonfinite_row(words[1]), "target"))
    elif targets.size and targets.min() < 0:
        found.append((_first_true(targets.reshape(len(targets), -1) < 0), "target"))
    return min((item for item in found if item[0] >= 0), default=None)


def counts(form: RowFormat, targets: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return which target numbers count, bool (rows, target_width), given the stored weights of the rows."""
    rows = len(targets)
    if form.weight_words == 0:
        return np.ones((rows, form.target_width), bool)
    return np.repeat(weight.reshape(rows, form.weight_words) != 0, form.target_width // form.weight_words, axis=1)


def unprepared(place: str, made_by: str) -> UserError:
    """Return the error for a row of which preparation makes no finite numbers; `made_by` says which step, and why."""
    return UserError(
        f"the preparation of the data makes no finite number: {place}",
        found=made_by,
        hint="correct the data, or put a step in front that leads to numbers which it can take",
    )


def bad_value(values: np.ndarray, place: str) -> UserError:
    """Return the error for a row of inputs or real targets that has a bad value."""
    what = "NaN" if np.isnan(values).any() else "an infinite number (after the conversion to float32)"
    return UserError(
        f"{what} in the data: {place}",
        found=f"the first such row; {np.count_nonzero(~np.isfinite(values))} of its {values.size} values",
        allowed="finite numbers",
        hint='data.missing = "drop" leaves such examples out, a number (data.missing = 0.0) is put in the place of NaN'
        if what == "NaN"
        else "correct the value, or leave its row out: inputs have to be finite even where they do not count",
    )


def first_unknown_label(form: RowFormat, targets: np.ndarray, weight: np.ndarray, classes: int) -> int:
    """Return the first row with a label that counts and is not below `classes`, or -1."""
    if targets.size == 0 or targets.max() < classes:
        return -1
    return _first_true((targets.reshape(len(targets), -1) >= classes) & counts(form, targets, weight))


def first_beyond(form: RowFormat, targets: np.ndarray, weight: np.ndarray, bounds: tuple[float, float]) -> int:
    """Return the first row with a real target that counts and is outside the bounds, or -1."""
    low, high = bounds
    if targets.size == 0 or (targets.min() >= low and targets.max() <= high):
        return -1
    return _first_true(((targets < low) | (targets > high)).reshape(len(targets), -1) & counts(form, targets, weight))


def beyond_error(values: np.ndarray, bounds: tuple[float, float], place: str) -> UserError:
    """Return the error for a row of real targets that `first_beyond` found."""
    low, high = bounds
    flat = values.reshape(-1)
    return UserError(
        f"a target is no number that the loss can take: {place}",
        found=f"{flat[(flat < low) | (flat > high)][0]:g}",
        allowed=f"{low:g} or more" if high == math.inf else f"{low:g} to {high:g}",
        hint='correct the data, or take loss "mse", "mae" or "huber" for numbers of any size',
    )


def label_error(label: object, classes: int, place: str, hint: str | None = None) -> UserError:
    """Return the error for a label that the network has no output for."""
    return UserError(
        f"a class label is out of range: {label} in {place}",
        found=label,
        allowed=f"0 to {classes - 1}: the network tells {classes} classes apart",
        hint=hint or "correct the label, or give the last layer more units",
    )


def first_bad_token(inputs: np.ndarray, tokens: int) -> int:
    """Return the first row that holds anything but the whole numbers 0 to tokens - 1, or -1."""
    flat = inputs.reshape(len(inputs), -1)
    return _first_true(_is_no_token(flat, tokens))


def token_error(values: np.ndarray, tokens: int, place: str) -> UserError:
    """Return the error for a row of inputs that `first_bad_token` found."""
    flat = values.reshape(-1)
    bad = flat[_is_no_token(flat, tokens)][0]
    hint = "an embedding takes whole numbers: number the tokens from 0"
    if bad >= tokens and bad == np.floor(bad):
        size = f"a size of at least {int(bad) + 1}"
        hint = f"number the tokens from 0, or give the embedding (a preset: the vocabulary) {size}"
    return UserError(
        f"an input is no token that the embedding knows: {place}",
        found=f"{bad:.10g}",
        allowed=f"whole numbers, 0 to {tokens - 1}",
        hint=hint,
    )


def bad_label(label: int, place: str) -> UserError:
    """Return the error for a class label, as it is in the file, that is negative, above int64's largest, or none."""
    if label == MISSING_LABEL:
        return UserError(
            f"a class label is missing: {place}",
            found="the dataset's _FillValue or missing_value",
            allowed="a label for every example",
            hint='data.missing = "drop" leaves such examples out',
        )
    if label == NO_ONE_HOT:
        return UserError(
            f"a row of the targets is not one-hot: {place}",
            allowed='with data.target_encoding = "one_hot" one 1 in each row, and 0 elsewhere',
            hint="leave data.target_encoding out where the columns are numbers of their own",
        )
    hint = "number the classes from 0; rows or positions without a label can be marked with data.ignore_label"
    if label > 0:
        hint += f"; {2**64 - 1} is what -1 becomes in an unsigned type"
    return UserError(
        f"a class label is {'negative' if label < 0 else 'too large'}: {place}",
        found=label,
        allowed="labels 0, 1, 2, ...",
        hint=hint,
    )


def bad_weight(values: np.ndarray, is_mask: bool) -> int:
    """Return the first row of weights (finite, not negative) or of a mask (0 or 1) that is not so, or -1."""
    flat = values.reshape(len(values), -1)
    return _first_true(~((flat == 0) | (flat == 1)) if is_mask else ~(np.isfinite(flat) & (flat >= 0)))


def weight_error(values: np.ndarray, is_mask: bool, place: str) -> UserError:
    """Return the error for a row of a weight or a mask that `bad_weight` found."""
    flat = values.reshape(-1)
    bad = ~np.isin(flat, (0, 1)) if is_mask else ~(np.isfinite(flat) & (flat >= 0))
    return UserError(
        f"a {'mask' if is_mask else 'weight'} has a value that it cannot have: {place}",
        found=f"{flat[bad][0]:g}",
        allowed="0 (does not count) or 1 (counts)" if is_mask else "finite numbers, 0 or more",
    )


def _is_no_token(values: np.ndarray, tokens: int) -> np.ndarray:
    return (values < 0) | (values >= tokens) | (values != np.floor(values))


def _first_true(bad: np.ndarray) -> int:
    rows = bad.any(axis=1)
    return int(np.argmax(rows)) if rows.any() else -1
