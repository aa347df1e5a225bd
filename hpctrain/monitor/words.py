"""Numbers for people (1,234; 12.3 k; 1:02; 97.2 %) and for strict JSON.  No odd value raises."""

from __future__ import annotations

import math
from typing import Any

_AS_PERCENT = ("accuracy", "balanced_accuracy", "top_k")


def count(value: float | None) -> str:
    """Return a whole number with thousands separated: 1,234."""
    return _guarded(value, lambda number: f"{round(number):,}")


def counted(value: float | None, noun: str) -> str:
    """Return a number of things: 1 step, 2 steps, 1,234 steps."""
    return f"{count(value)} {noun}{'s' * (value != 1)}"


def compact(value: float | None) -> str:
    """Return a number in three figures with a unit prefix: 987, 12.3 k, 4.56 M."""

    def spell(number: float) -> str:
        if abs(number) < 9.995:
            return f"{number:.2g}"
        prefixes = ["", " k", " M", " G", " T"]
        while abs(number) >= 999.5 and len(prefixes) > 1:
            number /= 1000
            prefixes.pop(0)
        places = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 and prefixes[0] else 0
        return f"{number:.{places}f}{prefixes[0]}"

    return _guarded(value, spell)


def clock(seconds: float | None) -> str:
    """Return a time as 0:07, 1:02, 3:04:05 or "2 d 3:04:05"; "-:--" where there is none to tell."""
    if seconds is None or not math.isfinite(seconds):
        return "-:--"
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if not hours:
        return f"{minute}:{second:02d}"
    return (f"{days} d " if days else "") + f"{hour}:{minute:02d}:{second:02d}"


def seconds(value: float | None) -> str:
    """Return a time to two or three figures, a longer one as a clock: "35 ms", "4.2 s", "1:02 min", "1:00:02 h"."""
    if value is not None and 0 <= value < 0.9995:
        return f"{1000 * value:.0f} ms"
    if value is not None and 0 <= value < 59.95:
        return f"{value:.1f} s"
    text = clock(value)
    return text + ("" if "-" in text else {1: " min", 2: " h"}.get(text.count(":"), ""))


def figure(value: float | None) -> str:
    """Return a loss or a metric in four figures: 0.1234, 12.30, 1.200e-07, 12345, nan."""
    if value is None or not math.isfinite(value):
        return _guarded(value, str)
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:#.4g}".rstrip(".")


def is_table(value: Any) -> bool:
    """Whether a metric's value is a table (a confusion matrix), which has no place in a line."""
    return isinstance(value, (list, tuple))


def metric(name: str, value: float | None) -> str:
    """Return a metric's value as people give it: a percentage for accuracies, four figures for others."""
    if is_table(value):
        return f"{len(value)} x {len(value)}"
    if value is not None and math.isfinite(value) and name.startswith(_AS_PERCENT):
        return f"{100 * value:.2f} %"
    return figure(value)


def plain(value: Any) -> Any:
    """Return a value in strict JSON's types: numpy scalars become numbers, NaN and infinity null, the rest text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _guarded(value: float | None, spell: Any) -> str:
    if value is None:
        return "-"
    return spell(value) if math.isfinite(value) else str(float(value))
