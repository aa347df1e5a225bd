"""What target and weights look like in memory, given their fields; whether the parts of an example fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpctrain.data.datasets import Found, type_name
from hpctrain.data.fields.field import Field
from hpctrain.data.fields.member import Member
from hpctrain.errors import UserError


def common_rows(found: Mapping[str, Sequence[Found]], path: str) -> int:
    """Return the number of rows of a file's datasets; 0 too where there is no dataspace at all (a null dataspace).

    found  the datasets of each role's key, in order ("data.input", "data.target", ...)

    `UserError` where a dataset has no axis of rows, or they have different numbers: names all of them.
    """
    for each in (each for members in found.values() for each in members):
        if each.dataset.shape == ():
            raise UserError(
                f"{each.where} has no rows of numbers in {path}",
                found="a single number",
                allowed="shape (rows, ...): the first dimension counts the examples",
                hint='data.examples = "groups" or "files" takes a whole group or file as an example',
            )
    rows = {key: [each.dataset.shape[0] if each.dataset.shape else 0 for each in found[key]] for key in found}
    inputs, targets = rows["data.input"], rows["data.target"]
    everything = [count for counts in rows.values() for count in counts]
    if len(set(everything)) == 1:
        return everything[0]
    listed: list[str] = []
    for key in found:
        for each, count in zip(found[key], rows[key], strict=True):
            size = f"has {count}{'' if listed else ' rows'}" if each.dataset.shape else "is an empty dataspace"
            listed.append(f"{each.path!r} {size}")
    if len({*inputs, *targets}) == 1:
        key = next(key for key in rows if rows[key] != inputs[:1])
        what, allowed = (
            f"{key} does not fit the targets in {path}",
            f"({inputs[0]},): one number a row, or one a position",
        )
    elif len(set(inputs)) == len(set(targets)) == 1:
        less, more = ("targets", "inputs") if targets[0] < inputs[0] else ("inputs", "targets")
        what, allowed = f"there are fewer {less} than {more} in {path}", "as many targets as inputs"
    else:
        what, allowed = f"the datasets have different numbers of rows in {path}", "as many rows in all of them"
    raise UserError(what, found=", ".join(listed), allowed=allowed)


def target_form(field: Field, members: Sequence[Member], kind: str, path: str) -> tuple[int, ...]:
    """Return `RowFormat.target_shape`; `UserError` where the targets are not of a kind, "class" or "real"."""
    types = ", ".join(f"{each.dataset.name!r} {each.dataset.shape} {type_name(each.stored_type)}" for each in members)
    if field.one_hot:
        if kind == "real":
            raise UserError(
                'data.target_encoding = "one_hot" makes class labels, but the loss takes real numbers',
                hint="leave data.target_encoding out, or choose a loss for classes (softmax_cross_entropy)",
            )
        if not field.shape or field.shape[-1] < 2:
            raise UserError(
                'data.target_encoding = "one_hot" needs a column for each class',
                found=f"{types} in {path}",
                allowed="two columns or more along the last axis",
            )
        return field.shape[:-1]
    if kind == "class" and field.kind == "real":
        raise UserError(
            "class labels must be integers",
            found=f"{types} in {path}",
            hint="store the labels as integers, or choose a loss for real targets (mse, mae, huber); "
            'columns of 0 and 1, one a class, are read with data.target_encoding = "one_hot"',
        )
    if kind == "real":
        if any(form.text for form in field.forms):
            raise UserError(
                "text is a class label, but the loss takes real numbers",
                found=f"{types} in {path}",
                hint="choose a loss for classes (softmax_cross_entropy), or other targets",
            )
        return field.shape or (1,)
    return () if field.shape == (1,) else field.shape


def weight_form(
    fields: Mapping[str, Field],
    kind: str,
    target_shape: tuple[int, ...],
    ignore_label: int | None,
    rows: int | None,
    path: str,
) -> tuple[int, ...] | None:
    """Return `RowFormat.weight_shape` for the fields of weights that there are ("weight", "mask").

    rows  of the file, for messages; None where an example is a file or a group
    """
    of_rows = () if rows is None else (rows,)
    if ignore_label is not None and kind == "real":
        raise UserError(
            "data.ignore_label is for class labels, but the targets are real numbers",
            found=f"data.ignore_label = {ignore_label}",
            hint="mark what does not count with data.mask or data.weight",
        )
    found: tuple[int, ...] | None = None if ignore_label is None else target_shape
    for key, field in fields.items():
        if any(form.text for form in field.forms):
            raise UserError(f"data.{key} = {field.name!r} is text in {path}", allowed="numbers")
        shape = () if field.shape == (1,) else field.shape
        fits = shape == () or (shape == target_shape if kind == "class" else shape == target_shape[: len(shape)])
        if not fits or (found and shape and shape != found):
            allowed = f"{of_rows}" + (f" or {(*of_rows, *target_shape)}" if target_shape not in ((), (1,)) else "")
            raise UserError(
                f"data.{key} does not fit the targets in {path}",
                found=f"{field.name!r} has shape {(*of_rows, *shape)}, the targets {(*of_rows, *target_shape)}",
                allowed=f"{allowed}: one number an example, or one a position",
            )
        found = shape or found or ()
    return found
