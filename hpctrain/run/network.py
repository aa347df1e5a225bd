"""Which layers a job means: as listed, as its preset or its Python function makes them, or a small default."""

from __future__ import annotations

import traceback
from pathlib import Path

import pydantic

from hpctrain.data.facts import DataFacts
from hpctrain.errors import UserError
from hpctrain.job import Job, load_builder
from hpctrain.nn import LAYERS
from hpctrain.nn.layers.activations import Relu
from hpctrain.nn.layers.base import Layer
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.layers.flatten import Flatten
from hpctrain.nn.losses import Loss
from hpctrain.options import part_from
from hpctrain.run.input_names import name_inputs

_MANY_CLASSES = 1000
DEFAULT_UNITS = (128, 64)  # hidden layers of a job that names no model


def network(job: Job, facts: DataFacts, loss: Loss) -> list[Layer]:
    """Return the layers of a job for its data."""
    outputs = loss.outputs_for(facts.target_kind, facts.classes, facts.target_width)
    parts = getattr(facts, "input_parts", {})  # files of earlier versions do not tell
    if job.model.python:
        return name_inputs(call_builder(job.model.python, facts.input_shape, outputs), parts)
    if job.model.layers is not None:
        return name_inputs(job.model.layers, parts)
    if job.model.preset is not None:
        return job.model.preset.layers(facts.input_shape, outputs)
    _check_number_of_classes(facts)
    layers: list[Layer] = [Flatten()] if len(facts.input_shape) > 1 else []
    for units in DEFAULT_UNITS:
        layers += [Dense(units=units), Relu()]
    return [*layers, Dense(units=outputs)]


def _check_number_of_classes(facts: DataFacts) -> None:
    """Refuse to make a default network for one absurd label: it would need more memory than there is."""
    if facts.classes and facts.classes > max(_MANY_CLASSES, facts.rows["train"]):
        raise UserError(
            f"a class label is too large for the default network: {facts.label_max}",
            found=f"{facts.classes:,} outputs for {facts.rows['train']:,} training rows",
            hint="number the classes 0, 1, 2, ... without gaps, or write the layers yourself in [model]",
        )


def interface_of(facts: DataFacts) -> dict[str, object]:
    """Return the facts that network and preparation depend on, as JSON values: enough to build them without data."""
    return {
        "input_shape": list(facts.input_shape),
        "target_kind": facts.target_kind,
        "classes": facts.classes,
        "target_width": facts.target_width,
        "input_parts": facts.input_parts,
        **({"categories": facts.categories} if facts.categories else {}),
        "target_shape": list(facts.target_shape),
        "stored_shape": list(facts.stored_shape),
        "columns": {name: list(span) for name, span in facts.columns.items()},
    }


def call_builder(spec: str, input_shape: tuple[int, ...], outputs: int) -> list[Layer]:
    """Return the layers that the user's function ("file.py:function") makes; names and tables count as in a job file.

    Errors: `UserError` for an exception inside, with the user's line, and for a result that is no list of layers.
    """
    build = load_builder(spec)
    try:
        made = build(input_shape, outputs)
    except UserError:
        raise
    except Exception as error:
        call = f"build({input_shape}, {outputs})"
        raise UserError(f"model.python: {spec} failed when called as {call}\n{_own_lines(error, spec)}") from None
    layers = getattr(made, "layers", made)
    if not isinstance(layers, (list, tuple)) or not layers:
        raise UserError(
            f"model.python: {spec} did not return a list of layers",
            found=repr(made),
            allowed="a list of layers, such as [Dense(units=64), Relu(), Dense(units=outputs)]",
            hint="is a `return` missing?" if made is None else None,
        )
    parts = [part_from(LAYERS, layer, f"model.python: layer {index}", "type") for index, layer in enumerate(layers)]
    for part in parts:
        if not isinstance(part, Layer):
            raise UserError(f"model.python: {spec} returned something that is not a layer", found=repr(part))
    return parts


def _own_lines(error: Exception, spec: str) -> str:
    """Word an exception with the frames of the user's own file."""
    path = Path(spec.rpartition(":")[0])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    if isinstance(error, pydantic.ValidationError):
        items = error.errors(include_url=False)
        found = [f"{error.title}: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in items]
    else:
        found = [line.rstrip() for line in traceback.format_exception_only(error)]
    return "\n".join([line.rstrip() for line in traceback.format_list(frames)] + found)
