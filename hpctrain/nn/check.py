"""Does a network fit the data and the loss?  Asked once, before anything is allocated or compiled."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.errors import UserError
from hpctrain.nn.graph import build_graph, layer_name
from hpctrain.nn.layers.base import Layer, Shape
from hpctrain.nn.losses import Loss


def output_shape(layers: Sequence[Layer], input_shape: Shape) -> Shape:
    """Return the shape of one example's outputs; `UserError` where layers do not fit together or nothing is trained."""
    graph = build_graph(layers, input_shape or (1,))
    if not len(graph.layout()):
        raise UserError("the model has nothing to train", found=_no_parameters(len(layers)))
    return graph.output_shape


def check_outputs(
    layers: Sequence[Layer],
    out_shape: Shape,
    loss: Loss,
    target_kind: str,
    classes: int | None,
    target_shape: Shape,
) -> None:
    """Raise a `UserError` that names the last layer and both shapes where it does not fit the loss and the targets."""
    try:
        loss.check_outputs(out_shape, target_kind, classes, target_shape)
    except UserError as error:
        if target_kind not in loss.accepts:
            raise  # no other layer would help
        target = f"{classes} classes" if target_shape == () else f"targets of shape {target_shape}"
        raise UserError(
            f"{_last(layers)} gives outputs of shape {out_shape}, which do not fit {target}\n  {error.message}"
        ) from None


def _no_parameters(layers: int) -> str:
    return "1 layer, without parameters" if layers == 1 else f"{layers} layers, none with parameters"


def _last(layers: Sequence[Layer]) -> str:
    index = len(layers) - 1
    return f"the last layer, model.layers.{index} ({layer_name(layers, index)}),"
