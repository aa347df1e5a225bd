"""`Part`: the checked, frozen options of a job section or of a registered part, and how a bad value is worded.

A registered part (layer, loss, optimizer, ...) *is* its options: `Sgd(lr=0.1)` in Python and
`optimizer = {name = "sgd", lr = 0.1}` in TOML make the same object.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pydantic

from hpctrain.errors import UserError, nearest
from hpctrain.registry import Registry

P = TypeVar("P", bound="Part")


class Part(pydantic.BaseModel):
    """Base of everything that a job file configures: immutable, unknown keys refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @classmethod
    def checked(cls: type[P], options: dict[str, Any], where: str) -> P:
        """Build from a mapping; `where` is the dotted key of the section, used in the error ("optimizer")."""
        try:
            return cls(**options)
        except pydantic.ValidationError as error:
            raise user_error(error, cls, where) from None


def user_error(error: pydantic.ValidationError, part: type[pydantic.BaseModel], where: str) -> UserError:
    """Turn pydantic's findings into one `UserError` that names each dotted key, its value and what is allowed."""
    lines = [_finding(item, part, where) for item in error.errors(include_url=False)]
    return UserError("\n".join(lines))


def _finding(item: dict[str, Any], part: type[pydantic.BaseModel], where: str) -> str:
    path = [str(step) for step in item["loc"]]
    key = ".".join([where, *path]) if where else ".".join(path)
    if item["type"] == "extra_forbidden":
        known = known_keys(part, path[:-1])
        guess = nearest(path[-1], known)
        ending = f"did you mean {guess!r}?" if guess else f"known keys: {', '.join(known)}"
        return f"unknown key {key!r}: {ending}"
    if item["type"] == "missing":
        return f"{key} is missing and has no default"
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause.message
    message = item["msg"][:1].lower() + item["msg"][1:]
    return f"{key} = {item['input']!r}: {message.removeprefix('value error, ')}"


def known_keys(part: type[pydantic.BaseModel], path: list[str]) -> list[str]:
    """Return the keys that a (nested) section knows; `path` leads from `part` to the section."""
    for step in path:
        field = part.model_fields.get(step)
        inner = _section_in(field.annotation) if field else None
        if inner is None:
            return []
        part = inner
    return list(part.model_fields)


def _section_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, pydantic.BaseModel):
            return candidate
    return None


def part_from(family: Registry, spec: Any, where: str, key: str = "name") -> Any:
    """Build a registered part from a job file's value.

    `spec` is a part already, a bare name (`"relu"`), or a mapping whose entry `key` ("name", for layers "type") names the
    part and whose other entries are its options.
    """
    if isinstance(spec, Part):
        return spec
    if isinstance(spec, str):
        spec = {key: spec}
    if not isinstance(spec, dict) or not isinstance(spec.get(key), str):
        raise UserError(
            f"{where} must name a {family.kind}",
            found=repr(spec),
            allowed=f'"NAME" or {{{key} = "NAME", ...}} with NAME one of {", ".join(family)}',
        )
    options = {name: value for name, value in spec.items() if name != key}
    return family.get(spec[key]).checked(options, where)


def spec_of(family: Registry, part: Part, key: str = "name") -> dict[str, Any]:
    """Return the mapping that `part_from` reads back; options that are None are left out (TOML has no null)."""
    options = part.model_dump(mode="json", exclude_none=True)
    return {key: family.name_of(type(part)), **options}
