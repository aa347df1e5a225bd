"""The sections of a job but for `[data]`: keys, defaults and bounds.  `docs/job-file.md` tells the user the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from os import PathLike, fspath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, field_validator, model_validator

from hpctrain.duration import Duration
from hpctrain.errors import UserError
from hpctrain.job.file import absolute_builder
from hpctrain.nn import LAYERS, METRICS, PRESETS
from hpctrain.options import Part, part_from, spec_of
from hpctrain.registry import Registry

NEVER = "never"
DEFAULT_EPOCHS = 10


def registered(family: Registry, where: str, default: str | None = None) -> Any:
    """Return the field type of a registered part: reads a name, a mapping or a part, and writes a mapping.

    A mapping without a name takes `default`, so that `--set optimizer.lr=0.01` needs no optimizer in the job file.
    """

    def read(spec: Any) -> Any:
        if spec is None and default is None:
            return None  # left open: inferred from the data
        if isinstance(spec, dict) and "name" not in spec and default is not None:
            spec = {"name": default, **spec}
        return _known_part(family, spec, where)

    return Annotated[Part, BeforeValidator(read), PlainSerializer(lambda part: spec_of(family, part))]


def registered_list(family: Registry, where: str, key: str) -> Any:
    """Return the field type of a list of registered parts (layers, metrics); `key` is the entry that names a part."""

    def read(specs: Any) -> Any:
        if not isinstance(specs, (list, tuple)):
            return specs  # pydantic words the error
        return tuple(_known_part(family, spec, f"{where}.{i}", key) for i, spec in enumerate(specs))

    item = Annotated[Part, PlainSerializer(lambda part: spec_of(family, part, key))]
    return Annotated[tuple[item, ...], BeforeValidator(read)]


def _known_part(family: Registry, spec: Any, where: str, key: str = "name") -> Part:
    part = part_from(family, spec, where, key)
    try:
        family.name_of(type(part))
    except ValueError:
        raise UserError(
            f"{where} is not a registered {family.kind}, so that the job could not be written to a file",
            found=f"an object of class {type(part).__name__}",
            allowed=", ".join(family),
            hint=f"register your own {family.kind} under a name, or (for layers) give a function in model.python",
        ) from None
    return part


def _read_length(where: str, *words: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        text = str(value).strip()
        if text not in words and Duration.parse(text, where).value <= 0:
            raise UserError(f"{where} must be longer than zero", found=repr(value))
        return text

    return read


LayerList = registered_list(LAYERS, "model.layers", key="type")
MetricList = registered_list(METRICS, "metrics.names", key="name")
BuilderPath = Annotated[str, AfterValidator(absolute_builder)]
CheckpointLength = Annotated[str, BeforeValidator(_read_length("run.checkpoint_every", NEVER))]
LogLength = Annotated[str, BeforeValidator(_read_length("run.log_every"))]


class ModelSection(Part):
    """`[model]`: a list of layers, a preset, or a Python function that makes them; none: a small default."""

    layers: LayerList | None = None
    python: BuilderPath | None = None
    preset: registered(PRESETS, "model") | None = None

    @model_validator(mode="before")
    @classmethod
    def _options_of_the_preset(cls, values: Any) -> Any:
        """Hand what stands beside the preset's name to it: {preset = "resnet20", width = 32}."""
        if not isinstance(values, dict) or values.get("preset") is None:
            return values
        beside = {key: value for key, value in values.items() if key not in cls.model_fields}
        preset = values["preset"]
        if not beside or not isinstance(preset, (str, dict)):
            return values
        named = {"name": preset} if isinstance(preset, str) else preset
        return {key: value for key, value in values.items() if key not in beside} | {"preset": {**named, **beside}}

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        sources = {
            "model.layers": self.layers and f"{len(self.layers)} layers",
            "model.preset": self.preset and PRESETS.name_of(type(self.preset)),
            "model.python": self.python,
        }
        given = {key: value for key, value in sources.items() if value}
        if len(given) > 1:
            raise UserError(
                f"{' and '.join(given)} are both given",
                found=", ".join(f"{key}: {value}" for key, value in given.items()),
                allowed="one of them",
            )
        if self.layers == ():
            raise UserError("model.layers is an empty list", hint="name at least one layer, or leave model.layers out")
        return self


class MetricsSection(Part):
    """`[metrics]`: what evaluation reports beside the loss; None: chosen by the target."""

    names: MetricList | None = None


class ClipSection(Part):
    """`[clip]`: elements of the mean gradient beyond `value` are set to it, and then a gradient longer than `norm` (its
    global l2 norm) is scaled down to it; None: never.
    """

    value: float | None = Field(None, gt=0)
    norm: float | None = Field(None, gt=0)


class EarlyStop(Part):
    """`run.early_stop`: stop when a metric of the validation part has not become better for `patience` epochs."""

    metric: str = "loss"
    patience: int = Field(5, ge=1)
    min_delta: float = Field(0.0, ge=0)


class RunSection(Part):
    """`[run]`: length, batch sizes, seed, checkpoints and reports."""

    name: str | None = None
    epochs: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=1)
    global_batch: int = Field(32, ge=1)
    micro_batch: int | None = Field(None, ge=1)
    accumulate: int = Field(1, ge=1)
    reproducible: bool = False
    seed: int = Field(0, ge=0, lt=2**63)
    dir: str | None = None
    checkpoint_every: CheckpointLength = "1 epoch"
    keep: int = Field(3, ge=1)
    log_every: LogLength = "1 s"
    threads_per_rank: int = Field(1, ge=1)
    early_stop: EarlyStop | None = None
    progress: Literal["auto", "bar", "lines", "none"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _fill_length(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("epochs") is None and values.get("steps") is None:
            return {**values, "epochs": DEFAULT_EPOCHS}
        return values

    @model_validator(mode="after")
    def _one_length(self) -> RunSection:
        if self.epochs is not None and self.steps is not None:
            raise UserError(
                "run.epochs and run.steps are both given",
                found=f"run.epochs = {self.epochs}, run.steps = {self.steps}",
                allowed="one of the two",
            )
        return self

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[\w][\w.+-]*", name):
            raise ValueError("must be letters, digits and any of _ . + -, because it names the run folder")
        return name

    @field_validator("dir", mode="before")
    @classmethod
    def _plain_text(cls, value: Any) -> Any:
        return fspath(value) if isinstance(value, PathLike) else value

    @property
    def update_batch(self) -> int:
        """Examples of one update over all ranks: `accumulate` global batches."""
        return self.global_batch * self.accumulate

    def rows_a_pass(self, workers: int) -> int:
        """Most rows of a forward and backward pass on one of so many ranks, whatever `accumulate` is."""
        local = -(-self.global_batch // workers)
        return min(local, self.micro_batch or local)

    @property
    def checkpoint_interval(self) -> Duration | None:
        """`checkpoint_every` as a length of training; None for "never"."""
        return None if self.checkpoint_every == NEVER else Duration.parse(self.checkpoint_every, "run.checkpoint_every")

    @property
    def log_interval(self) -> Duration:
        """`log_every` as a length of training."""
        return Duration.parse(self.log_every, "run.log_every")
