"""Showing what is in files: tables for people, and the same as JSON values."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpctrain.monitor.terminal import can_draw
from hpctrain.monitor.words import plain
from hpctrain.tools.inspecting.contents import Entry, FileSet
from hpctrain.tools.inspecting.values import Summary

PLAIN_WIDTH = 110  # columns where there is no terminal
_BARS = "▁▂▃▄▅▆▇█"
_SHOWN_CLASSES = 5
_SHOWN_LINKS = 20
_MOST_ROWS = 200  # datasets in a table

Summaries = dict[str, dict[str, Summary]]
"""Summaries by the name of an entry, and within it by what `values.summarise` calls them."""


def open_console(stream: TextIO | None = None, environ: dict[str, str] | None = None) -> Console:
    """Return a console for a stream (default: standard output): without colours and of a fixed width in a pipe."""
    stream = stream or sys.stdout
    environ = dict(os.environ) if environ is None else environ
    screen = stream.isatty() and can_draw(environ)
    width = None if screen else int(environ.get("COLUMNS", "0") or 0) or PLAIN_WIDTH
    return Console(
        file=stream,
        force_terminal=screen,
        color_system="auto" if screen else None,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
    )


def show(console: Console, files: FileSet, summaries: Summaries) -> None:
    """Print a set of files: what is stored, then what the values are like."""
    console.print(Text(title(files), style="bold"))
    entries = files.entries[:_MOST_ROWS]
    if not entries:
        console.print("  no datasets")
    else:
        console.print(_stored(entries))
        rows = [(entry, name, one) for entry in entries for name, one in summaries.get(entry.name, {}).items()]
        if rows:
            console.print(_values(rows))
        if any(one.sampled and one.read for _, _, one in rows):
            console.print(Text("  ~ of a sample, evenly spread: --all reads everything", style="dim"))
    if len(files.entries) > len(entries):
        console.print(f"  ... and {len(files.entries) - len(entries):,} more datasets")
    for name, leads in list(files.links.items())[:_SHOWN_LINKS]:
        console.print(f"  {name} is a link to {leads}")


def title(files: FileSet) -> str:
    """Return names, number and size of files that are alike."""
    first, count = short(files.files[0]), len(files.files)
    size = file_size(files.bytes)
    if count == 1:
        return f"{first}  ({size})"
    looked = f", {files.looked} of them looked at" if files.looked < count else ""
    return f"{first} and {count - 1:,} more like it  ({size} together{looked})"


def short(path: str) -> str:
    """Return a path as it is seen from the current folder, where it is in it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def file_size(count: float) -> str:
    """Return a number of bytes in words: 512 bytes, 1.2 kB, 3.4 MB."""
    if count < 1000:
        return f"{count:,.0f} bytes"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5 or unit == "TB":
            return f"{count:.3g} {unit}"
    return ""


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_edge=False, header_style="dim")
    table.add_column("")
    for name, side in columns:
        table.add_column(name, justify=side, overflow="fold")
    return table


def _stored(entries: Sequence[Entry]) -> Table:
    table = _table(
        ("dataset", "left"), ("shape", "left"), ("type", "left"), ("chunks", "left"), ("filters", "left"),
        ("on disk", "right"), ("ratio", "right"),
    )  # fmt: skip
    for entry in entries:
        filters = Text(", ".join(map(str, entry.filters)) or "-")
        if not entry.readable:
            filters.stylize("bold red")
        table.add_row(
            "",
            Text(entry.name, style="cyan"),
            shape(entry),
            entry.type,
            "x".join(map(str, entry.chunks)) if entry.chunks else ("virtual" if entry.virtual else "-"),
            filters,
            file_size(entry.stored) if not entry.virtual else "-",
            f"{entry.raw / entry.stored:.1f}" if entry.stored and entry.raw else "-",
        )
    return table


def shape(entry: Entry) -> str:
    """Return an entry's shape over all its places: "(100 + 100 + 37, 59)", "1,000 x (32, 32)"."""
    shapes = list(entry.shapes)
    if all(one is None for one in shapes):
        return "empty dataspace"
    if entry.grouped or (len(set(shapes)) == 1 and len(shapes) > 3) or entry.count > len(shapes):
        same = "" if len(set(shapes)) == 1 else " and others"
        return f"{entry.count:,} x {entry.shape}{same}"
    if len(shapes) == 1:
        return str(entry.shape)
    rows = [str(one[0]) if one else "0" for one in shapes]
    first = " + ".join(rows) if len(rows) <= 4 else f"{sum(entry.rows):,} in {len(rows)} files"
    if entry.shape == ():
        return f"{len(rows)} x ()"
    return f"({', '.join([first, *map(str, entry.shape[1:])])}{',' if len(entry.shape) == 1 else ''})"


