"""The commented job file keeps step with the schema, and so does the page about it."""

import re
from pathlib import Path

import pydantic
import pytest

from hpctrain.compress import COMPRESSIONS
from hpctrain.data.prepare import PREPARATIONS
from hpctrain.job import BUILTIN_JOB, Job
from hpctrain.nn import LAYERS, LOSSES, METRICS, PRESETS
from hpctrain.optim import OPTIMIZERS, SCHEDULES
from hpctrain.options import Part, known_keys
from hpctrain.registry import Registry
from hpctrain.strategies import STRATEGIES
from hpctrain.tools.job import TEMPLATE, builtin_job

PAGE = Path(__file__).parents[2] / "docs" / "job-file.md"
MODELS_PAGE = PAGE.with_name("models.md")  # layers and presets have a page of their own; the template shows a few
FAMILIES = [COMPRESSIONS, LAYERS, LOSSES, METRICS, PREPARATIONS, PRESETS, OPTIMIZERS, SCHEDULES, STRATEGIES]


def sections_of(text: str) -> dict[str, str]:
    """The template's lines by section, whether they are comments or not."""
    pieces = re.split(r"^(?:# )?\[(\w+)\]", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def keys(section: str) -> list[tuple[str, str]]:
    """Every key of a section, those of its tables included ("split", "validation")."""
    found = []
    for key in known_keys(Job, [section]):
        found.append((section, key))
        found += [(section, inner) for inner in known_keys(Job, [section, key])]
    return found


ALL_KEYS = [pair for section in Job.model_fields for pair in keys(section)]
ALL_OPTIONS = [
    (family.kind, name, option) for family in FAMILIES for name in family for option in family.get(name).model_fields
]


def is_key_in(key: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){key} = ", text) is not None


def test_the_walk_finds_the_schema():
    assert ("data", "validation") in ALL_KEYS
    assert ("run", "patience") in ALL_KEYS
    assert len(ALL_KEYS) > 25
    assert ("layer", "dense", "units") in ALL_OPTIONS


def test_template_has_the_sections_and_no_others():
    assert list(sections_of(TEMPLATE)) == list(Job.model_fields)


@pytest.mark.parametrize(("section", "key"), ALL_KEYS)
def test_every_key_is_in_the_template_and_on_the_page(section: str, key: str):
    assert is_key_in(key, sections_of(TEMPLATE)[section])
    assert re.search(rf"\b{key}\b", PAGE.read_text())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_every_part_is_in_the_template_and_on_the_page(family: Registry):
    on_own_page = family in (LAYERS, PRESETS)
    for name in family:
        assert on_own_page or f'"{name}"' in TEMPLATE
        assert re.search(rf"\b{name}\b", (MODELS_PAGE if on_own_page else PAGE).read_text()), name


@pytest.mark.parametrize(("kind", "name", "option"), ALL_OPTIONS)
def test_every_option_of_a_part_is_in_the_template_and_on_the_page(kind: str, name: str, option: str):
    on_own_page = kind in (LAYERS.kind, PRESETS.kind)
    assert on_own_page or is_key_in(option, TEMPLATE)
    assert re.search(rf"\b{option}\b", (MODELS_PAGE if on_own_page else PAGE).read_text())


def test_template_loads(tmp_path: Path):
    (tmp_path / "job.toml").write_text(TEMPLATE)
    job = Job.load(tmp_path / "job.toml")
    assert job.data.files == f"{tmp_path}/train.h5"
    assert len(job.model.layers) == 5
    assert job.run.name == "job"


def test_commented_defaults_are_the_defaults(tmp_path: Path):
    """Lines that are commented out and are neither an example nor an alternative say what holds anyway."""
    alternatives = {
        "validation_files",
        "test_files",
        "preset",
        "python",
        "norm",
        "name",
        "names",
        "steps",
        "micro_batch",
        "dir",
        "staged",
    }
    alternatives |= {"compression", "exclude", "target_encoding", "windows", "prepare", "prepare_target"}
    alternatives |= {"weight", "mask", "ignore_label", "smoothing", "class_weights", "positive_weight"}
    alternatives |= {"early_stop", "momentum", "nesterov", "rho", "trust", "ema", "groups", "workers", "value"}
    alternatives |= {"chosen"}
    lines = re.findall(r"^# (\w+) = ", TEMPLATE, flags=re.MULTILINE)
    defaults = [key for key in lines if key not in alternatives]
    assert {"distribute", "seed", "keep", "beta1", "warmup", "collective"} <= set(defaults)
    live = re.sub(rf"^# (?=({'|'.join(defaults)}) = )", "", TEMPLATE, flags=re.MULTILINE)
    (tmp_path / "job.toml").write_text(TEMPLATE)
    without = Job.load(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_text(live)
    assert Job.load(tmp_path / "job.toml") == without


@pytest.mark.parametrize(
    "choice",
    [
        "validation_files",
        "test_files",
        "python",
        "norm",
        "micro_batch",
        "dir",
        "early_stop",
        "chosen",
        "prepare",
        "prepare_target",
        "compression",
    ],
)
def test_commented_choices_load_too(choice: str, tmp_path: Path):
    instead = {"validation_files": "split", "test_files": "split", "python": "layers"}.get(choice)
    text = re.sub(rf"^# (?={choice} = )", "", TEMPLATE, flags=re.MULTILINE)
    if instead:
        text = re.sub(rf"^{instead} = (\[.*?^\]|.*?$)", "", text, flags=re.MULTILINE | re.DOTALL)
    assert text != TEMPLATE
    (tmp_path / "job.toml").write_text(text)
    assert isinstance(Job.load(tmp_path / "job.toml"), pydantic.BaseModel)


def test_builtin_job_is_printed_as_it_is():
    assert builtin_job() == BUILTIN_JOB.read_text()
    assert isinstance(Job.builtin(), Part)
