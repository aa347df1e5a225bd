"""`Opened`: the one file that a source has open, its datasets, and whether it is still what it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import h5py

from hpctrain.data.datasets import Found
from hpctrain.data.fields.field import Field
from hpctrain.data.fields.member import Member
from hpctrain.data.files import open_file
from hpctrain.errors import UserError

Stamp = tuple[int, int]
"""When a file was changed last (ns), and its size."""


def stamp_of(path: str) -> Stamp:
    """Return the stamp of a file; `UserError` where it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        raise UserError(f"a data file is gone: {path}", hint="keep the data in place while it is read") from None
    return status.st_mtime_ns, status.st_size


def check_unchanged(path: str, stamp: Stamp) -> None:
    """Raise a `UserError` where a file has another stamp than it had."""
    now = stamp_of(path)
    if now != stamp:
        sizes = f"it had {stamp[1]:,} bytes, now {now[1]:,}" if now[1] != stamp[1] else "it was written to"
        raise UserError(
            f"a data file has changed while it was read: {path}",
            found=sizes,
            allowed="files that nobody writes to while they are read",
            hint="wait until what writes it is done, or train on a copy",
        )


class Opened:
    """An open file.

    path    of the file
    stamp   what it had when it was looked at first; None: it is looked at now
    """

    def __init__(self, path: str, cache_bytes: int, stamp: Stamp | None = None) -> None:
        self.path = path
        self.stamp = stamp or stamp_of(path)
        check_unchanged(path, self.stamp)
        self.file: h5py.File = open_file(path, cache_bytes)
        self._members: dict[str, list[Member]] = {}
        self._group = ""

    def members(
        self,
        field: Field,
        group: str,
        make: Callable[[Sequence[Found]], list[Member]],
        check: Callable[[Sequence[Member]], None],
    ) -> list[Member]:
        """Return the members of a field in the file or a group of it, made by `make`, then looked at by `check`."""
        if group != self._group:
            self._members, self._group = {}, group
        if field.key not in self._members:
            root = self.file[group] if group else self.file
            found = make(field.find(root, several=True))
            check(found)
            self._members[field.key] = found
        return self._members[field.key]

    def close(self) -> None:
        """Close the file."""
        self._members = {}
        self.file.close()

    def finish(self) -> None:
        """Close the file; `UserError` where it has changed since it was looked at."""
        self.close()
        check_unchanged(self.path, self.stamp)
