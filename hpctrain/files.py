"""Writing files so that a reader never sees half of one: a temporary name, synced, renamed.  Imports `errors` alone."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from hpctrain.errors import UserError

_TEMPORARY = ".*.tmp"


def atomic_write(path: str | Path, write: Callable[[Path], object]) -> None:
    """Make a file whole or not at all: `write(temporary)` fills it under another name in the same folder.

    The temporary file is synced to disk, renamed over `path`, and the folder is synced, so that after a power cut
    either the old or the new content is there.  When anything fails, the temporary file is removed and an old file
    stays as it was.

    Raises:
        UserError: the system refused (no space, no permission, no folder): names the file and the reason.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def atomic_text(path: str | Path, text: str) -> None:
    """Write a text file (UTF-8) whole or not at all; errors as in `atomic_write`."""
    atomic_write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def cannot_write(path: str | Path, error: OSError) -> UserError:
    """Word the system's refusal to write a file or folder for a person."""
    hint = "make room there (`df -h`, `quota`)" if is_full(error) else "check the path and your permissions there"
    return UserError(f"cannot write {path}", found=reason(error), hint=f"{hint}, or choose another folder")


def is_full(error: OSError) -> bool:
    """Return whether a write failed for want of space (disk, quota or file size limit)."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reason(error: OSError) -> str:
    """Return the system's own words for an error, without the library's decoration around them."""
    return os.strerror(error.errno) if error.errno else str(error)


def sync(path: Path) -> None:
    """Wait until a file's content is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on disk; file systems that cannot sync a folder are let off."""
    with contextlib.suppress(OSError):
        sync(folder)


def sweep_temporary(folder: Path) -> None:
    """Remove what killed writers left in a folder.  Only for a folder that has no other writer now."""
    for path in folder.glob(_TEMPORARY):
        with contextlib.suppress(OSError):
            path.unlink()
