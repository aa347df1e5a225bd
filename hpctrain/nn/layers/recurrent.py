"""`Lstm`, `Gru`: recurrent layers over a sequence; `LastStep`: a sequence's last step."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from pydantic import PositiveInt

from hpctrain.errors import UserError
from hpctrain.kernels import padding
from hpctrain.kernels import recurrent as kernels
from hpctrain.kernels.embedding import no_gradient
from hpctrain.kernels.projection import bias_gradient, input_gradient, project_with_bias, weight_gradient
from hpctrain.nn.initializers import InitializerName
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Layer, OnPadding, ParamSpec, Shape
from hpctrain.nn.layers.masks import check_mask, masked_layer


@dataclass(frozen=True)
class _Direction:
    """One direction of a recurrent layer: the ending of its names, its columns' place in the output."""

    suffix: str
    at: int
    reverse: bool

    def name(self, short: str) -> str:
        return short + self.suffix

    def names(self, *shorts: str) -> tuple[str, ...]:
        return tuple(short + self.suffix for short in shorts)


class _Recurrent(Layer):
    """What LSTM and GRU share: their options, the projections of all steps at once, and the two directions."""

    inputs: ClassVar[int | None] = None

    units: PositiveInt
    return_sequences: bool = True
    bidirectional: bool = False
    initializer: InitializerName = "glorot_uniform"

    _gates: ClassVar[int]

    @property
    def on_padding(self) -> OnPadding:
        """Padded steps pass the state on as it is, in both directions; their outputs are that state."""
        return "mask" if self.return_sequences else "mask_ends"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Without a mask; see `build_many`."""
        return self.build_many((in_shape,))

    def build_many(self, in_shapes: tuple[Shape, ...]) -> BuiltLayer:
        """`weight` (features, gates units), `recurrent` (units, gates units), `bias`; out_shape (steps, units).

        Without `return_sequences` out_shape is (units,): the state behind the last step.  `bidirectional` doubles the
        units: the second half reads from the last step to the first and has parameters of its own (`weight_back`, ...).
        Given a mask (steps,) as a second input, steps where it is 0 change nothing.
        """
        in_shape, masked = in_shapes[0], len(in_shapes) > 1
        if len(in_shape) != 2:
            raise UserError(
                "a recurrent layer works on a sequence",
                found=f"an input of shape {in_shape}",
                allowed="shape (steps, features)",
            )
        if masked:
            check_mask(in_shapes)
        steps, features = in_shape
        directions = [_Direction("", 0, False)]
        if self.bidirectional:
            directions.append(_Direction("_back", self.units, True))
        width = self.units * len(directions)
        hidden = "y" if self.return_sequences else "hidden"
        dx, no_mask_gradient = ("dx0", (Call(no_gradient, ("dx1",)),)) if masked else ("dx", ())
        forward = [call for one in directions for call in self._forward(one, steps, hidden, masked)]
        if not self.return_sequences:
            forward.append(Call(kernels.take_last, ("hidden", "y", steps, self.units)))
        gradients = [self._backward(one, steps, hidden, masked) for one in directions]
        with_input = [
            (*calls, Call(input_gradient, ("d_gates", one.name("weight"), dx, float(number > 0))), *after)
            for number, (one, (calls, after)) in enumerate(zip(directions, gradients, strict=True))
        ]
        buffers, views = self._memory(directions, steps, features, width)
        return BuiltLayer(
            out_shape=(steps, width) if self.return_sequences else (width,),
            forward=tuple(forward),
            backward=(*(call for calls in with_input for call in calls), *no_mask_gradient),
            backward_params=tuple(call for calls, after in gradients for call in (*calls, *after)),
            params=tuple(spec for one in directions for spec in self._params(one, features)),
            buffers=buffers,
            views=views,
        )

    def _forward(self, one: _Direction, steps: int, hidden: str, masked: bool) -> tuple[Call, ...]:
        # Without a mask the argument is any flat array: it is not read.
        walk = (steps, one.at, one.reverse, "x1" if masked else one.name("bias"), masked)
        return (
            Call(project_with_bias, ("x0" if masked else "x", *one.names("weight", "bias", "gates"))),
            self._steps_forward(one, walk, hidden),
        )

    def _backward(
        self, one: _Direction, steps: int, hidden: str, masked: bool
    ) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
        """Return the calls before the gradient of the input, for which d_gates is the input's side, and those after."""
        x, mask = ("x0", "x1") if masked else ("x", one.name("bias"))
        walk = (steps, one.at, one.reverse, self.return_sequences, mask, masked)
        before = (
            self._steps_backward(one, walk, hidden),
            Call(weight_gradient, (x, "d_gates", one.name("d_weight"), "beta")),
            Call(bias_gradient, ("d_gates", one.name("d_bias"), "beta")),
        )
        after = (
            *self._hidden_side(one),
            Call(kernels.states_before, (hidden, "before", steps, one.at, one.reverse)),
            Call(weight_gradient, ("before", "d_gates", one.name("d_recurrent"), "beta")),
        )
        return before, after

    def _params(self, one: _Direction, features: int) -> tuple[ParamSpec, ...]:
        # The gates are matrices side by side: each has its own fans.
        width, units, initializer = self._gates * self.units, self.units, self.initializer
        return (
            ParamSpec(one.name("weight"), (features, width), initializer, fan_in=features, fan_out=units),
            ParamSpec(one.name("recurrent"), (units, width), initializer, fan_in=units, fan_out=units),
            ParamSpec(one.name("bias"), (width,), decays=False),
        )

    def _memory(
        self, directions: list[_Direction], steps: int, features: int, width: int
    ) -> tuple[dict[str, Buffer], dict[str, Shape]]:
        wide, units = self._gates * self.units, self.units
        buffers = {} if self.return_sequences else {"hidden": Buffer((steps, width))}
        for one in directions:
            buffers |= {one.name("gates"): Buffer((steps, wide)), one.name(self._kept): Buffer((steps, units))}
        buffers |= {
            "d_gates": Buffer((steps, wide), kept=False),
            "before": Buffer((steps, units), kept=False),
            **{name: Buffer((wide,), kept=False) for name in ("added", "d_step")},
            **{name: Buffer((units,), kept=False) for name in ("state", "cell", "d_state", "d_cell", "work")},
        }
        views: dict[str, Shape] = dict.fromkeys(("x", "dx", "x0", "dx0"), (features,))
        views |= dict.fromkeys(("x1", "dx1"), ())
        views |= dict.fromkeys(("y", "dy", "hidden"), (width,)) | {"d_gates": (wide,), "before": (units,)}
        for one in directions:
            views |= {one.name("gates"): (wide,), one.name(self._kept): (units,)}
        return buffers, views

    _kept: ClassVar[str]

    @abstractmethod
    def _steps_forward(self, one: _Direction, walk: tuple, hidden: str) -> Call: ...

    @abstractmethod
    def _steps_backward(self, one: _Direction, walk: tuple, hidden: str) -> Call: ...

    def _hidden_side(self, one: _Direction) -> tuple[Call, ...]:
        """Make the hidden state's side of d_gates of the input's, where they differ."""
        return ()


