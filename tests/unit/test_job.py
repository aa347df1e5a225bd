"""Jobs: from TOML, Python and `--set` to one checked object, and back."""

import tomllib
from pathlib import Path

import pytest

from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.nn.layers.dense import Dense
from hpctrain.optim.sgd import Sgd

DATA = {"files": "a.h5", "input": "x", "target": "y"}


def job(**sections) -> Job:
    return Job(**{"data": DATA, **sections})


def refused(*parts: str, **sections) -> None:
    """Check that a job is refused by one message that holds all the parts."""
    with pytest.raises(UserError) as caught:
        job(**sections)
    for part in parts:
        assert part in caught.value.message


def test_everything_but_the_data_has_a_default():
    made = job()
    assert made.optimizer.lr == 0.001
    assert type(made.optimizer).__name__ == "Adam"
    assert (made.run.epochs, made.run.steps, made.run.global_batch) == (10, None, 32)
    assert (made.loss, made.metrics.names, made.model.layers, made.clip.norm) == (None, None, None, None)
    assert (made.run.checkpoint_interval.value, made.run.checkpoint_interval.unit) == (1, "epochs")
    assert (made.run.log_interval.value, made.run.log_interval.unit) == (1, "seconds")


def test_parts_are_given_as_objects_tables_or_names():
    layers = ["flatten", {"type": "dense", "units": 4}]
    tables = job(model={"layers": layers}, optimizer={"name": "sgd", "lr": 0.5}, schedule="constant")
    objects = job(model={"layers": ["flatten", Dense(units=4)]}, optimizer=Sgd(lr=0.5))
    assert tables == objects
    assert tables.model.layers[1] == Dense(units=4)


def test_options_without_a_name_go_to_the_default_part():
    made = job(optimizer={"lr": 0.25}, strategy={"collective": "native"}, schedule={"warmup": "3 steps"})
    assert (type(made.optimizer).__name__, made.optimizer.lr) == ("Adam", 0.25)
    assert made.strategy.collective == "native"
    assert made.schedule.warmup == "3 steps"


def test_a_job_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        job().run.seed = 3


@pytest.mark.parametrize("builtin", [True, False])
def test_written_job_reads_back_equal(builtin: bool, tmp_path: Path):
    made = (
        Job.builtin()
        if builtin
        else job(
            data={**DATA, "files": ["a.h5", "b-*.h5"], "validation_files": "v.h5", "split": {"test": 0.25}},
            model={"layers": [{"type": "leaky_relu", "slope": 0.2}, {"type": "dropout", "rate": 0.5}, Dense(units=3)]},
            loss={"name": "huber", "delta": 2.5},
            metrics={"names": ["mae", {"name": "top_k", "k": 3}]},
            schedule={"name": "cosine", "warmup": "2 epochs", "floor": 0.125},
            clip={"norm": 1.5},
            run={
                "steps": 7,
                "micro_batch": 4,
                "seed": 2**63 - 1,
                "early_stop": {"patience": 2},
                "checkpoint_every": "never",
            },
        )
    )
    text = made.to_toml()
    assert text.startswith("# ")
    assert Job.from_toml(text) == made
    assert Job.from_dict(tomllib.loads(text)) == made
    path = tmp_path / "job.toml"
    path.write_text(text)
    loaded = Job.load(path)
    assert loaded.to_dict() | {"run": {}} == made.to_dict() | {"run": {}}
    assert loaded.run.name == (made.run.name or "job")


def test_never_has_no_interval():
    assert job(run={"checkpoint_every": "never"}).run.checkpoint_interval is None


def test_resolved_fills_in_what_was_left_open():
    made = job().resolved(
        layers=[Dense(units=2)], loss=job(loss="mse").loss, metrics=job(metrics={"names": ["r2"]}).metrics.names
    )
    written = made.to_dict()
    assert written["model"]["layers"][0]["units"] == 2
    assert written["loss"] == {"name": "mse"}
    assert written["metrics"]["names"] == [{"name": "r2"}]
    assert Job.from_toml(made.to_toml()) == made


