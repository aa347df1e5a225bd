"""`Part`: the checked, frozen options of a job section or of a registered part, and how a bad value is worded.

A registered part (layer, loss, optimizer, ...) *is* its options: `Sgd(lr=0.1)` in Python and
`optimizer = {name = "sgd", lr = 0.1}` in TOML make the same object.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar, get_args

import pydantic

from hpctrain.errors import UserError, nearest, unknown_name
from hpctrain.memory import parse_bytes
from hpctrain.registry import Registry

P = TypeVar("P", bound="Part")

# How pydantic names the members of a union in the place of a finding: "str", "constrained-int", "tuple[str, ...]",
# "function-before[...]".
_UNION_MEMBER = re.compile(r"(constrained-)?(str|int|float)|bool|none|.*\[.*")

# pydantic's words and what a job file's author calls the same.
_WORDS = {
    "input should be": "must be",
    "a valid string": "text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
    "a valid list": "a list",
}


def _read_bytes(value: Any) -> Any:
    parse_bytes(value)
    return value


Bytes = Annotated[str, pydantic.BeforeValidator(_read_bytes)]  # "64 MB": `memory.parse_bytes` makes it a number


class Part(pydantic.BaseModel):
    """Base of everything that a job file configures: immutable, unknown keys refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Refuse true, false and "3" where numbers are wanted; pydantic takes them for 1, 0 and 3."""
        items = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(item, bool) or _is_quoted_number(item) for item in items):
            types = _types_in(cls.model_fields[info.field_name].annotation)
            if not types & {bool, str} and types & {int, float}:
                number = "a number" if float in types else "a whole number"
                quotes = ", without quotes" if any(map(_is_quoted_number, items)) else ""
                raise ValueError(f"must be {number}{quotes}" if items[0] is value else f"each must be {number}{quotes}")
        return value

    @classmethod
    def checked(cls: type[P], options: dict[str, Any], where: str) -> P:
        """Build from a mapping; `where` is the dotted key of the section, used in the error ("optimizer")."""
        try:
            return cls(**options)
        except pydantic.ValidationError as error:
            raise user_error(error, cls, where) from None


def user_error(error: pydantic.ValidationError, part: type[pydantic.BaseModel], where: str) -> UserError:
    """Turn pydantic's findings into one `UserError` that names each dotted key, its value and what is allowed."""
    lines: list[str] = []
    alternatives: dict[str, dict[str, list[str]]] = {}  # a value that fits no member of a union has a finding for each
    for item in error.errors(include_url=False):
        path = _path(item, part)
        key = ".".join([where, *path] if where else path)
        if item["type"] == "extra_forbidden":
            known = known_keys(part, path[:-1])
            guess = nearest(path[-1], known)
            ending = f"did you mean {guess!r}?" if guess else f"known keys: {', '.join(known)}"
            lines.append(f"unknown key {key!r}: {ending}")
        elif item["type"] == "missing":
            lines.append(f"{key} is missing and has no default")
        else:
            found = f"{key} = {item['input']!r}" if key else repr(item["input"])
            alternatives.setdefault(key, {}).setdefault(found, []).append(_wording(item))
    for key, findings in alternatives.items():
        # A finding about an item says more than those about the list that holds it.
        if not any(other.startswith(f"{key}.") for other in alternatives):
            lines += [f"{found}: {', or '.join(messages)}" for found, messages in findings.items()]
    return UserError("\n".join(lines))


def _is_quoted_number(value: Any) -> bool:
    try:
        float(value if isinstance(value, str) else "")
    except ValueError:
        return False
    return True


def _path(item: Any, part: type[pydantic.BaseModel]) -> list[str]:
    """Return the keys that lead to a finding, without the names of union members that pydantic puts between them."""
    path: list[str] = []
    for step in item["loc"]:
        is_key = isinstance(step, int) or step in known_keys(part, path) or item["type"] == "extra_forbidden"
        if is_key or not _UNION_MEMBER.fullmatch(step):
            path.append(str(step))
    return path


def _wording(item: Any) -> str:
    if item["type"] in ("model_type", "dict_type"):
        return "must be a section (a table of keys)"
    message = item["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours, 1)
    return message


def known_keys(part: type[pydantic.BaseModel], path: list[str]) -> list[str]:
    """Return the keys that a (nested) section knows; `path` leads from `part` to the section."""
    for step in path:
        if step.isdigit():
            continue  # an item of a list: its section is that of the list
        field = part.model_fields.get(step)
        inner = _section_in(field.annotation) if field else None
        if inner is None:
            return []
        part = inner
    return list(part.model_fields)


def _types_in(annotation: Any) -> set[Any]:
    """Return the plain types that an annotation is made of: {int, NoneType} for `list[int] | None`."""
    if inner := get_args(annotation):
        return set().union(*(_types_in(item) for item in inner))
    return {annotation} if isinstance(annotation, type) else set()


def _section_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    found = (_section_in(inner) for inner in get_args(annotation))
    return next((section for section in found if section is not None), None)


def part_from(family: Registry, spec: Any, where: str, key: str = "name") -> Any:
    """Build a registered part from a job file's value.

    `spec` is a part already, a bare name (`"relu"`), or a mapping whose entry `key` ("name", for layers "type") names
    the part and whose other entries are its options.  `where` is the dotted key of the value, for errors.
    """
    if isinstance(spec, Part):
        return spec
    if isinstance(spec, str):
        spec = {key: spec}
    if not isinstance(spec, dict) or not isinstance(spec.get(key), str):
        raise UserError(
            f"{where} must name a known {family.kind}",
            found=repr(spec),
            allowed=f'"NAME" or {{{key} = "NAME", ...}} with NAME one of {", ".join(family)}',
        )
    if spec[key] not in family:
        raise unknown_name(family.kind, spec[key], family, where if where != family.kind else "")
    options = {name: value for name, value in spec.items() if name != key}
    return family.get(spec[key]).checked(options, where)


def spec_of(family: Registry, part: Part, key: str = "name") -> dict[str, Any]:
    """Return the mapping that `part_from` reads back; options that are None are left out (TOML has no null)."""
    options = part.model_dump(mode="json", exclude_none=True)
    return {key: family.name_of(type(part)), **options}
