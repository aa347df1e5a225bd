"""Layers that name a dataset of the inputs ("columns") are given the numbers of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.errors import UserError, unknown_name
from hpctrain.nn.layers.base import Layer
from hpctrain.nn.layers.columns import Columns

Parts = Mapping[str, Sequence[Any]]
"""Name of a dataset of the inputs -> its lo and hi on the last axis, and its own shape where inputs are "flat"."""


def name_inputs(layers: Sequence[Layer], parts: Parts) -> list[Layer]:
    """Return layers, and those in them, with the columns filled in that they name.

    Raises `UserError` for a name that no dataset of the inputs has.
    """
    return [_filled(layer, parts) for layer in layers]


def _filled(layer: Layer, parts: Parts) -> Layer:
    if isinstance(layer, Columns):
        if layer.input is None or layer.stop is not None:
            return layer
        lo, hi, shape = _part(layer.input, parts)
        own = tuple(shape) if shape else None  # one number an example has the shape (): it is a column
        return layer.model_copy(update={"start": lo, "stop": hi, "shape": layer.shape or own})
    inner = {key: _inside(value, parts) for key, value in layer if _holds_layers(value)}
    return layer.model_copy(update=inner) if inner else layer


def _holds_layers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_layers, value))
    return isinstance(value, Layer)


def _inside(value: Any, parts: Parts) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_inside(item, parts) for item in value)
    return _filled(value, parts) if isinstance(value, Layer) else value


def _part(name: str, parts: Parts) -> Sequence[Any]:
    """Return the part of a name: the whole of what the job says, or its last word where only one has it."""
    if name in parts:
        return parts[name]
    ending = [key for key in parts if key.rsplit("/", 1)[-1] == name]
    if len(ending) == 1:
        return parts[ending[0]]
    if ending:
        raise UserError("a layer names a dataset of the inputs, and several have that name", found=name, allowed=ending)
    raise unknown_name("dataset of the inputs", name, list(parts), "the layer columns")