def test_what_is_mixed_fits_into_the_memory_that_there_is():
    def buffer(**data):
        return job(data={**DATA, **data}).data.buffer_bytes

    assert buffer() == buffer(memory="1 GB") == 64_000_000
    assert buffer(memory="100 MB") == 25_000_000
    assert buffer(memory="10 MiB") == 2_621_000  # a quarter, in whole kB
    assert buffer(memory="2 kB") == 1000
    assert buffer(memory="100 MB", shuffle_buffer="80 MB") == 80_000_000
    for memory in ("auto", "100 MB", "10 MiB", "2 kB"):
        section = job(data={**DATA, "memory": memory}).data
        assert section.with_order("global").shuffle_buffer == "auto"
        written = section.with_order("chunks")
        assert (written.shuffle, written.buffer_bytes) == ("chunks", section.buffer_bytes)
        # What the order follows from is kept, whatever a resumed run may take of memory.
        assert written.model_copy(update={"memory": "16 MB"}).buffer_bytes == section.buffer_bytes
    explicit = job(data={**DATA, "shuffle_buffer": "1.5 MiB"}).data
    assert explicit.with_order("chunks").shuffle_buffer == "1.5 MiB"


def test_builtin_job():
    made = Job.builtin(["run.epochs=3"])
    assert made.is_builtin
    assert not job().is_builtin
    assert (made.data.files, made.name, made.run.epochs) == ("builtin:digits", "digits", 3)
    assert (made.data.split.validation, made.data.split.test) == (0.1, 0.2)


class TestPaths:
    def write(self, folder: Path, text: str) -> Path:
        folder.mkdir()
        (folder / "my job.toml").write_text(text)
        return folder / "my job.toml"

    def test_in_the_file_they_start_from_its_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        path = self.write(
            tmp_path / "jobs",
            '[data]\nfiles = ["a.h5", "/b.h5"]\nvalidation_files = "../v-*.h5"\ntest_files = "t.h5"\n'
            'input = "x"\ntarget = "y"\n[model]\npython = "net.py:build"\n',
        )
        made = Job.load(path.relative_to(tmp_path))
        assert made.data.files == (f"{tmp_path}/jobs/a.h5", "/b.h5")
        assert made.data.validation_files == f"{tmp_path}/v-*.h5"
        assert made.data.test_files == f"{tmp_path}/jobs/t.h5"
        assert made.model.python == f"{tmp_path}/jobs/net.py:build"
        assert made.run.name == "my-job"

    def test_the_folder_of_copies_too_but_for_what_each_node_puts_in(self, tmp_path: Path):
        for given, expected in [
            ("copies", f"{tmp_path}/copies"),
            ("of/$NODE", f"{tmp_path}/of/$NODE"),
            ("$TMPDIR/copies", "$TMPDIR/copies"),
            ("~/copies", "~/copies"),
            ("/local/copies", "/local/copies"),
        ]:
            made = Job.from_dict({"data": {**DATA, "staged": given}}, tmp_path)
            assert made.data.staged == expected
            assert Job.from_toml(made.to_toml()).data.staged == expected

    def test_in_overrides_they_start_from_the_current_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        path = self.write(tmp_path / "jobs", '[data]\nfiles = "a.h5"\ninput = "x"\ntarget = "y"\n')
        made = Job.load(path, ["data.files=b.h5", "model.python=net.py:build", "run.name=other"])
        assert made.data.files == f"{tmp_path}/b.h5"
        assert made.model.python == f"{tmp_path}/net.py:build"
        assert made.name == "other"

    def test_from_python_they_start_from_the_current_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        assert job().data.files == f"{tmp_path}/a.h5"
        assert job(data={**DATA, "files": Path("c.h5")}).data.files == f"{tmp_path}/c.h5"
        assert Job.from_dict({"data": DATA}, base="/somewhere").data.files == "/somewhere/a.h5"


