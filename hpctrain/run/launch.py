"""Where a run is put together: from a job to its results, on every rank.  What scripts and the command line call."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpctrain import comm
from hpctrain.comm.group import Group
from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.monitor.base import Monitor
from hpctrain.monitor.console import ConsoleMonitor
from hpctrain.monitor.history import History
from hpctrain.monitor.metrics_log import MetricsLog
from hpctrain.run.folder import RunFolder
from hpctrain.run.guard import command, together
from hpctrain.run.master import Prepared, prepare
from hpctrain.run.restore import check_same_job, put_back_preparation
from hpctrain.run.result import TrainResult
from hpctrain.run.session import Session
from hpctrain.run.trained import TrainedModel, load_model
from hpctrain.training.stop import StopSignal

__all__ = ["TrainResult", "TrainedModel", "command", "evaluate", "load_model", "run_train", "train"]


def train(
    job: Job | str | Path | dict[str, Any],
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    monitors: Sequence[Monitor] = (),
    group: Group | None = None,
) -> TrainResult:
    """Train a job and return what came of it; in a script under mpirun every rank calls it.

    job       a `Job`, the path of a job file, or a job document (nested dicts)
    run_dir   folder of the results; default: `run.dir` of the job, else a fresh folder in runs/
    resume    go on from the latest valid checkpoint in run_dir
    monitors  further monitors, beside the console and metrics.jsonl
    group     the ranks; default: all that were launched

    Raises `UserError` for what is wrong with the job or its data.  With several ranks, an error that one rank has alone
    ends all of them.
    """
    group = group or comm.join()
    with together(group, "train"):
        return _train(group, lambda: _as_job(job), run_dir, resume, monitors)


def evaluate(
    run_dir: str | Path,
    data: str | Path | Sequence[str | Path] | None = None,
    part: str = "test",
    *,
    group: Group | None = None,
) -> dict[str, float]:
    """Return loss and metrics of a run's network; in a script under mpirun every rank calls it.

    run_dir  a run's folder: its model.h5, or while there is none the latest valid checkpoint
    data     HDF5 files with the datasets that the job names; default: the run's own data
    part     which part of the run's own data: "test", "validation" or "train"
    """
    from hpctrain.run.evaluation import evaluate_run

    group = group or comm.join()
    if data is not None:
        data = [str(path) for path in ([data] if isinstance(data, str | Path) else data)]
        if not all(data):
            raise UserError(
                "the name of a data file is empty", hint="is a shell variable in --data not set?", agreed=True
            )
    with together(group, "evaluate"):
        return evaluate_run(group, Path(run_dir), data, part)


def run_train(load_job: Callable[[], Job], run_dir: str | Path | None, resume: bool) -> int:
    """Train for the command line: `load_job` reads the job (rank 0 calls it); returns the exit code."""

    def verb(group: Group) -> int:
        result = _train(group, load_job, run_dir, resume, ())
        return result.exit_code

    return command(verb)


def _train(
    group: Group,
    load_job: Callable[[], Job],
    run_dir: str | Path | None,
    resume: bool,
    extra_monitors: Sequence[Monitor],
) -> TrainResult:
    prepared = prepare(group, load_job)
    job = prepared.job
    history = History()
    announce = "stopping with a checkpoint after this step" if group.rank == 0 else None
    session = None
    with StopSignal(announce) as stop:
        folder, finished, prepared = _open_folder(group, prepared, run_dir or job.run.dir, resume)
        monitors: list[Monitor] = [*extra_monitors]
        try:
            if group.rank == 0:
                own = [history, ConsoleMonitor(job.run.progress, job.run.log_interval)]
                monitors = [*own, MetricsLog(folder.metrics, job.run.log_interval), *extra_monitors]
                _announce(job, own[1])
            if finished:
                return _finished_result(group, prepared, folder, monitors)
            if resume:
                put_back_preparation(group, folder, prepared)
            session = Session(group, prepared, folder, monitors, stop)
            if resume:
                session.resume()
            with group.agreed():
                if folder is not None:
                    folder.write_job(session.job.to_toml())
            summary = session.run()
            result = TrainResult.of(session, summary, history, stop.requested)
            if group.rank == 0:
                _say_next(session, result)
            session.close()
            return result
        finally:
            if session is not None:
                session.dataset.close()  # its threads would go on reading
            for monitor in monitors:
                if monitor.collective or group.rank == 0:
                    monitor.close()
            if folder is not None:
                folder.close()


def _open_folder(
    group: Group, prepared: Prepared, run_dir: str | Path | None, resume: bool
) -> tuple[RunFolder | None, bool, Prepared]:
    """Open the run folder on rank 0; return it (None elsewhere), whether its run is finished already, and the job.

    A resumed run's job goes on with what was chosen when the run began.
    """
    folder, finished, strategy = None, False, prepared.job.strategy
    with group.agreed():
        if group.rank == 0:
            folder = RunFolder.open(run_dir, prepared.job.name, resume)
            try:
                if resume and folder.job_toml.exists():
                    before = Job.load(folder.job_toml)
                    check_same_job(before, prepared.job)
                    strategy = strategy.goes_on_from(before.strategy)
                finished = folder.finished and _has_nothing_left(folder.read_summary(), prepared)
            except UserError:
                folder.close()
                raise
    finished, strategy = group.broadcast_object((finished, strategy))
    return folder, finished, replace(prepared, job=prepared.job.model_copy(update={"strategy": strategy}))


def _has_nothing_left(summary: dict[str, Any], prepared: Prepared) -> bool:
    return summary.get("early_stop") or summary.get("steps", 0) >= prepared.total_steps


def _finished_result(
    group: Group, prepared: Prepared, folder: RunFolder | None, monitors: Sequence[Monitor]
) -> TrainResult:
    summary = group.broadcast_object(folder.read_summary() if folder is not None else None)
    path = group.broadcast_object(folder.path if folder is not None else None)
    if group.rank == 0:
        text = f"the run in {path} is finished ({summary.get('steps', 0):,} steps): nothing to do"
        for monitor in monitors:
            monitor.on_event(text)
    with group.agreed():
        trained = load_model(path)
    model, preparation = trained.model, trained.preparation
    return TrainResult(summary, path, prepared.job, model=model, preparation=preparation, rank=group.rank)


def _announce(job: Job, console: Monitor) -> None:
    if job.is_builtin:
        console.on_event(
            "built-in job: 1,797 handwritten digits. To train your own data: "
            "python -m hpctrain init FILE.h5 > job.toml, mpirun -n 4 python -m hpctrain train job.toml"
        )


def _say_next(session: Session, result: TrainResult) -> None:
    """Print what a person may want to do next."""
    size, path = session.group.size, result.run_dir
    launch = f"mpirun -n {size} python -m hpctrain" if size > 1 else "python -m hpctrain"
    path = shlex.quote(str(path))
    if result.stopped_by:
        step = session.trainer.progress.step
        session.say(f"stopped by {result.stopped_by} after step {step:,}; the checkpoint is written")
        session.say(f"go on with   {launch} train --run-dir {path} --resume")
        return
    lines = [
        f"evaluate     python -m hpctrain evaluate {path} --data FILE.h5",
        f"change it    {launch} train {path}/job.toml --set optimizer.lr={session.job.optimizer.lr / 2:g}",
    ]
    if session.job.is_builtin:
        lines.append(f"your data    python -m hpctrain init FILE.h5 > job.toml; {launch} train job.toml")
    for line in lines:
        session.say(line)


def _as_job(job: Job | str | Path | dict[str, Any]) -> Job:
    if isinstance(job, Job):
        return job
    return Job.from_dict(job) if isinstance(job, dict) else Job.load(job)