class Lstm(_Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber 1997), the gates side by side in the order i, f, g, o."""

    _gates: ClassVar[int] = 4
    _kept: ClassVar[str] = "cells"

    def _steps_forward(self, one: _Direction, walk: tuple, hidden: str) -> Call:
        args = (*one.names("gates", "recurrent"), hidden, one.name("cells"), "state", "cell", "added", *walk)
        return Call(kernels.lstm_forward, args, together=True)

    def _steps_backward(self, one: _Direction, walk: tuple, hidden: str) -> Call:
        scratch = ("d_gates", "d_state", "d_cell", "d_step", "work")
        return Call(
            kernels.lstm_backward, (*one.names("gates", "recurrent", "cells"), "dy", *scratch, *walk), together=True
        )


class Gru(_Recurrent):
    """Gated recurrent units (Cho et al. 2014, PyTorch's form), the gates side by side in the order r, z, n.

    `candidate_bias` (units,) is the bias that stands beside the hidden state in n, inside the product with r.
    """

    _gates: ClassVar[int] = 3
    _kept: ClassVar[str] = "candidates"

    def _steps_forward(self, one: _Direction, walk: tuple, hidden: str) -> Call:
        args = (*one.names("gates", "recurrent", "candidate_bias"), hidden, one.name("candidates"))
        return Call(kernels.gru_forward, (*args, "state", "added", *walk), together=True)

    def _steps_backward(self, one: _Direction, walk: tuple, hidden: str) -> Call:
        args = (*one.names("gates", "recurrent"), hidden, one.name("candidates"), "dy")
        return Call(kernels.gru_backward, (*args, "d_gates", "d_state", "d_step", *walk), together=True)

    def _hidden_side(self, one: _Direction) -> tuple[Call, ...]:
        return (Call(kernels.gru_hidden_side, (one.name("gates"), "d_gates", one.name("d_candidate_bias"), "beta")),)

    def _params(self, one: _Direction, features: int) -> tuple[ParamSpec, ...]:
        return (*super()._params(one, features), ParamSpec(one.name("candidate_bias"), (self.units,), decays=False))


class LastStep(Layer):
    """The last step of a sequence: shape (steps, ...) becomes (...); given a mask (steps,) too, the last real step."""

    inputs: ClassVar[int | None] = None
    on_padding: ClassVar[OnPadding] = "mask_ends"

    def build(self, in_shape: Shape) -> BuiltLayer:
        """out_shape is in_shape without its first axis."""  # noqa: D403 (a name in code)
        if len(in_shape) < 2:
            raise UserError(
                "last_step takes a sequence", found=f"an input of shape {in_shape}", allowed="shape (steps, ...)"
            )
        steps, features = in_shape[0], math.prod(in_shape[1:])
        return BuiltLayer(
            out_shape=in_shape[1:],
            forward=Call(kernels.take_last, ("x", "y", steps, features)),
            backward=Call(kernels.last_step_backward, ("dy", "dx", steps)),
            views=dict.fromkeys(("x", "dx", "y", "dy"), (features,)),
        )

    def build_many(self, in_shapes: tuple[Shape, ...]) -> BuiltLayer:
        """Take a mask as a second input; a row without a real step gives zeros."""
        if len(in_shapes) == 1:
            return self.build(in_shapes[0])
        check_mask(in_shapes)
        out_shape, steps = self.build(in_shapes[0]).out_shape, in_shapes[0][0]
        forward = Call(padding.masked_last_forward, ("x0", "x1", "y", steps))
        backward = Call(padding.masked_last_backward, ("x1", "dy", "dx0", steps))
        return masked_layer(in_shapes[0], out_shape, forward, backward)
