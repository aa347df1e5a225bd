"""Writing a guess as a job file, with comments that say why, and as the section `[data]` alone."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from hpctrain.data.manifest import MANIFEST, Manifest
from hpctrain.tools.guessing.guess import Guess
from hpctrain.tools.guessing.inputs import toml
from hpctrain.tools.guessing.network import choose_network, epochs, global_batch, split
from hpctrain.version import __version__

_FEW_FILES = 6
_MOST_LEFT_OUT = 12
_COLUMN = 40  # where comments begin, if the line leaves room
_WIDTH = 112


def data_section(found: Guess, absolute: bool = True) -> str:
    """Return `[data]` alone, with comments."""
    return "\n".join(_data(found, absolute)) + "\n"


def job_text(found: Guess) -> str:
    """Return a whole job file."""
    network = choose_network(found)
    target = f"{found.classes} classes" if found.target_kind == "class" else f"{found.target_width} real numbers"
    lines = [
        f"# A job guessed by hpctrain {__version__}: {found.rows:,} examples of shape {found.input_shape}, {target}.",
        "# Check what it says; then   mpirun -n 4 python -m hpctrain train THIS-FILE",
        "# docs/job-file.md explains every key; `python -m hpctrain job` prints them all.",
        "",
        *_data(found, True),
        "",
        "[model]",
        *_comment(network.why),
        *network.lines,
    ]
    lines += [f"# or: {other}" for other in network.others]
    if found.as_real:
        lines += [
            "",
            "[loss]",
            _with_comment('name = "mse"', "the targets are whole numbers, but too many, or negative, for classes"),
        ]
    lines += [
        "",
        "[optimizer]",
        'name = "adam"',
        "lr = 0.001",
        "",
        "[run]",
        f"epochs = {epochs(found.rows)}",
        _with_comment(f"global_batch = {global_batch(found.rows)}", "examples an update, over all ranks together"),
    ]
    return "\n".join(lines) + "\n"


def _data(found: Guess, absolute: bool) -> list[str]:
    lines = ["[data]", _files_line("files", found.files, absolute, _count(found.files))]
    for name, why in list(found.left_out.items())[:_MOST_LEFT_OUT]:
        lines += _comment(f"left out: {name}: {why}")
    if len(found.left_out) > _MOST_LEFT_OUT:
        lines += _comment(f"... and {len(found.left_out) - _MOST_LEFT_OUT} more are left out")
    for key, value in found.data.items():
        lines.append(_with_comment(f"{key} = {toml(value)}", found.why.get(key, "")))
    for key, files in (("validation_files", found.validation_files), ("test_files", found.test_files)):
        if files:
            lines.append(_files_line(key, files, absolute, "their names say so"))
    fractions, why = split(found)
    lines.append(_with_comment(f"split = {toml(fractions)}", why) if fractions else f"# {why}")
    if found.others:
        lines.append("# Other datasets that could be chosen:")
        lines += [line for other in found.others[:8] for line in _comment(f"    {other}")]
        if len(found.others) > 8:
            lines.append(f"#     ... and {len(found.others) - 8} more")
    return lines


def _count(files: list[str]) -> str:
    return "" if len(files) == 1 else f"{len(files)} files, in this order"


def _files(files: list[str], absolute: bool) -> str | list[str]:
    """Return files as a path, a pattern that means just these, or a list."""
    paths = [os.path.abspath(path) for path in files]
    if not absolute and all(Path(path).is_relative_to(Path.cwd()) for path in paths):
        paths = [os.path.relpath(path) for path in paths]
    folders = {str(Path(path).parent) for path in paths}
    if len(folders) == 1 and (Path(paths[0]).parent / MANIFEST).is_file():
        folder = Path(paths[0]).parent
        if [os.path.abspath(path) for path in Manifest.load(folder).files] == [os.path.abspath(path) for path in paths]:
            return str(folder)
    stem = os.path.commonprefix([Path(path).name for path in paths])
    endings = {Path(path).suffix for path in paths}
    if len(paths) == 1:
        return paths[0]
    if len(paths) > _FEW_FILES and len(folders) == len(endings) == 1:
        folder, ending = glob.escape(folders.pop()), endings.pop()
        for start in (stem.rstrip("0123456789"), stem):
            pattern = os.path.join(folder, f"{glob.escape(start)}*{ending}")
            if sorted(glob.glob(pattern)) == paths:
                return pattern
    return paths


def _files_line(key: str, files: list[str], absolute: bool, comment: str) -> str:
    """Return a line with files, or a list of several lines."""
    named = _files(files, absolute)
    line = f"{key} = {toml(named)}"
    if isinstance(named, str) or len(line) <= _WIDTH:
        return _with_comment(line, comment)
    return "\n".join([_with_comment(f"{key} = [", comment), *(f"    {toml(path)}," for path in named), "]"])


def _with_comment(line: str, comment: str) -> str:
    """Put a comment behind a line, or before it where it is long."""
    if not comment:
        return line
    one_line = f"{line:<{_COLUMN}}  # {comment}"
    return one_line if len(one_line) <= _WIDTH else "\n".join([*_comment(comment), line])


def _comment(text: str) -> list[str]:
    """Return a comment of as many lines as it takes."""
    lines, current = [], "#"
    indent = " " * (len(text) - len(text.lstrip()))
    for word in text.split():
        if len(current) + len(word) + 1 > _WIDTH and current != "#":
            lines.append(current)
            current = f"#{indent}"
        current += f"{indent if current == '#' else ''} {word}"
    return [*lines, current]
