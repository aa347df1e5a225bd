"""The file of a generated module: written once under a hash of its text and of its kernels, and loaded.

It is plain source in the kernel cache's folder, so that it can be read and that numba can cache it.  The hash covers
the sources of every kernel that it calls, so that a kernel edited in a user's file is noticed too (those of hpctrain
name the cache folder itself).
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from hpctrain.kernels.jit import cache_dir, kernel
from hpctrain.kernels.views import keep_apart, rows_of, view, view_of_either


def store(text: str, kernels: dict[str, Callable]) -> Path:
    """Write the module's file, unless it is there, and return its path."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(kernels):
        function = getattr(kernels[name], "py_func", kernels[name])
        source = Path(inspect.getsourcefile(function) or "")
        digest.update(f"{name} of {_module_name(function)}".encode())
        digest.update(source.read_bytes() if source.is_file() else b"")
    folder = cache_dir() / "generated"
    folder.mkdir(exist_ok=True)
    path = folder / f"model_{digest.hexdigest()[:20]}.py"
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(text)
        # The cached machine code is tied to this file's time stamp: the first writer's file must stay.
        try:
            os.link(temporary, path)
        except OSError:
            if not path.exists():
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def _module_name(function: Callable) -> str:
    """Return the name of a kernel's module, under which numba looks it up when it loads what it cached.

    A module that nobody can look up (it is not in `sys.modules`) has a name of this process alone: nothing is reused.
    """
    module = inspect.getmodule(function)
    return module.__name__ if module else f"process {os.getpid()} at {time.time_ns()}"


def load(path: Path, kernels: dict[str, Callable]) -> ModuleType:
    """Return the module of a file that `store` wrote; its kernels are given to it by name."""
    spec = importlib.util.spec_from_file_location(f"hpctrain_generated_{path.stem}", path)
    if spec.name in sys.modules:
        return sys.modules[spec.name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # numba finds the function's module by name when it loads the cached code
    module.__dict__.update(kernels, kernel=kernel, view=view, view_of_either=view_of_either, keep_apart=keep_apart)
    module.__dict__["rows_of"] = rows_of
    spec.loader.exec_module(module)
    return module
