"""Families of parts (layers, losses, optimizers, collectives, ...) by name.

A family is a table `name -> "module:Class"` that stands in its package's `__init__`: a new part is one file and one
line there.  Classes are imported when first asked for, so that a job loads only what it uses.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from hpctrain.errors import unknown_name

_FAMILIES: dict[str, Registry] = {}


def family(kind: str) -> Registry:
    """Return the family of a kind: for a part that is made of others and cannot import the table that it stands in."""
    return _FAMILIES[kind]


class Registry:
    """One family of parts; `kind` is the word for one of them in messages ("layer")."""

    def __init__(self, kind: str, entries: dict[str, str | type]) -> None:
        self.kind = kind
        _FAMILIES[kind] = self
        self._entries: dict[str, str | type] = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def get(self, name: str) -> type:
        """Return the class registered under a name; an unknown name is a `UserError` that lists the known."""
        if name not in self._entries:
            raise unknown_name(self.kind, str(name), self)
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self._entries[name] = getattr(importlib.import_module(module), attribute)
        return entry

    def register(self, name: str, part: type) -> type:
        """Add a class of the user's own under a new name and return it (usable as `family.register("x", X)`)."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered already")
        self._entries[name] = part
        return part

    def name_of(self, part: type) -> str:
        """Return the name under which a class is registered."""
        address = f"{part.__module__}:{part.__qualname__}"
        for name, entry in self._entries.items():
            if entry is part or entry == address:
                return name
        raise ValueError(f"{part.__name__} is not a registered {self.kind}")
