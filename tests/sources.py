"""Writing small files for tests of what a source reads, and asking for its refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from hpctrain.errors import UserError


def write(path: Path, attributes: dict[str, dict[str, Any]] | None = None, **datasets: Any) -> str:
    """Write datasets (`__` in a name is a slash; a dict holds h5py's options), and attributes by dataset."""
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            options = value if isinstance(value, dict) else {"data": value}
            file.create_dataset(name.replace("__", "/"), **options)
        for name, values in (attributes or {}).items():
            file[name].attrs.update(values)
    return str(path)


def refused(match: str, action: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return the message of the `UserError` that a call raises, in which `match` is found."""
    with pytest.raises(UserError, match=match) as caught:
        action(*args, **options)
    return caught.value.message
