"""The command line: verbs, options and their help.  It parses and calls `hpctrain.tools`; it holds no logic.

Under mpirun every rank parses the same words: help and usage errors are printed by the first rank alone, and the exit
code is the same on all.  What a verb needs is imported when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hpctrain.version import __version__

# A blank line keeps two lines apart in the help; lines are kept under 78 characters, so that they are not wrapped.
_EXAMPLES = """[bold]Examples[/bold]

  mpirun -n 4 python -m hpctrain                          train the built-in job

  python -m hpctrain inspect data.h5                      what is in your data

  python -m hpctrain init data.h5 > job.toml              get a job that fits it

  mpirun -n 4 python -m hpctrain train job.toml           train it

  python -m hpctrain evaluate runs/job-001 --data new.h5  try the result"""

_TRAIN_EXAMPLES = """[bold]Examples[/bold]

  mpirun -n 4 python -m hpctrain train job.toml

  mpirun -n 4 python -m hpctrain train job.toml --set optimizer.lr=0.01

  mpirun -n 4 python -m hpctrain train job.toml --set model.layers.0.units=64

  mpirun -n 4 python -m hpctrain train job.toml --set 'optimizer={name="sgd"}'

  mpirun -n 4 python -m hpctrain train job.toml --run-dir runs/a

  mpirun -n 4 python -m hpctrain train --run-dir runs/a --resume

  python -m hpctrain train --set run.epochs=3        the built-in job, one rank"""

_EVALUATE_EXAMPLES = """[bold]Examples[/bold]

  python -m hpctrain evaluate runs/a            on the test part of its own data

  python -m hpctrain evaluate runs/a --part validation

  mpirun -n 4 python -m hpctrain evaluate runs/a --data new.h5

  mpirun -n 4 python -m hpctrain evaluate runs/a --data 'new/*.h5'"""

_JOB_EXAMPLES = """[bold]Examples[/bold]

  python -m hpctrain job > job.toml                        a template to edit

  python -m hpctrain job --builtin > digits.toml           a small real example

  python -m hpctrain job job.toml --memory -n 8            will it fit?"""

_INSPECT_EXAMPLES = """[bold]Examples[/bold]

  python -m hpctrain inspect train.h5

  python -m hpctrain inspect 'measurements/*.h5' --columns

  python -m hpctrain inspect train.h5 --all              read every value

  python -m hpctrain inspect train.h5 --json > facts.json"""

_INIT_EXAMPLES = """[bold]Examples[/bold]

  python -m hpctrain init train.h5 > job.toml

  python -m hpctrain init 'measurements/*.h5' > job.toml

  mpirun -n 4 python -m hpctrain train job.toml          as it is, or edited"""

_SHARD_EXAMPLES = """[bold]Examples[/bold]

  python -m hpctrain shard train.h5 --shards 16 --out shards

  mpirun -n 8 python -m hpctrain shard 'raw/*.h5' --shards 64 --out shards

  python -m hpctrain shard train.h5 --shards 4 --out shards --along images

Then [bold]files = "shards"[/bold] in a job, or first copy them to each node:

  mpirun -n 8 python -m hpctrain stage shards --to /local/shards"""

_STAGE_EXAMPLES = """[bold]Examples[/bold]

  srun python -m hpctrain stage shards --to /local/shards     its part to each node

  srun python -m hpctrain stage shards --to /local/shards --all

  python -m hpctrain stage shards --to /dev/shm/shards        this node alone

Interrupted? The same command goes on, and checks what is there."""

app = typer.Typer(
    help="Train neural networks on CPU clusters. Without a command: train the built-in job.",
    epilog=_EXAMPLES,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class DataPart(StrEnum):
    """The parts of a run's own data."""

    TEST = "test"
    VALIDATION = "validation"
    TRAIN = "train"


def main(arguments: list[str] | None = None) -> None:
    """Run a command line (default: this process's) and exit with its code: 0, 1 for a failure, 2 for a user's mistake.

    Parsing only chooses the command; it runs afterwards, when the later ranks may print again.
    """
    from hpctrain.comm.environment import launched

    chosen: list[Callable[[], int]] = []
    with ExitStack() as silence:
        if launched().rank != 0:
            nowhere = silence.enter_context(open(os.devnull, "w"))
            silence.enter_context(redirect_stdout(nowhere))
            silence.enter_context(redirect_stderr(nowhere))
        try:
            app(arguments, prog_name=_program(), obj=chosen)
        except SystemExit:
            if not chosen:  # help, --version, or a usage error
                raise
    sys.exit(chosen[0]())