def _values(rows: Sequence[tuple[Entry, str, Summary]]) -> Table:
    table = _table(
        ("values", "left"), ("min", "right"), ("max", "right"), ("mean", "right"), ("deviation", "right"),
        ("missing", "right"), ("histogram", "left"), ("", "left"),
    )  # fmt: skip
    for entry, name, one in rows:
        label = Text(entry.name + (name if not name.startswith("[") else f" {name}"), style="cyan")
        if one.problem and not one.read:
            table.add_row("", label, "", "", "", "", "", Text(f"not read: {one.problem}", style="bold red"))
            continue
        numbers = [number(value, one.whole) for value in (one.minimum, one.maximum)]
        numbers += [number(value) for value in (one.mean, one.deviation)]
        table.add_row(
            "~" if one.sampled and one.read else "", label, *numbers, lacking(one), bars(one), remark(entry, one)
        )
    return table


def number(value: float, whole: bool = False) -> str:
    """Return a number in four figures, a whole one with all of its digits up to seven; "-" where there is none."""
    if math.isnan(value):
        return "-"
    if whole and abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.4g}"


def lacking(one: Summary) -> str:
    """Return how many values are missing or infinite."""
    parts = [f"{one.missing / one.read:.2%}"] if one.missing else []
    parts += [f"{one.infinite:,} infinite"] if one.infinite else []
    return ", ".join(parts) or "-"


def bars(one: Summary) -> str:
    """Return the histogram in block characters; of classes, a bar for each."""
    counts = list(one.classes.values()) if one.classes and one.distinct is None else list(one.histogram)
    if len(counts) > len(one.histogram or counts) and one.histogram:
        counts = list(one.histogram)
    most = max(counts, default=0)
    return "".join(" " if not count else _BARS[math.ceil(count / most * len(_BARS)) - 1] for count in counts)


def remark(entry: Entry, one: Summary) -> str:
    """Return the balance of classes, the number of different texts, and how stored numbers become values."""
    words = []
    if one.classes and (one.distinct is not None or len(one.classes) > 1):
        words.append(balance(entry, one))
    if entry.packed:
        words.append(", ".join(f"{key} {value:g}" for key, value in entry.packed.items()))
    if one.problem:
        words.append(one.problem)
    return "; ".join(words)


def balance(entry: Entry, one: Summary) -> str:
    """Return the shares of a few classes; of many the least and the largest; nothing where each value is there once."""
    count, total = one.distinct or len(one.classes), one.read - one.missing
    if count == total > 1:
        return "all different" if one.distinct else ""
    if count <= _SHOWN_CLASSES:
        return ", ".join(f"{_class(entry, value)}: {times / total:.1%}" for value, times in one.classes.items())
    least, most = (f"{times / total:.1%}" for times in (min(one.classes.values()), max(one.classes.values())))
    if count > len(one.classes):
        return f"{count:,} values, at most {most} each"
    return f"{count:,} values, {most} each" if least == most else f"{count:,} values, {least} to {most} each"


def _class(entry: Entry, value: float | str) -> str:
    if isinstance(value, str):
        return repr(value)
    return entry.names.get(int(value), f"{value:.0f}")


def as_json(sets: Sequence[FileSet], summaries: Sequence[Summaries], data: str | None, problem: str | None) -> str:
    """Return everything as JSON; numbers that are none are null."""
    content = {
        "files": [
            {
                "paths": list(files.files),
                "bytes": files.bytes,
                "looked_at": files.looked,
                "links": files.links,
                "datasets": [_entry(entry, found.get(entry.name, {})) for entry in files.entries],
            }
            for files, found in zip(sets, summaries, strict=True)
        ],
        "data_section": data,
        "data_section_problem": problem,
    }
    return json.dumps(content, indent=1)


def _entry(entry: Entry, summaries: dict[str, Summary]) -> dict[str, Any]:
    return {
        "name": entry.name,
        "count": entry.count,
        "shapes": [None if one is None else list(one) for one in entry.shapes],
        "kind": entry.kind,
        "type": entry.type,
        "chunks": list(entry.chunks) if entry.chunks else None,
        "filters": [
            {"number": step.code, "name": step.name, "level": step.level, "installed": step.installed}
            for step in entry.filters
        ],
        "stored_bytes": entry.stored,
        "raw_bytes": entry.raw,
        "virtual": entry.virtual,
        "grows": entry.grows,
        "attributes": {key: plain(value) for key, value in entry.packed.items()},
        "values": {name or "all": _summary(one) for name, one in summaries.items()},
    }


def _summary(one: Summary) -> dict[str, Any]:
    return {
        "read": one.read,
        "total": one.total,
        "missing": one.missing,
        "infinite": one.infinite,
        "min": plain(one.minimum),
        "max": plain(one.maximum),
        "mean": plain(one.mean),
        "deviation": plain(one.deviation),
        "histogram": list(one.histogram),
        "classes": None
        if one.classes is None
        else [[value if isinstance(value, str) else plain(value), count] for value, count in one.classes.items()],
        "different_texts": one.distinct,
        "problem": one.problem,
    }
