"""`Job`: everything that a run is, as one frozen object; read from TOML and `--set`, checked, and written back whole.

`data.py` and `sections.py` have the keys with their bounds, `file.py` the TOML text and its paths, `overrides.py` what
`--set` does, `builder.py` the user's model function.  Reads no data: whether the job fits its files is checked when a
run starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pydantic

from hpctrain.errors import UserError
from hpctrain.job.builder import load_builder
from hpctrain.job.data import DataSection, Split
from hpctrain.job.file import BUILTIN, parse_toml, read_toml, with_absolute_paths, write_toml
from hpctrain.job.overrides import apply_overrides
from hpctrain.job.reproducible import check_reproducible
from hpctrain.job.sections import (
    ClipSection,
    EarlyStop,
    MetricsSection,
    ModelSection,
    RunSection,
    registered,
)
from hpctrain.nn import LOSSES
from hpctrain.optim import OPTIMIZERS, SCHEDULES
from hpctrain.options import Part, user_error
from hpctrain.strategies import STRATEGIES
from hpctrain.version import __version__

__all__ = ["BUILTIN_JOB", "EarlyStop", "Job", "Split", "load_builder"]

BUILTIN_JOB = Path(__file__).parent.parent / "data" / "builtin" / "digits.toml"

_COMMENT = f"A job of hpctrain {__version__} with every default filled in: python -m hpctrain train THIS_FILE"
# What may differ between a run and its resume: it changes no weight.
_FREE = ("metrics", "run.name", "run.dir", "run.keep", "run.log_every", "run.checkpoint_every", "run.threads_per_rank")
_FREE += ("run.progress", "run.early_stop", "data.distribute", "data.staged", "data.memory", "strategy.chosen")
_LENGTH = ("run.epochs", "run.steps")

Loss = registered(LOSSES, "loss")
Optimizer = registered(OPTIMIZERS, "optimizer", default="adam")
Schedule = registered(SCHEDULES, "schedule", default="constant")
Strategy = registered(STRATEGIES, "strategy", default="all_reduce")


class Job(Part):
    """A checked job.  Sections and registered parts can be given as objects or as plain tables:

        Job(data={"files": "a.h5", "input": "x", "target": "y"}, model={"layers": [Dense(units=10)]}, run={"epochs": 3})

    Relative paths are made absolute (here: against the current directory).  Every mistake is a `UserError`.
    `loss`, `metrics.names` and `model.layers` are None where they are to be inferred from the data.
    """

    data: DataSection
    model: ModelSection = ModelSection()
    loss: Loss | None = None
    metrics: MetricsSection = MetricsSection()
    optimizer: Optimizer = {"name": "adam", "lr": 0.001}
    schedule: Schedule = {"name": "constant"}
    clip: ClipSection = ClipSection()
    strategy: Strategy = {"name": "all_reduce"}
    run: RunSection = RunSection()

    def __init__(self, **sections: Any) -> None:
        if "data" not in sections:
            raise UserError(
                "the job has no data section",
                allowed='[data] with files = "FILE.h5", input = "DATASET" and target = "DATASET"',
                hint="`python -m hpctrain job` prints a commented job file",
            )
        try:
            super().__init__(**sections)
        except pydantic.ValidationError as error:
            raise user_error(error, type(self), "") from None

    @pydantic.model_validator(mode="after")
    def _early_stop_can_see(self) -> Job:
        if self.run.early_stop is not None and not self.data.has_validation:
            raise UserError(
                "run.early_stop watches the validation part, but the job has none",
                hint="add split = {validation = 0.1} or validation_files to [data]",
            )
        return self

    @pydantic.model_validator(mode="after")
    def _keeps_its_promise(self) -> Job:
        check_reproducible(self)
        return self

    @pydantic.model_validator(mode="after")
    def _schedule_can_see(self) -> Job:
        if getattr(self.schedule, "metric", None) is not None and not self.data.has_validation:
            raise UserError(
                "the schedule watches the validation part, but the job has none",
                found=f"schedule.name = {SCHEDULES.name_of(type(self.schedule))!r}",
                hint="add split = {validation = 0.1} or validation_files to [data]",
            )
        return self

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Job:
        """Read a job file and apply "a.b=value" overrides.

        Paths in the file are relative to the file's folder, those in overrides to the current directory.  `run.name`
        becomes the file's stem where it is not given.  Every mistake is a `UserError`.
        """
        path = Path(path)
        return cls.from_dict(read_toml(path), path.absolute().parent, overrides, name=path.stem)

    @classmethod
    def builtin(cls, overrides: Iterable[str] = ()) -> Job:
        """Return the built-in job, which trains on the handwritten digits that are shipped with hpctrain."""
        return cls.load(BUILTIN_JOB, overrides)

    @classmethod
    def from_dict(
        cls,
        document: dict[str, Any],
        base: str | Path | None = None,
        overrides: Iterable[str] = (),
        *,
        name: str | None = None,
    ) -> Job:
        """Check a job document (nested dicts as TOML gives them).

        `base` is the folder that its relative paths start from (default: the current directory), `name` stands in for a
        missing `run.name`.
        """
        document = apply_overrides(with_absolute_paths(document, Path(base or ".").absolute()), overrides)
        run = document.get("run", {})
        if name and isinstance(run, dict) and run.get("name") is None:
            document["run"] = {"name": re.sub(r"[^\w.+-]+", "-", name).strip(".+-") or "job", **run}
        return cls(**document)

    @classmethod
    def from_toml(cls, text: str, name: str = "the job") -> Job:
        """Read a job from TOML text, such as the resolved job in a checkpoint; `name` stands for the text in errors."""
        return cls.from_dict(parse_toml(text, name))

    @property
    def name(self) -> str:
        """The run's name, which also names its folder; "job" where nothing else is known."""
        return self.run.name or "job"

    @property
    def is_builtin(self) -> bool:
        """Whether the job trains on the data that is shipped with hpctrain."""
        return isinstance(self.data.files, str) and self.data.files.startswith(BUILTIN)

    def resolved(
        self,
        *,
        layers: Sequence[Part] | None = None,
        loss: Part | None = None,
        metrics: Sequence[Part] | None = None,
        schedule: Part | None = None,
        micro_batch: int | None = None,
    ) -> Job:
        """Return the job with what was inferred from data and workers filled in; None leaves a section as it is."""
        update: dict[str, Any] = {}
        if layers is not None:
            update["model"] = ModelSection(layers=tuple(layers))
        if loss is not None:
            update["loss"] = loss
        if metrics is not None:
            update["metrics"] = MetricsSection(names=tuple(metrics))
        if schedule is not None:
            update["schedule"] = schedule
        if micro_batch is not None:
            update["run"] = self.run.model_copy(update={"micro_batch": micro_batch})
        return self.model_copy(update=update)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as nested dicts of plain values, every default filled in; `from_dict` reads it back."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """Return the job as TOML, every default filled in; `load` and `from_toml` read it back to an equal job."""
        return write_toml({key: section for key, section in self.to_dict().items() if section}, _COMMENT)

    def differences(self, now: Job) -> list[str]:
        """Compare this job, which a run was started with, to the one it is resumed with.

        Returns one line ("optimizer.lr was 0.1, is now 0.2") for each key that differs and would change the weights.
        The length of the run matters only to a schedule that depends on it.  Compare resolved jobs.
        """
        keeps_length = any(getattr(job.schedule, "depends_on_length", False) for job in (self, now))
        free = _FREE if keeps_length else _FREE + _LENGTH
        if self.run.reproducible and now.run.reproducible:
            free += ("strategy.collective", "strategy.chosen")
        before, after = dict(_flat(self.to_dict())), dict(_flat(now.to_dict()))
        return [
            f"{key} was {_show(before, key)}, is now {_show(after, key)}"
            for key in dict.fromkeys([*before, *after])
            if before.get(key) != after.get(key) and not any(f"{key}.".startswith(f"{name}.") for name in free)
        ]


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield key, value
    for step, item in items:
        yield from _flat(item, f"{key}.{step}" if key else str(step))


def _show(values: dict[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "not given"
