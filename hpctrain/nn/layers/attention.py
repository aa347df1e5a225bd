"""`Attention`: multi-head self-attention with its projections."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from hpctrain.errors import UserError
from hpctrain.kernels.attention import KEYS, attention_backward, attention_forward
from hpctrain.kernels.embedding import no_gradient
from hpctrain.kernels.panels import LANES, TILE_ROWS
from hpctrain.kernels.projection import (
    bias_gradient,
    input_gradient,
    project,
    project_with_bias,
    weight_gradient,
)
from hpctrain.nn.initializers import InitializerName
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Layer, OnPadding, ParamSpec, Shape

_FORWARD_SCRATCH = ("queries", "keys", "values", "scores", "sums", "stats", "listed")
_BACKWARD_SCRATCH = (
    *("queries", "slopes", "query_rows", "slope_rows", "d_queries"),
    *("keys", "values", "d_keys", "d_values", "scores", "d_scores", "stats", "listed"),
)


class Attention(Layer):
    """softmax(Q K^T / sqrt(width)) V in `heads` heads, then a projection back to the input's features.

    Vaswani et al. 2017.  Memory grows with the number of steps, not with its square.  `causal`: a step sees itself and
    the steps before.  `units`: features of all heads together, by default as many as the input has.  Given two inputs,
    the second, (rows, steps), says which steps are padding (0): nobody looks at them, and a step that sees nothing at
    all gets zeros (before the output's bias).
    """

    inputs: ClassVar[int | None] = None
    on_padding: ClassVar[OnPadding] = "mask"

    heads: PositiveInt
    units: PositiveInt | None = None
    causal: bool = False
    bias: bool = True
    initializer: InitializerName = "glorot_uniform"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Without a mask; see `build_many`."""
        return self.build_many((in_shape,))

    def build_many(self, in_shapes: tuple[Shape, ...]) -> BuiltLayer:
        """`qkv_weight` (features, 3 units), `qkv_bias`, `out_weight` (units, features), `out_bias`; shape unchanged."""
        steps, features = _sequence_shape(in_shapes)
        units = self.units or features
        if units % self.heads:
            raise UserError(
                "the heads of attention have equal widths",
                found=f"{units} units in {self.heads} heads",
                allowed=f"heads that divide {units}",
            )
        masked = len(in_shapes) == 2
        x, dx = ("x0", "dx0") if masked else ("x", "dx")
        # Without a mask the argument is any flat array: it is not read.
        mask = "x1" if masked else "log_sums"
        options = (self.heads, steps, self.causal, masked)
        forward = (
            self._project(x, "qkv_weight", "qkv_bias", "qkv"),
            Call(attention_forward, ("qkv", mask, "context", "log_sums", *_FORWARD_SCRATCH, *options)),
            self._project("context", "out_weight", "out_bias", "y"),
        )
        core = ("qkv", mask, "context", "log_sums", "d_context", "d_qkv", *_BACKWARD_SCRATCH, *options)
        backward_params = (
            *self._gradients("context", "dy", "out_weight", "out_bias"),
            Call(input_gradient, ("dy", "out_weight", "d_context", 0.0)),
            Call(attention_backward, core),
            *self._gradients(x, "d_qkv", "qkv_weight", "qkv_bias"),
        )
        no_mask_gradient = (Call(no_gradient, ("dx1",)),) if masked else ()
        return BuiltLayer(
            out_shape=in_shapes[0],
            forward=forward,
            backward=(*backward_params, Call(input_gradient, ("d_qkv", "qkv_weight", dx, 0.0)), *no_mask_gradient),
            backward_params=backward_params,
            params=self._params(features, units),
            buffers=_buffers(steps, units, self.heads),
            views={
                **dict.fromkeys((x, dx, "y", "dy"), (features,)),
                **dict.fromkeys(("qkv", "d_qkv"), (3 * units,)),
                **dict.fromkeys(("context", "d_context"), (units,)),
                **dict.fromkeys(("x1", "dx1", "log_sums"), ()),
            },
        )

    def _params(self, features: int, units: int) -> tuple[ParamSpec, ...]:
        # Q, K and V are three projections that stand in one matrix: each has its own fans.
        weights = (
            ParamSpec("qkv_weight", (features, 3 * units), self.initializer, fan_in=features, fan_out=units),
            ParamSpec("out_weight", (units, features), self.initializer, fan_in=units, fan_out=features),
        )
        biases = (
            ParamSpec("qkv_bias", (3 * units,), decays=False),
            ParamSpec("out_bias", (features,), decays=False),
        )
        return (weights[0], biases[0], weights[1], biases[1]) if self.bias else weights

    def _project(self, x: str, weight: str, bias: str, y: str) -> Call:
        return Call(project_with_bias, (x, weight, bias, y)) if self.bias else Call(project, (x, weight, y))

    def _gradients(self, x: str, dy: str, weight: str, bias: str) -> tuple[Call, ...]:
        of_weight = Call(weight_gradient, (x, dy, f"d_{weight}", "beta"))
        return (of_weight, Call(bias_gradient, (dy, f"d_{bias}", "beta"))) if self.bias else (of_weight,)


def _sequence_shape(in_shapes: tuple[Shape, ...]) -> Shape:
    if len(in_shapes) not in (1, 2) or len(in_shapes[0]) != 2:
        raise UserError(
            "attention works on a sequence",
            found=f"inputs of shape {', '.join(map(str, in_shapes))}",
            allowed="one input of shape (steps, features), and optionally a mask of shape (steps,)",
        )
    if len(in_shapes) == 2 and in_shapes[1] != in_shapes[0][:1]:
        raise UserError(
            "the second input of attention is its mask",
            found=f"shape {in_shapes[1]}",
            allowed=f"shape {in_shapes[0][:1]}: a number for each step, 0 for padding",
        )
    return in_shapes[0]


def _buffers(steps: int, units: int, heads: int) -> dict[str, Buffer]:
    """Memory of both passes; the scratch of a block is the same for every batch size."""
    padded = -(-(units // heads) // LANES) * LANES
    once = {
        **dict.fromkeys(("queries", "slopes"), (padded, LANES)),
        **dict.fromkeys(("sums", "query_rows", "slope_rows", "d_queries"), (LANES, padded)),
        **dict.fromkeys(("keys", "values"), (KEYS, padded)),
        **dict.fromkeys(("d_keys", "d_values"), (steps + TILE_ROWS, padded)),
        **dict.fromkeys(("scores", "d_scores"), (KEYS, LANES)),
        "stats": (3, LANES),
        "listed": (steps,),
    }
    return {
        "qkv": Buffer((steps, 3 * units)),
        "context": Buffer((steps, units)),
        "log_sums": Buffer((heads, steps)),
        "d_qkv": Buffer((steps, 3 * units), kept=False),
        "d_context": Buffer((steps, units), kept=False),
        **{name: Buffer(shape, per_example=False, kept=False) for name, shape in once.items()},
    }
