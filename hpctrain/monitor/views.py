"""What the console draws: the bar, the summary at the start, the one at the end.  Reports in, `rich` displays out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from hpctrain.monitor.base import EvaluationReport, RunInfo
from hpctrain.monitor.words import clock, compact, count, counted, is_table, metric, seconds

_WORTH_SAYING = 0.05  # of the time of training
_MOST_CLASSES = 20  # of a confusion matrix on the console


def open_progress(console: Console, info: RunInfo) -> Progress:
    """Return the live bar of a run, not yet started; it is drawn only when told, without a thread of its own."""
    progress = Progress(
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}", style="bold"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[step]}/{task.fields[steps]}"),
        TextColumn("loss {task.fields[loss]}", style="cyan"),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[left]} left", style="dim"),
        console=console,
        auto_refresh=False,
        expand=True,
    )
    progress.add_task(
        "",
        total=info.total_steps,
        completed=info.first_step,
        epoch=info.first_step // max(1, info.steps_per_epoch) + 1,
        epochs=total_epochs(info),
        step=count(info.first_step),
        steps=count(info.total_steps),
        loss="-",
        speed="- examples/s",
        left=clock(None),
    )
    return progress


def total_epochs(info: RunInfo | None) -> int | None:
    """Return the number of epochs that a run has, the last perhaps not whole; None before it is known."""
    return None if info is None else -(-info.total_steps // max(1, info.steps_per_epoch))


def start_summary(info: RunInfo, framed: bool) -> RenderableType:
    """Return the display of what will run: in a frame for a terminal, as plain lines for a file."""
    rows = _facts(info)
    if not framed:
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
    grid = Table.grid(padding=(0, 2))
    for name, value in rows[1:]:
        grid.add_row(Text(name, style="dim"), Text(value))
    title = Text(info.job_name, style="bold")
    return Panel(grid, title=title, title_align="left", expand=False, border_style="cyan")


def _facts(info: RunInfo) -> list[tuple[str, str]]:
    parts = {"train": info.train_examples, "validation": info.validation_examples, "test": info.test_examples}
    listed = [
        f"{count(number)} {'training' if part == 'train' else part}"
        + (f" ({count(info.dropped[part])} dropped)" if info.dropped.get(part) else "")
        for part, number in parts.items()
        if number or part == "train"
    ]
    examples = " examples" if len(listed) > 1 or info.train_examples != 1 else " example"
    rows = [
        ("job", info.job_name),
        ("ranks", f"{counted(info.world_size, 'rank')} on {counted(info.nodes, 'node')}"),
        ("model", counted(info.parameters, "parameter")),
        ("data", ", ".join(listed) + examples),
        ("steps", f"{count(info.total_steps)}: {_epochs(info)}, global batch {count(info.global_batch)}"),
        ("strategy", info.strategy),
        ("folder", str(info.run_dir)),
    ]
    if info.first_step:
        rows.insert(5, ("resumed", f"after step {count(info.first_step)}"))
    return rows


def end_summary(
    summary: dict[str, Any], info: RunInfo | None, evaluations: Mapping[str, EvaluationReport]
) -> RenderableType:
    """Return the display of a run's results: the metrics as a table, times, and where the files are.

    `summary` is what goes into summary.json, `evaluations` the last report of each part.
    """
    parts: list[RenderableType] = []
    columns = {"test": summary.get("test"), "mean predictor": summary.get("test_mean_predictor")}
    if "validation" in evaluations:
        columns = {"validation": evaluations["validation"].metrics, **columns}
    columns = {title: values for title, values in columns.items() if isinstance(values, dict) and values}
    if columns:
        parts.append(_metrics_table(columns, {part: report.examples for part, report in evaluations.items()}))
        parts += [
            matrix(f"{name}, {title}", values[name])
            for title, values in columns.items()
            for name in values
            if is_table(values[name])
        ]
    finished = "finished" if summary.get("finished", True) else "stopped"
    before = summary.get("resumed_from_step") or 0
    steps = counted(summary.get("steps"), "step") + (
        f", {count(summary['steps'] - before)} of them now," if before else ""
    )
    times = [f"{finished} after {steps} in {seconds(summary.get('wall_s'))}"]
    if summary.get("compile_s"):
        times.append(f"compiling {seconds(summary['compile_s'])}")
    if summary.get("examples_per_s") is not None:
        times.append(f"{compact(summary['examples_per_s'])} examples/s")
    if (summary.get("data_wait_fraction") or 0) >= _WORTH_SAYING:
        times.append(f"{summary['data_wait_fraction']:.0%} of the time waiting for data")
    if summary.get("world_size") != 1 and (summary.get("reduce_fraction") or 0) >= _WORTH_SAYING:
        times.append(f"{summary['reduce_fraction']:.0%} summing gradients")
    parts.append(Text(", ".join(times)))
    if info is not None:
        parts.append(Text.assemble("results in ", (str(info.run_dir), "bold")))
    return Group(*parts)


def matrix(title: str, rows: list[list[float]]) -> RenderableType:
    """Return the display of a confusion matrix: what was (rows) and what was said (columns), in at most 20 classes."""
    if len(rows) > _MOST_CLASSES:
        return Text(f"{title}: {len(rows)} classes, in summary.json")
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("class")
    for label in range(len(rows)):
        table.add_column(str(label), justify="right")
    for label, row in enumerate(rows):
        table.add_row(str(label), *(f"{value:,.6g}" for value in row))
    return Group(Text(title, style="bold"), table)


def _metrics_table(columns: dict[str, dict[str, float]], examples: dict[str, int]) -> Table:
    table = Table("", box=box.ROUNDED, border_style="cyan")
    for title in columns:
        table.add_column(title, justify="right", style="bold" if title == "test" else "")
    names = dict.fromkeys(name for values in columns.values() for name in values if not is_table(values[name]))
    for name in names:
        cells = [metric(name, values[name]) if name in values else "" for values in columns.values()]
        table.add_row(Text(str(name)), *cells)
    if any(title in examples for title in columns):
        table.add_row(Text("examples", style="dim"), *(count(examples[t]) if t in examples else "" for t in columns))
    return table


def _epochs(info: RunInfo) -> str:
    whole, rest = divmod(info.total_steps, max(1, info.steps_per_epoch))
    number = f"{info.total_steps / max(1, info.steps_per_epoch):.2f}" if rest else count(whole)
    return f"{number} epoch{'s' * (number != '1')} of {count(info.steps_per_epoch)}"
