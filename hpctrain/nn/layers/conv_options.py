"""What convolution layers have in common: options for each axis, padding, errors in words."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt

from hpctrain.errors import UserError
from hpctrain.kernels.conv.sizes import output_size
from hpctrain.nn.layers.base import Shape

T = TypeVar("T", bound=int)

PerAxis = PositiveInt | Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=3)]
"""One number for all axes, or a list with a number for each."""

PaddingPerAxis = NonNegativeInt | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=3)]

Padding = Literal["same", "valid"] | PaddingPerAxis
"""Zeros around the input: by rule, or this many on both sides of each axis."""

_AXIS_NAMES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


def per_axis(value: T | tuple[T, ...], axes: int, option: str) -> tuple[T, ...]:
    """Return the option's value for each axis."""
    if isinstance(value, int):
        return (value,) * axes
    if len(value) != axes:
        raise UserError(
            f"{option} has the wrong number of axes", found=str(list(value)), allowed=f"one number, or a list of {axes}"
        )
    return tuple(value)


def image_axes(in_shape: Shape, axes: int) -> Shape:
    """Return the axes of an image without its channels; a shape of another kind is a `UserError`."""
    if len(in_shape) != axes + 1 or min(in_shape) < 1:
        wanted = ", ".join([*_AXIS_NAMES[axes], "channels"])
        raise UserError(
            "the input's shape does not fit",
            found=str(in_shape),
            allowed=f"({wanted})",
            hint="put a reshape before the layer if there is no axis of channels",
        )
    return in_shape[:-1]


def pads_of(padding: Padding, x: Shape, k: Shape, stride: Shape, dilation: Shape) -> tuple[Shape, Shape]:
    """Return the zeros before and after each axis.

    "same": the output has ceil(x / stride) places, the odd zero stands at the end (as in Keras); "valid": none;
    numbers: on both sides (as in PyTorch).
    """
    if padding == "valid":
        return (0,) * len(x), (0,) * len(x)
    if padding == "same":
        totals = [
            max((-(-size // step) - 1) * step + wide * (taps - 1) + 1 - size, 0)
            for size, taps, step, wide in zip(x, k, stride, dilation, strict=True)
        ]
        return tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    both = per_axis(padding, len(x), "padding")
    return both, both


def output_axes(x: Shape, k: Shape, stride: Shape, dilation: Shape, pads: tuple[Shape, Shape]) -> Shape:
    """Return the axes of a convolution's output; a kernel that does not fit is a `UserError`."""
    y = tuple(output_size(*axis) for axis in zip(x, k, stride, dilation, *pads, strict=True))
    if min(y) < 1:
        raise UserError(
            "the kernel is larger than the padded input",
            found=f"input {x}, kernel {k}, dilation {dilation}, padding {pads[0]} before and {pads[1]} after",
            allowed="dilation * (kernel - 1) + 1 at most input + padding, on every axis",
            hint='use a smaller kernel, fewer layers that shrink the image, or padding = "same"',
        )
    return y


def three(values: Shape, filling: int) -> tuple[int, int, int]:
    """Return the values of one to three axes as those of three, the missing leading ones filled."""
    return (*(filling,) * (3 - len(values)), *values)