class TestFilesThatCannotBeRead:
    def refused(self, path: Path, *parts: str) -> None:
        with pytest.raises(UserError) as caught:
            Job.load(path)
        for part in parts:
            assert part in caught.value.message

    def test_missing(self, tmp_path: Path):
        self.refused(tmp_path / "none.toml", f"no job file {tmp_path / 'none.toml'}", "python -m hpctrain job")

    def test_folder(self, tmp_path: Path):
        self.refused(tmp_path, "is a folder", str(tmp_path / "job.toml"))

    def test_not_text(self, tmp_path: Path):
        (tmp_path / "data.h5").write_bytes(b"\x89HDF\r\n\x1a\n\xff")
        self.refused(tmp_path / "data.h5", "data.h5", "not text")

    def test_bad_toml_names_file_line_and_column(self, tmp_path: Path):
        path = tmp_path / "job.toml"
        path.write_text('[data]\nfiles = "a.h5"\ninput = x\n')
        self.refused(path, f"{path}, line 3, column 9", "input = x")

    def test_bad_toml_at_the_end(self, tmp_path: Path):
        path = tmp_path / "job.toml"
        path.write_text('[data]\nfiles = ["a.h5"')
        self.refused(path, f"{path}, line 2, column 16")

    def test_no_data(self, tmp_path: Path):
        path = tmp_path / "job.toml"
        path.write_text("")
        self.refused(path, "no data section", "files", "input", "target")


class TestRefusals:
    def test_unknown_keys_suggest_the_nearest(self):
        refused("unknown key 'optimiser'", "'optimizer'", optimiser={})
        refused("unknown key 'run.epocs'", "'epochs'", run={"epocs": 3})
        refused("unknown key 'data.split.tset'", "'test'", data={**DATA, "split": {"tset": 0.1}})
        refused("unknown key 'optimizer.momentun'", "'momentum'", optimizer={"name": "sgd", "momentun": 0.9})
        refused(
            "unknown key 'model.layers.0.unit'", "'units'", model={"layers": [{"type": "dense", "units": 1, "unit": 2}]}
        )
        refused("unknown key 'run.zzzz'", "known keys:", "global_batch", run={"zzzz": 3})

    def test_unknown_parts_list_the_known(self):
        refused(
            "unknown layer 'dens' in model.layers.1",
            "did you mean 'dense'",
            "leaky_relu",
            model={"layers": ["relu", "dens"]},
        )
        refused("unknown loss 'msee'", "mse", "huber", loss="msee")
        refused("unknown metric 'acc' in metrics.names.0", "accuracy", metrics={"names": ["acc"]})
        refused("unknown optimizer 'adm'", "did you mean 'adam'", "sgd", optimizer="adm")
        refused("unknown schedule 'linear'", "cosine", schedule={"name": "linear"})
        refused("unknown strategy 'ring'", "all_reduce", strategy="ring")

    @pytest.mark.parametrize(
        ("section", "values", "message"),
        [
            ("optimizer", {"lr": -0.1}, "optimizer.lr = -0.1: must be greater than 0"),
            ("optimizer", {"lr": float("nan")}, "optimizer.lr = nan"),
            ("clip", {"norm": 0}, "clip.norm = 0: must be greater than 0"),
            ("run", {"global_batch": 0}, "run.global_batch = 0: must be greater than or equal to 1"),
            ("run", {"micro_batch": 0}, "run.micro_batch = 0: must be greater than or equal to 1"),
            ("run", {"epochs": 0}, "run.epochs = 0"),
            ("run", {"seed": -1}, "run.seed = -1"),
            ("run", {"keep": 0}, "run.keep = 0"),
            ("run", {"threads_per_rank": 0}, "run.threads_per_rank = 0"),
            ("run", {"seed": "many"}, "run.seed = 'many': must be a whole number"),
            ("run", {"name": "a/b"}, "run.name = 'a/b': must be letters"),
            ("run", {"progress": "loud"}, "run.progress = 'loud': must be 'auto', 'bar', 'lines' or 'none'"),
            ("run", {"checkpoint_every": "soon"}, "run.checkpoint_every is not a length of training"),
            ("run", {"checkpoint_every": "0 steps"}, "run.checkpoint_every must be longer than zero"),
            ("run", {"log_every": "5"}, "run.log_every is not a length of training"),
            ("run", 3, "run = 3: must be a section"),
            ("model", {"layers": "dense"}, "model.layers = 'dense': must be a list"),
            ("model", {"layers": []}, "model.layers is an empty list"),
            ("model", {"layers": [3]}, "model.layers.0 must name a known layer"),
            ("model", {"layers": ["dense"]}, "model.layers.0.units is missing"),
            ("model", {"python": "net.py"}, "model.python = 'net.py': must be a file and the name of a function"),
        ],
    )
    def test_bounds_name_key_value_and_what_is_allowed(self, section: str, values: object, message: str):
        refused(message, **{section: values})

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (
                {"split": {"validation": 0.5, "test": 0.5}},
                "data.split = {'validation': 0.5, 'test': 0.5}: validation + test",
            ),
            ({"split": {"validation": -0.1}}, "data.split.validation = -0.1: must be greater than or equal to 0"),
            ({"split": {"test": 1}}, "data.split.test = 1: must be less than 1"),
            ({"distribute": "all"}, "data.distribute = 'all': must be 'auto', 'scatter', 'shared', 'local' or 'mpio'"),
            ({"files": []}, "data.files = []: must be a path"),
            ({"files": ["a.h5", 3]}, "data.files = ['a.h5', 3]: must be a path"),
            ({"files": ""}, "data.files = '': must not hold an empty path"),
            ({"input": ""}, "data.input = ''"),
        ],
    )
    def test_data_section(self, values: dict, message: str):
        refused(message, data={**DATA, **values})

    def test_missing_keys(self):
        refused("data.input is missing", "data.target is missing", data={"files": "a.h5"})

    def test_contradictions_name_both_keys(self):
        refused("run.epochs", "run.steps", run={"epochs": 1, "steps": 2})
        refused("model.layers", "model.python", model={"layers": ["relu"], "python": "a.py:b"})
        for part in ("validation", "test"):
            twice = {**DATA, "split": {part: 0.1}, f"{part}_files": "b.h5"}
            refused(f"data.split.{part}", f"data.{part}_files", data=twice)

    def test_split_of_one_part_goes_with_files_of_the_other(self):
        made = job(data={**DATA, "split": {"validation": 0.1}, "test_files": "t.h5"})
        assert made.data.split.test == 0

    def test_early_stop_needs_validation_rows(self):
        refused("run.early_stop", "validation", run={"early_stop": {}})
        assert job(data={**DATA, "split": {"validation": 0.1}}, run={"early_stop": {}}).run.early_stop.patience == 5

    def test_parts_that_could_not_be_written(self):
        class Own(Sgd):
            pass

        refused("optimizer is not a registered optimizer", "Own", optimizer=Own())
        refused("optimizer is not a registered optimizer", "Dense", optimizer=Dense(units=1))


