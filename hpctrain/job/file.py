"""Job files as text: reading TOML with errors that point at the line, writing it, and the paths inside.

Knows the keys that hold paths, but nothing else of what a job means: `sections.py` does.
"""

from __future__ import annotations

import os
import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from hpctrain.errors import UserError

BUILTIN = "builtin:"  # what stands here instead of a path names data that is shipped with hpctrain
_PATH_KEYS = ("files", "validation_files", "test_files")
_LISTS_WITH_FILES = ("prepare", "prepare_target")  # steps may name a file of statistics
_TEMPLATE_HINT = "`python -m hpctrain job > job.toml` writes a commented job file to start from"


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a job file; a file that cannot be read and a mistake in the TOML are `UserError`s."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a job file", hint=f"name the file, such as {path / 'job.toml'}")
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise UserError(f"there is no job file {path}", hint=_TEMPLATE_HINT) from None
    except OSError as error:
        raise UserError(f"cannot read the job file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a job file: it is not text", hint=_TEMPLATE_HINT) from None
    return parse_toml(text, str(path))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML; a mistake is a `UserError` with the file (`name`), the line and the column, and what stands there."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        lines = text.split("\n")
        message, place = str(error), re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line, column = (int(place[1]), int(place[2])) if place else (len(lines), len(lines[-1]) + 1)
        message = re.sub(r" \(at [^()]*\)$", "", message)
        raise UserError(
            f"{name}, line {line}, column {column}: {message[:1].lower()}{message[1:]}",
            found=lines[line - 1].strip() or "the end of the file",
            allowed='TOML: key = value, with text in quotes: type = "dense"',
        ) from None


def write_toml(document: dict[str, Any], comment: str) -> str:
    """Return a document as TOML under one line of comment."""
    return f"# {comment}\n\n" + tomli_w.dumps(document)


def absolute(path: str, base: Path | None = None) -> str:
    """Return a path made absolute against `base` (default: the current directory); "builtin:..." stays as it is."""
    if path.startswith(BUILTIN):
        return path
    return os.path.abspath(os.path.join(base or os.getcwd(), os.path.expanduser(path)))


def absolute_staged(path: str, base: Path | None = None) -> str:
    """Return `data.staged` made absolute as `absolute` does, but for what only each node can tell.

    "~" and a variable that it begins with stand for something else on every node: they are put in there.
    """
    return path if path.startswith(("~", "$")) else absolute(path, base)


def absolute_builder(spec: str, base: Path | None = None) -> str:
    """Return a `model.python` value, "file.py:function", with the file's path made absolute."""
    file, colon, function = spec.rpartition(":")
    if not colon or not file or not function.isidentifier():
        raise ValueError('must be a file and the name of a function in it: "my_model.py:build"')
    return f"{absolute(file, base)}:{function}"


def with_absolute_paths(document: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return a job document whose paths are absolute; what is no path is left for the checks that come later."""
    document = dict(document)
    if isinstance(document.get("data"), dict):
        data = document["data"] = dict(document["data"])
        for key in _PATH_KEYS:
            if isinstance(data.get(key), str):
                data[key] = absolute(data[key], base)
            elif isinstance(data.get(key), list):
                data[key] = [absolute(item, base) if isinstance(item, str) else item for item in data[key]]
        if isinstance(data.get("staged"), str):
            data["staged"] = absolute_staged(data["staged"], base)
        for key in _LISTS_WITH_FILES:
            if isinstance(data.get(key), list):
                data[key] = [_with_absolute_file(item, base) for item in data[key]]
    if isinstance(document.get("model"), dict) and isinstance(document["model"].get("python"), str):
        model = document["model"] = dict(document["model"])
        with suppress(ValueError):  # checked again, and worded, by the model section
            model["python"] = absolute_builder(model["python"], base)
    return document


def _with_absolute_file(item: Any, base: Path) -> Any:
    if isinstance(item, dict) and isinstance(item.get("file"), str):
        return {**item, "file": absolute(item["file"], base)}
    return item
