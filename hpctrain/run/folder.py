"""`RunFolder`: the folder of one run, who may use it, and where its files are.  Rank 0 alone opens it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

from hpctrain.errors import UserError
from hpctrain.files import atomic_text, cannot_write
from hpctrain.monitor.words import plain

_PROBE_BYTES = 4096  # one block: what a full disk or quota refuses


class RunFolder:
    """A run's folder, locked for this process until `close` (or its end, a kill included)."""

    def __init__(self, path: Path, lock: int | None, is_new: bool = False) -> None:
        self.path = path
        self._is_new = is_new  # made by this run: may be taken away again while nothing is in it
        self._lock = lock  # file descriptor that holds the lock

    @classmethod
    def open(cls, run_dir: str | Path | None, job_name: str, resume: bool) -> RunFolder:
        """Take a run's folder, made if it is not there.

        Without `run_dir` this is a fresh `runs/<job name>-001`, `-002` and so on; two jobs that start together get two.

        Raises:
            UserError: the folder has results and `resume` is false; another process runs in it; it cannot be made or
                written; `resume` without a folder.
        """
        if run_dir is None and resume:
            raise UserError("--resume needs the folder of the run", hint="add --run-dir DIR")
        if run_dir is not None and not str(run_dir):
            raise UserError("the name of the run folder is empty", hint="is a shell variable in --run-dir not set?")
        try:
            is_new = run_dir is None or not Path(run_dir).exists()
            path = _fresh(Path("runs"), job_name) if run_dir is None else _given(Path(run_dir))
            if (
                not is_new
                and (path / "job.toml").exists()
                and not is_resolved((path / "job.toml").read_text("utf-8", "replace"))
            ):
                raise UserError(
                    f"{path / 'job.toml'} is not a run's own: it would be overwritten",
                    hint="choose another folder with --run-dir, or rename that file",
                )
            folder = cls(path, _take_lock(path), is_new)
            try:
                folder._check(resume)
            except BaseException:
                folder.close()
                raise
        except OSError as error:
            raise cannot_write(run_dir if run_dir is not None else "runs", error) from None
        return folder

    @property
    def job_toml(self) -> Path:
        """The resolved job."""
        return self.path / "job.toml"

    @property
    def metrics(self) -> Path:
        """The log of metrics, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The final weights."""
        return self.path / "model.h5"

    @property
    def summary(self) -> Path:
        """The results."""
        return self.path / "summary.json"

    @property
    def finished(self) -> bool:
        """Whether the run came to its planned end: `summary.json` is there and has `"finished": true`."""
        return self.summary.exists() and self.read_summary().get("finished") is True

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`, whole or not at all; NaN and infinity, which JSON lacks, become null."""
        atomic_text(self.summary, json.dumps(plain(summary), indent=2, allow_nan=False) + "\n")

    def write_job(self, text: str) -> None:
        """Write `job.toml`, whole or not at all."""
        atomic_text(self.job_toml, text)

    def read_summary(self) -> dict[str, Any]:
        """Return what `summary.json` says.

        Raises:
            UserError: it is not there or cannot be read.
        """
        try:
            summary = json.loads(self.summary.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {self.summary}", found=error, hint="is this a finished run?") from None
        if not isinstance(summary, dict):
            raise UserError(f"cannot read {self.summary}", found="not a JSON object")
        return summary

    def close(self) -> None:
        """Release the lock; a second call does nothing.  A new folder in which nothing was written is taken away."""
        if self._lock is None:
            return
        if self._is_new and not self.job_toml.exists() and not results_in(self.path):
            with contextlib.suppress(OSError):
                self.checkpoints.rmdir()
                (self.path / ".lock").unlink()
                self.path.rmdir()
        os.close(self._lock)
        self._lock = None

    def _check(self, resume: bool) -> None:
        if not resume and (found := results_in(self.path)):
            raise UserError(
                f"run folder {self.path} has results already",
                found=", ".join(found),
                hint="go on with that run by --resume, or choose another folder with --run-dir",
            )
        _probe(self.path)
        self.checkpoints.mkdir(exist_ok=True)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def is_resolved(job_toml: str) -> bool:
    """Whether a job file is one that a run has written (its first line says so), and not a person's own."""
    return job_toml.startswith("# A job of hpctrain") and "every default filled in" in job_toml.partition("\n")[0]


def results_in(path: Path) -> list[str]:
    """Return the names of a run's results that a folder holds; empty for a folder without any."""
    found = [name for name in ("summary.json", "model.h5", "metrics.jsonl") if (path / name).exists()]
    count = len(list((path / "checkpoints").glob("*.h5")))
    return found + ([f"{count} checkpoint{'s' if count > 1 else ''}"] if count else [])


def _given(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _fresh(root: Path, job_name: str) -> Path:
    """Make the next free numbered folder; `mkdir` fails if it is there, so that it is ours when it succeeds."""
    stem = re.sub(r"[^\w.-]+", "-", job_name).strip("-.") or "run"
    root.mkdir(parents=True, exist_ok=True)
    taken = [int(m[1]) for entry in root.iterdir() if (m := re.fullmatch(re.escape(stem) + r"-(\d+)", entry.name))]
    number = max(taken, default=0) + 1
    while True:
        path = root / f"{stem}-{number:03d}"
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
        number += 1


def _take_lock(path: Path) -> int | None:
    """Lock the folder; the kernel releases the lock when this process ends in whatever way.

    Returns None on file systems that have no locks: the lock is a help, not a condition.
    """
    lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 200, 0).decode(errors="replace").strip()
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise UserError(
                f"another run is using {path}",
                found=holder or "a process that has just started",
                hint="wait for it, end it, or choose another folder with --run-dir",
            ) from None
        return None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lock


def _probe(path: Path) -> None:
    """Write a block in earnest: permission bits say nothing to root, nor about quotas and full disks."""
    probe = path / f".probe.{os.getpid()}.tmp"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
