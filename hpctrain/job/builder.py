"""`load_builder`: the user's Python function that makes the layers of a model (`model.python`)."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hpctrain.errors import UserError, nearest

_WHERE = "model.python"


def load_builder(spec: str) -> Callable[[tuple[int, ...], int], Any]:
    """Import the function that "file.py:function" names and return it.

    The function is called as `build(input_shape, outputs)`: the shape of one example, without the batch, and the number
    of outputs that the target asks for.  It returns a list of layers or a `Sequential`.  While the file is read, its
    folder is importable, so that it may use modules beside it.  Errors: `UserError` for a missing file or function, and
    for an exception while importing, with the line of the user's file where it happened.
    """
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UserError(f"{_WHERE}: there is no file {path}", found=repr(spec), allowed='"file.py:function"')
    module = _import(path)
    function = getattr(module, name, None)
    if not callable(function):
        known = sorted(key for key, value in vars(module).items() if _is_function_of(module, value))
        guess = nearest(name, known)
        raise UserError(
            f"{_WHERE}: there is no function {name!r} in {path}",
            allowed=known or "a function: def build(input_shape, outputs): ...",
            hint=f"did you mean {guess!r}?" if guess else None,
        )
    return function


def _is_function_of(module: ModuleType, value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__


def _import(path: Path) -> ModuleType:
    """Run the file as a module, afresh each time: in a notebook the user edits it between two runs."""
    folder = str(path.resolve().parent)
    name = f"hpctrain_user_model_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    loading = importlib.util.spec_from_file_location(name, path)
    if loading is None or loading.loader is None:
        raise UserError(f"{_WHERE}: {path} is not a Python file", allowed="a file whose name ends in .py")
    module = importlib.util.module_from_spec(loading)
    sys.modules[name] = module  # before it runs: classes with annotations look themselves up here
    sys.path.insert(0, folder)
    try:
        loading.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{_WHERE}: {path} cannot be imported\n{_own_lines(error, path)}") from None
    finally:
        sys.path.remove(folder)
    return module


def _own_lines(error: Exception, path: Path) -> str:
    """Word an exception with the frames from the user's file on, and none of the import machinery."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(frames) if Path(frame.filename) == path), len(frames))
    text = "".join(traceback.format_list(frames[first:]) + traceback.format_exception_only(error))
    return text.rstrip()
