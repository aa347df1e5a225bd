"""The verb `evaluate`: a run's metrics as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.comm.group import Group


def command(run_dir: Path, data: Sequence[str] | None, part: str) -> int:
    """Evaluate on all ranks, print the metrics on rank 0 and return the exit code."""
    from hpctrain.run import launch

    def evaluate(group: Group) -> None:
        metrics = launch.evaluate(run_dir, data=data, part=part, group=group)
        if group.rank == 0:
            print(table(f"{run_dir} on {', '.join(data) if data else f'its {part} part'}", metrics), flush=True)

    return launch.command(evaluate)


def table(title: str, values: Mapping[str, Any]) -> str:
    """Return names and values in two columns under a title, worded as at the end of a run; a matrix line by line."""
    from hpctrain.monitor.words import metric

    width = max(map(len, values), default=0)
    lines = [title]
    for name, value in values.items():
        cells = value if isinstance(value, list) else [[value]]
        words = [[metric(name, cell) if isinstance(cell, float) else str(cell) for cell in row] for row in cells]
        column = max(len(word) for row in words for word in row) if isinstance(value, list) else 0
        for index, row in enumerate(words):
            lines.append(f"  {name if index == 0 else '':<{width}}  {' '.join(word.rjust(column) for word in row)}")
    return "\n".join(lines)