class TestDifferences:
    def test_equal_jobs(self):
        assert job().differences(job()) == []

    def test_what_changes_the_weights_matters(self):
        before = Job.builtin()
        changes = {
            "data.shuffle": "none",
            "data.split.test": 0.3,
            "data.files": "/b.h5",
            "model.layers.1.units": 64,
            "loss.name": "mse",
            "optimizer.lr": 0.2,
            "schedule.floor": 0.5,
            "clip.norm": 1.0,
            "strategy.collective": "ring",
            "run.global_batch": 8,
            "run.micro_batch": 8,
            "run.seed": 1,
        }
        for key, value in changes.items():
            (line,) = before.differences(Job.builtin([f"{key}={value}"]))
            assert line.startswith(f"{key} was ")
            assert line.endswith(f"is now {value!r}")

    def test_line_has_both_values(self):
        assert Job.builtin().differences(Job.builtin(["optimizer.lr=0.2"])) == ["optimizer.lr was 0.1, is now 0.2"]
        assert Job.builtin().differences(Job.builtin(["clip.norm=2.0"])) == ["clip.norm was not given, is now 2.0"]

    def test_what_changes_no_weight_is_free(self):
        free = ["run.name=b", "run.dir=b", "run.keep=9", "run.log_every=3 s", "run.checkpoint_every=never"]
        free += [
            "run.threads_per_rank=2",
            "run.progress=none",
            "run.early_stop={patience=1}",
            "metrics.names=['accuracy']",
        ]
        assert Job.builtin().differences(Job.builtin(free)) == []

    def test_length_matters_to_a_schedule_that_depends_on_it(self):
        assert Job.builtin().differences(Job.builtin(["run.epochs=3"])) == ["run.epochs was 30, is now 3"]
        assert job(run={"epochs": 3}).differences(job(run={"steps": 9})) == []
