"""The command line: what is parsed, what is printed, by which rank, and the exit codes."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpctrain import run
from hpctrain.cli import main
from hpctrain.job import BUILTIN_JOB, Job
from hpctrain.tools.evaluate import table
from hpctrain.tools.job import TEMPLATE
from hpctrain.version import __version__


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, and a terminal on which no line of the help is wrapped."""
    for name in ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "MV2_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for hpctrain.run.launch and notes what it is called with."""
    fake = SimpleNamespace(calls=[], code=0, metrics={"loss": 0.25, "accuracy": 0.5})

    def run_train(load_job, run_dir, resume):
        fake.calls.append((load_job(), run_dir, resume))
        return fake.code

    def evaluate(run_dir, data=None, part="test", group=None):
        fake.calls.append((run_dir, data, part))
        return fake.metrics

    def command(function):
        return function(SimpleNamespace(rank=fake.rank)) or 0

    fake.run_train, fake.evaluate, fake.command, fake.rank = run_train, evaluate, command, 0
    monkeypatch.setattr(run, "launch", fake, raising=False)
    monkeypatch.setitem(sys.modules, "hpctrain.run.launch", fake)
    return fake


def code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code or 0


def test_no_verb_and_train_without_a_job_are_the_builtin_job(launch: SimpleNamespace):
    assert code() == 0
    assert code("train") == 0
    assert launch.calls == [(Job.builtin(), None, False)] * 2


def test_train_hands_everything_over(launch: SimpleNamespace, tmp_path: Path):
    (tmp_path / "a.toml").write_text('[data]\nfiles = "a.h5"\ninput = "x"\ntarget = "y"\n')
    arguments = ["--set", "optimizer.lr=0.5", "--run-dir", "runs/a", "--resume", "--set", "run.seed=3"]
    assert code("train", str(tmp_path / "a.toml"), *arguments) == 0
    job, run_dir, resume = launch.calls[0]
    assert (job.optimizer.lr, job.run.seed, run_dir, resume) == (0.5, 3, "runs/a", True)


def test_the_exit_code_is_that_of_the_run(launch: SimpleNamespace):
    launch.code = 2
    assert code("train") == 2


def test_evaluate_prints_a_table_on_rank_0(launch: SimpleNamespace, capsys: pytest.CaptureFixture):
    assert code("evaluate", "runs/a", "--data", "x.h5", "--data", "y.h5") == 0
    assert capsys.readouterr().out == "runs/a on x.h5, y.h5\n  loss      0.2500\n  accuracy  50.00 %\n"
    launch.rank = 1
    assert code("evaluate", "runs/a", "--part", "validation") == 0
    assert capsys.readouterr().out == ""
    assert launch.calls == [(Path("runs/a"), ["x.h5", "y.h5"], "test"), (Path("runs/a"), None, "validation")]


def test_table_words_values_as_the_console_does():
    assert table("t", {"r2": 1 / 3, "examples": 1234567}) == "t\n  r2        0.3333\n  examples  1234567"


def test_job_prints_a_file_that_loads(capsys: pytest.CaptureFixture):
    assert code("job") == 0
    assert capsys.readouterr().out == TEMPLATE
    assert code("job", "--builtin") == 0
    assert capsys.readouterr().out == BUILTIN_JOB.read_text()


def test_job_memory_hands_everything_over(monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr("hpctrain.tools.job.memory_command", lambda *given: calls.append(given) or 0)
    assert code("job", "--memory") == 0
    assert code("job", "a.toml", "--memory", "-n", "8", "--nodes", "2", "--set", "run.seed=3") == 0
    assert calls == [(None, [], None, None), (Path("a.toml"), ["run.seed=3"], 8, 2)]


def test_version(capsys: pytest.CaptureFixture):
    assert code("--version") == 0
    assert capsys.readouterr().out == f"hpctrain {__version__}\n"


def test_verbs_for_data_hand_everything_over(monkeypatch: pytest.MonkeyPatch):
    calls = []
    for tool in ("shard", "stage", "inspect", "init"):
        monkeypatch.setattr(f"hpctrain.tools.{tool}.command", lambda *given: calls.append(given) or 0)
    assert code("shard", "a.h5", "b.h5", "--shards", "4", "--out", "s", "--along", "x") == 0
    assert code("stage", "s", "--to", "/l", "--all") == 0
    assert code("inspect", "a.h5", "--columns", "--json") == 0
    assert code("init", "a.h5", "b.h5") == 0
    assert calls == [
        (["a.h5", "b.h5"], 4, Path("s"), "x"),
        (Path("s"), Path("/l"), True),
        (["a.h5"], True, False, True),
        (["a.h5", "b.h5"],),
    ]


def test_later_ranks_print_no_tables_and_no_job(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    for verb in ("inspect", "init"):
        assert code(verb, "no-such-file.h5") == 0
        assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "verb", [[], ["train"], ["evaluate"], ["job"], ["inspect"], ["init"], ["shard"], ["stage"]], ids=str
)
def test_help_teaches_by_example(verb: list[str], capsys: pytest.CaptureFixture):
    assert code(*verb, "--help") == 0
    shown = capsys.readouterr().out
    assert "Examples" in shown
    assert f"python -m hpctrain {' '.join(verb)}".strip() in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "No such command 'trian'"),
        (["train", "--sett", "a=1"], "--sett"),
        (["train", "--resume"], "--resume needs --run-dir"),
        (["evaluate"], "Missing argument"),
        (["shard", "a.h5", "--out", "s"], "--shards"),
        (["shard", "a.h5", "--out", "s", "--shards", "0"], "--shards"),
        (["stage", "s"], "--to"),
        (["inspect"], "Missing argument"),
        (["init"], "Missing argument"),
        (["job", "a.toml"], "go with --memory"),
        (["job", "--memory", "-n", "0"], "--ranks"),
        (["job", "--nodes", "2"], "go with --memory"),
        (["job", "a.toml", "--memory", "--builtin"], "two jobs"),
        (["evaluate", "runs/a", "--part", "tset"], "tset"),
    ],
    ids=str,
)
def test_usage_errors_exit_with_2_and_only_the_first_rank_speaks(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    assert code(*arguments) == 2
    assert said in capsys.readouterr().err
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert code(*arguments) == 2
    assert capsys.readouterr() == ("", "")


def test_later_ranks_print_no_help_and_no_job(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    for arguments in (["--help"], ["train", "--help"], ["--version"], ["job"]):
        assert code(*arguments) == 0
        assert capsys.readouterr() == ("", "")


def test_later_ranks_may_print_once_the_command_runs(
    launch: SimpleNamespace, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    launch.run_train = lambda *_: print("from rank 1") or 0
    assert code("train") == 0
    assert capsys.readouterr().out == "from rank 1\n"


def test_help_loads_nothing_heavy():
    script = (
        "import sys\nfrom hpctrain.cli import main\n"
        "try:\n    main(['train', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'numba', 'h5py', 'mpi4py', 'scipy'} & sys.modules.keys()\n"
        "sys.exit(' '.join(heavy) or 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
