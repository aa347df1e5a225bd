"""Which job a `train` command line means."""

from pathlib import Path

import pytest

from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.tools.train import job_loader, job_path


def test_without_a_job_it_is_the_builtin_one(tmp_path: Path):
    assert job_path(None, None, False) is None
    assert job_path(None, tmp_path, False) is None
    assert job_loader(None, ["run.epochs=2"], tmp_path, False)() == Job.builtin(["run.epochs=2"])


def test_a_named_job_counts_before_the_runs_own(tmp_path: Path):
    (tmp_path / "job.toml").write_text("")
    assert job_path(Path("mine.toml"), tmp_path, True) == Path("mine.toml")
    assert job_path(Path("mine.toml"), None, False) == Path("mine.toml")


def test_a_resumed_run_has_its_own_job_and_overrides_still_apply(tmp_path: Path):
    (tmp_path / "job.toml").write_text(Job.builtin(["run.epochs=4"]).to_toml())
    assert job_path(None, tmp_path, True) == tmp_path / "job.toml"
    job = job_loader(None, ["run.keep=7"], tmp_path, True)()
    assert (job.run.epochs, job.run.keep, job.name, job.is_builtin) == (4, 7, "digits", True)


def test_a_folder_without_a_job_cannot_be_resumed(tmp_path: Path):
    with pytest.raises(UserError, match="no job.toml") as caught:
        job_loader(None, [], tmp_path / "typo", True)()
    assert str(tmp_path / "typo") in caught.value.message


def test_the_loader_reads_when_it_is_called_and_not_before(tmp_path: Path):
    load = job_loader(tmp_path / "none.toml", [], None, False)
    with pytest.raises(UserError, match="no job file"):
        load()
