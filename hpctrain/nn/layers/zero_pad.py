"""`ZeroPad`: zeros around an image or a series."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt

from hpctrain.errors import UserError
from hpctrain.kernels.zero_pad import zero_pad_backward, zero_pad_forward
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer, Shape
from hpctrain.nn.layers.conv_options import per_axis, three

_Sides = Annotated[tuple[NonNegativeInt, ...], Field(min_length=2, max_length=2)]
_PerAxis = Annotated[tuple[NonNegativeInt | _Sides, ...], Field(min_length=1, max_length=3)]


class ZeroPad(Layer):
    """y = x with `padding` zeros before and behind each axis but the channels; one to three axes.

    padding: a number for all sides; or a list with an entry for each axis, a number for both its sides or a list
    [before, behind].
    """

    padding: NonNegativeInt | _PerAxis

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Input (positions.., channels); out_shape: each axis but the last longer by its zeros."""
        if not 2 <= len(in_shape) <= 4:
            raise UserError(
                "the input's shape does not fit",
                found=str(in_shape),
                allowed="one to three axes and an axis of channels",
                hint="put a reshape before the layer if there is no axis of channels",
            )
        x = in_shape[:-1]
        sides = [(entry, entry) if isinstance(entry, int) else entry for entry in self._entries(len(x))]
        before, behind = (tuple(side[index] for side in sides) for index in (0, 1))
        args = ("rows", *three(x, 1), *three(before, 0), *three(behind, 0), in_shape[-1])
        return BuiltLayer(
            out_shape=(*(low + size + high for low, size, high in zip(before, x, behind, strict=True)), in_shape[-1]),
            forward=Call(zero_pad_forward, ("x", "y", *args)),
            backward=Call(zero_pad_backward, ("dy", "dx", *args)),
            views={name: () for name in ("x", "dx", "y", "dy")},
        )

    def _entries(self, axes: int) -> tuple[int | tuple[int, ...], ...]:
        return per_axis(self.padding, axes, "padding")
