"""The verb `inspect`: what is in HDF5 files, what the values are like, and the `[data]` that would read them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpctrain.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

TIME_S = 20.0  # for the values of all datasets, unless everything is wanted


def command(files: Sequence[str], columns: bool, everything: bool, json: bool) -> int:
    """Print what is in files on the first rank, and return the exit code."""
    from hpctrain.comm.environment import launched

    if launched().rank != 0:
        return 0
    try:
        inspect(files, columns, everything, json)
    except UserError as error:
        sys.stdout.flush()
        print(f"hpctrain: error: {error.message}", file=sys.stderr, flush=True)
        return 2
    except BrokenPipeError:  # `inspect ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def inspect(
    files: Sequence[str],
    columns: bool = False,
    everything: bool = False,
    json: bool = False,
    console: Console | None = None,
    time_s: float = TIME_S,
) -> None:
    """Print what is in files.

    columns     also each column of datasets (rows, columns)
    everything  read all values, however long it takes; else a sample of what is large
    json        as JSON instead of tables
    console     a `rich` console to print to in place of standard output
    """
    from hpctrain.data.files import expand
    from hpctrain.tools.guessing.choose import guess
    from hpctrain.tools.guessing.job import data_section
    from hpctrain.tools.guessing.survey import Survey
    from hpctrain.tools.inspecting import report
    from hpctrain.tools.inspecting.contents import look
    from hpctrain.tools.inspecting.values import BUDGET_BYTES, Limits
    from hpctrain.tools.saying import Saying

    sets = look(expand([str(path) for path in files], os.getcwd()), everything)
    entries = [entry for one in sets for entry in one.entries]
    most = sum(entry.raw if everything else min(entry.raw, BUDGET_BYTES) for entry in entries)
    limits = Limits(
        None if everything else BUDGET_BYTES,
        None if everything else time.monotonic() + time_s,
        Saying("reading values", most).add,
    )
    survey = Survey(sets, limits)
    summaries = [{entry.name: survey.summaries(entry, columns) for entry in one.entries} for one in sets]
    data, problem = None, None
    try:
        data = data_section(guess(survey), absolute=False)
    except UserError as error:
        problem = error.message
    if json:
        print(report.as_json(sets, summaries, data, problem), flush=True)
        return
    console = console or report.open_console()
    for one, found in zip(sets, summaries, strict=True):
        report.show(console, one, found)
        console.print()
    if data is None:
        console.print(problem)
        return
    console.print("In a job (`python -m hpctrain init FILES > job.toml` writes all of it):", style="bold")
    console.print()
    console.print(data, end="", soft_wrap=True)
