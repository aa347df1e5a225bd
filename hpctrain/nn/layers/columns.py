"""`Columns`: a part of the last axis; gives one of several inputs a branch of its own."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from hpctrain.errors import UserError
from hpctrain.kernels.merge import place_columns, take_columns
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer, OnPadding, Shape


class Columns(Layer):
    """y[..., j] = x[..., start + j], start <= start + j < stop; `shape`: that of an example of y, where it has another.

    input  the name of a dataset of the inputs, instead of the numbers: they are filled in when the data is known
    """

    on_padding: ClassVar[OnPadding] = "features"

    input: Annotated[str, Field(min_length=1)] | None = None
    start: NonNegativeInt = 0
    stop: PositiveInt | None = None
    shape: tuple[PositiveInt, ...] | None = None

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Input (.., k); out_shape: (.., stop - start), or `shape`."""
        if self.input is not None and self.stop is None:
            raise UserError(
                "it names a part of the inputs, which have no names here",
                found=f"input = {self.input!r}",
                allowed="start and stop",
            )
        width = in_shape[-1]
        stop = width if self.stop is None else self.stop
        if not self.start < stop <= width:
            raise UserError(
                "there are no such columns",
                found=f"start = {self.start}, stop = {stop}; the input's last axis has {width}",
                allowed=f"0 <= start < stop <= {width}",
            )
        taken = (*in_shape[:-1], stop - self.start)
        if self.shape is not None and math.prod(self.shape) != math.prod(taken):
            raise UserError(
                "the columns cannot have this shape",
                found=f"shape = {list(self.shape)}, {math.prod(taken)} numbers",
                allowed=f"a shape whose product is {math.prod(taken)}",
            )
        columns, whole = (stop - self.start,), (width,)
        return BuiltLayer(
            out_shape=taken if self.shape is None else self.shape,
            forward=Call(take_columns, ("x", "y", self.start)),
            backward=Call(place_columns, ("dy", "dx", self.start)),
            views={"x": whole, "dx": whole, "y": columns, "dy": columns},
        )
