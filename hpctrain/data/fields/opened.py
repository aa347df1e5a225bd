"""`Opened`: a file that a source has open, its datasets; `Stamp`: whether it is still what it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import h5py

from hpctrain.data.datasets import Found
from hpctrain.data.fields.field import Field
from hpctrain.data.fields.member import Member
from hpctrain.data.files import check_file, open_file
from hpctrain.errors import UserError


@dataclass(frozen=True)
class Stamp:
    """What a file was when it was looked at, so that a change is noticed.

    changed_ns, size  when it was changed last, and its bytes
    others            of other files, in which numbers stand that are read through this one
    """

    path: str
    changed_ns: int
    size: int
    others: tuple[Stamp, ...] = ()

    @classmethod
    def of(cls, path: str) -> Stamp:
        """Return the stamp of a file; `UserError` where it is gone."""
        try:
            status = os.stat(path)
        except OSError:
            raise UserError(f"a data file is gone: {path}", hint="keep the data in place while it is read") from None
        return cls(path, status.st_mtime_ns, status.st_size)

    def with_others(self, paths: Iterable[str]) -> Stamp:
        """Return the stamp with other files in it, as they are now, where they are not in it yet."""
        known = {other.path for other in self.others}
        new = tuple(Stamp.of(path) for path in dict.fromkeys(paths) if path not in known and path != self.path)
        return replace(self, others=self.others + new) if new else self

    def check(self) -> None:
        """Raise a `UserError` where a file is not what it was."""
        now = Stamp.of(self.path)
        if (now.changed_ns, now.size) != (self.changed_ns, self.size):
            sizes = f"it had {self.size:,} bytes, now {now.size:,}" if now.size != self.size else "it was written to"
            raise UserError(
                f"a data file has changed while it was read: {self.path}",
                found=sizes,
                allowed="files that nobody writes to while they are read",
                hint="wait until what writes it is done, or train on a copy",
            )
        for other in self.others:
            other.check()


class Opened:
    """An open file.

    path    of the file
    stamp   what it was when it was looked at first; None: it is looked at now
    """

    def __init__(self, path: str, cache_bytes: int, stamp: Stamp | None = None) -> None:
        self.path = path
        if stamp is not None:
            stamp.check()
        elif not os.path.exists(path):
            check_file(path)  # says why
        self.stamp = stamp or Stamp.of(path)
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
            datasets = field.find(root, several=True)
            self.watch(datasets)
            found = make(datasets)
            check(found)
            self._members[field.key] = found
        return self._members[field.key]

    def watch(self, datasets: Iterable[Found]) -> None:
        """Look at the other files in which datasets' numbers stand: they must not change either."""
        self.stamp = self.stamp.with_others(path for found in datasets for path in found.behind)

    def close(self) -> None:
        """Close the file."""
        self._members = {}
        self.file.close()

    def finish(self) -> None:
        """Close the file; `UserError` where it has changed since it was looked at."""
        self.close()
        self.stamp.check()