def _program() -> str:
    return "python -m hpctrain" if Path(sys.argv[0]).name == "__main__.py" else "hpctrain"


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"hpctrain {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _without_verb(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        train(context)


@app.command(epilog=_TRAIN_EXAMPLES)
def train(
    context: typer.Context,
    job: Annotated[
        Path | None, typer.Argument(metavar="JOB", help="A job file; without one: the built-in job.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job; the value is TOML. Repeatable."),
    ] = None,
    run_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder for the results; without one: a fresh folder in runs/.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the latest checkpoint in --run-dir; JOB defaults to its job.toml."),
    ] = False,
) -> None:
    """Train a network as a job file says."""
    if resume and run_dir is None:
        raise typer.BadParameter("--resume needs --run-dir DIR: the folder of the run that is to go on")

    from hpctrain.tools import train as tool

    context.obj.append(partial(tool.command, job, overrides or [], run_dir, resume))


@app.command(epilog=_EVALUATE_EXAMPLES)
def evaluate(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished or running run.")],
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="FILES", help="HDF5 files to evaluate on (a path or a quoted glob). Repeatable."),
    ] = None,
    part: Annotated[DataPart, typer.Option(help="Which part of the run's own data, without --data.")] = DataPart.TEST,
) -> None:
    """Evaluate a run's network: its loss and metrics on data."""
    from hpctrain.tools import evaluate as tool

    context.obj.append(partial(tool.command, run, data or None, part.value))


@app.command(epilog=_JOB_EXAMPLES)
def job(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="JOB", help="With --memory: a job file; without one: the built-in job.")
    ] = None,
    builtin: Annotated[bool, typer.Option("--builtin", help="Print the built-in job instead.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Print what JOB will need of memory on a rank.")] = False,
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", min=1, metavar="N", help="With --memory: on how many; default: as launched."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, metavar="N", help="With --memory: on how many nodes; default: as launched, or 1."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="With --memory: override a key of the job. Repeatable."),
    ] = None,
) -> None:
    """Print a complete, commented job file; or say what a job will need of memory."""
    from hpctrain.tools import job as tool

    if not memory:
        if file is not None or ranks is not None or nodes is not None or overrides:
            raise typer.BadParameter("JOB, --ranks, --nodes and --set go with --memory; `train` runs a job")
        context.obj.append(partial(tool.command, builtin))
        return
    if builtin and file is not None:
        raise typer.BadParameter("--builtin and JOB are two jobs: give one of them")
    context.obj.append(partial(tool.memory_command, file, overrides or [], ranks, nodes))


@app.command(epilog=_INSPECT_EXAMPLES)
def inspect(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILES", help="HDF5 files (paths or quoted globs).")],
    columns: Annotated[bool, typer.Option("--columns", help="Also each column of tables.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Read every value; without it, a sample of what is large.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what is in HDF5 files, what the values are like, and how a job reads them."""
    from hpctrain.tools import inspect as tool

    context.obj.append(partial(tool.command, files, columns, everything, json))


@app.command(epilog=_INIT_EXAMPLES)
def init(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILES", help="HDF5 files (paths or quoted globs).")],
) -> None:
    """Print a job file guessed from HDF5 files, which runs as it is."""
    from hpctrain.tools import init as tool

    context.obj.append(partial(tool.command, files))


@app.command(epilog=_SHARD_EXAMPLES)
def shard(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILES", help="HDF5 files (paths or quoted globs).")],
    shards: Annotated[int, typer.Option(min=1, metavar="N", help="How many shard files; a multiple of the nodes.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the shards and their manifest.json.")],
    along: Annotated[
        str | None,
        typer.Option(metavar="DATASET", help="Its rows count; default: those that the most bytes have in common."),
    ] = None,
) -> None:
    """Cut a data set into even shard files with checksums; the ranks write in parallel."""
    from hpctrain.tools import shard as tool

    context.obj.append(partial(tool.command, files, shards, out, along))


@app.command(epilog=_STAGE_EXAMPLES)
def stage(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of shards, as `shard` makes it.")],
    to: Annotated[Path, typer.Option(metavar="LOCAL", help="Folder on storage of the node's own.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Copy all shards to each node, not only the node's part of them.")
    ] = False,
) -> None:
    """Copy shards to storage of each node's own and check them; goes on where it was interrupted."""
    from hpctrain.tools import stage as tool

    context.obj.append(partial(tool.command, folder, to, everything))
