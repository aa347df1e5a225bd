"""Does a network fit the data and the loss?  Asked once, before anything is allocated or compiled."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.errors import UserError
from hpctrain.nn.compose import layer_name, make_plan
from hpctrain.nn.layers.base import Layer, Shape
from hpctrain.nn.losses import Loss


def output_width(layers: Sequence[Layer], input_shape: Shape) -> int:
    """Return the number of outputs of a network; `UserError` where layers do not fit together or nothing is trained."""
    plan = make_plan(layers, input_shape or (1,))
    if not len(plan.layout):
        raise UserError("the model has nothing to train", found=f"{len(layers)} layers, none with parameters")
    if len(plan.output.shape) != 1:
        raise UserError(
            f"{_last(layers)} gives shape {plan.output.shape} for inputs of shape {input_shape}; "
            "the loss needs one axis, shape (outputs,)",
            hint='put a "flatten" layer before the first dense layer',
        )
    return plan.output.shape[0]


def check_outputs(
    layers: Sequence[Layer], width: int, loss: Loss, target_kind: str, classes: int | None, target_width: int
) -> None:
    """Raise a `UserError` that names the last layer and both shapes where it does not fit the loss and the targets."""
    try:
        loss.check_outputs(width, target_kind, classes, target_width)
    except UserError as error:
        target = f"targets of shape ({target_width},)" if target_kind == "real" else f"{classes} classes"
        raise UserError(
            f"{_last(layers)} gives outputs of shape ({width},), which do not fit {target}\n  {error.message}"
        ) from None


def _last(layers: Sequence[Layer]) -> str:
    index = len(layers) - 1
    return f"the last layer, model.layers.{index} ({layer_name(layers, index)}),"
