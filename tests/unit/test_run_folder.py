"""Run folders: fresh numbers, refusals that say what to do, the lock, the summary."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpctrain.errors import UserError
from hpctrain.run.folder import RunFolder


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(run_dir: str | None = None, job_name: str = "digits", resume: bool = False) -> Path:
    """Open a folder, write into it as a run does, and return its path."""
    with RunFolder.open(run_dir, job_name, resume) as folder:
        folder.write_job("")
        return folder.path


def test_fresh_folders_are_numbered() -> None:
    assert [str(opened()) for _ in range(2)] == ["runs/digits-001", "runs/digits-002"]
    assert str(opened(job_name="other")) == "runs/other-001"
    Path("runs/digits-007").mkdir()
    Path("runs/digits-old").mkdir()
    assert str(opened()) == "runs/digits-008"  # after the highest, gaps are not filled
    Path("runs/digits-999").mkdir()
    assert str(opened()) == "runs/digits-1000"


@pytest.mark.parametrize(
    ("name", "stem"), [("../a b/c", "a-b-c"), ("größe", "größe"), ("///", "run"), ("v1.2", "v1.2")]
)
def test_any_job_name_gives_one_folder(name: str, stem: str) -> None:
    assert str(opened(job_name=name)) == f"runs/{stem}-001"


def test_jobs_that_start_together_get_different_folders() -> None:
    taken: list[Path] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait(10)
        taken.append(opened())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(str(path) for path in taken) == [f"runs/digits-{number:03d}" for number in range(1, 9)]


def test_a_given_folder_is_made_with_its_parents() -> None:
    with RunFolder.open("a/b/c", "digits", resume=False) as folder:
        assert folder.path == Path("a/b/c")
        assert folder.checkpoints.is_dir()
        paths = (folder.job_toml, folder.metrics, folder.checkpoints, folder.model, folder.summary)
        assert [path.name for path in paths] == ["job.toml", "metrics.jsonl", "checkpoints", "model.h5", "summary.json"]
        assert all(path.parent == folder.path for path in paths)
        assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "checkpoints"]


def test_a_new_folder_in_which_nothing_was_written_is_taken_away() -> None:
    for run_dir in (None, "a/b"):
        with RunFolder.open(run_dir, "digits", resume=False) as folder:
            path = folder.path
            assert path.is_dir()
        assert not path.exists()
        assert path.parent.is_dir()
    Path("mine").mkdir()
    RunFolder.open("mine", "digits", resume=False).close()
    assert Path("mine").is_dir()  # was there before
    opened("a")
    assert Path("a/job.toml").exists()


@pytest.mark.parametrize("result", ["summary.json", "model.h5", "metrics.jsonl", "checkpoints/step-00000010.h5"])
def test_a_folder_with_results_is_refused_without_resume(result: str) -> None:
    (Path("a") / result).parent.mkdir(parents=True)
    (Path("a") / result).write_text("{}")
    with pytest.raises(UserError) as caught:
        opened("a")
    assert "run folder a has results already" in caught.value.message
    assert ("1 checkpoint" if "step" in result else result) in caught.value.message
    assert "--resume" in caught.value.message
    assert opened("a", resume=True) == Path("a")  # and the refusal holds no lock


def test_a_persons_own_job_file_is_not_overwritten() -> None:
    Path("a").mkdir()
    Path("a/job.toml").write_text("# mine\n")
    for resume in (False, True):
        with pytest.raises(UserError, match=r"a/job.toml is not a run's own"):
            opened("a", resume=resume)
    assert Path("a/job.toml").read_text() == "# mine\n"
    assert not Path("a/checkpoints").exists()


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(UserError, match="shell variable"):
        opened("")


def test_a_folder_with_a_runs_job_file_alone_is_taken() -> None:
    Path("a").mkdir()
    Path("a/job.toml").write_text("# A job of hpctrain 0.1.0 with every default filled in: ...\n")
    Path("a/data.h5").write_text("")
    assert opened("a") == Path("a")


def test_resume_needs_a_folder() -> None:
    with pytest.raises(UserError, match="--run-dir"):
        opened(resume=True)


def test_resume_in_a_folder_that_is_not_there_makes_it() -> None:
    assert opened("new", resume=True) == Path("new")
    assert Path("new").is_dir()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/run", "/dev/null/run"])
def test_a_folder_that_cannot_be_made_is_named(place: str) -> None:
    Path("file").write_text("")
    with pytest.raises(UserError) as caught:
        opened(place)
    assert f"cannot write {place}" in caught.value.message
    assert "--run-dir" in caught.value.message or "another folder" in caught.value.message


def test_a_folder_that_cannot_be_written_is_found_in_earnest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root ignores permission bits, so the refusal is played by the system call that a full disk fails in."""

    def full(handle: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError) as caught:
            opened("a")
    assert os.strerror(28) in caught.value.message
    assert [path.name for path in Path("a").iterdir()] == [".lock"]
    assert opened("a")  # the failure holds no lock


def test_two_runs_cannot_have_one_folder() -> None:
    with RunFolder.open("a", "digits", resume=False):
        for resume in (False, True):
            with pytest.raises(UserError) as caught:
                opened("a", resume=resume)
            assert "another run is using a" in caught.value.message
            assert f"process {os.getpid()} on {socket.gethostname()}" in caught.value.message
    assert opened("a") == Path("a")


def test_a_kill_releases_the_lock() -> None:
    program = (
        "import time; from hpctrain.run.folder import RunFolder\n"
        "folder = RunFolder.open('a', 'x', False); print('ready', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(UserError, match=f"process {process.pid} on"):
            opened("a", resume=True)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert opened("a", resume=True) == Path("a")
    finally:
        process.kill()
        process.wait()


def test_the_summary_is_strict_json() -> None:
    with RunFolder.open("a", "digits", resume=False) as folder:
        assert not folder.finished
        folder.write_summary({"finished": False, "test": {"accuracy": 0.5, "r2": float("nan")}})
        assert not folder.finished
        text = folder.summary.read_text()
        assert json.loads(text, parse_constant=pytest.fail) == {
            "finished": False,
            "test": {"accuracy": 0.5, "r2": None},
        }
        folder.write_summary({"finished": True})
        assert folder.finished
        assert folder.read_summary() == {"finished": True}


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_broken_summary_is_an_error_for_people(text: str) -> None:
    with RunFolder.open("a", "digits", resume=False) as folder:
        folder.summary.write_text(text)
        with pytest.raises(UserError, match=r"cannot read a/summary\.json"):
            folder.read_summary()
