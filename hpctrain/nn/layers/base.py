"""`Layer`: the contract of every layer, and what a layer tells the composer about itself.

A layer is its options and nothing else; it holds no numbers.  `build` is given the shape of one example and answers
with a `BuiltLayer`: which parameters it needs and which compiled kernels to call, with the *names* of their arguments.
The composer (`nn/graph.py`, `nn/plan.py`, `nn/compose.py`) turns these into one compiled step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hpctrain.errors import UserError
from hpctrain.options import Part

Shape = tuple[int, ...]
OnPadding = Literal["refuse", "each_step", "features", "zeros", "mask", "mask_ends"]


@dataclass(frozen=True)
class ParamSpec:
    """A trainable tensor: its short name, shape, and initial values (`nn/initializers.py`).

    decays: whether weight decay applies by default (not to biases and to the scales of normalisation layers)
    """

    name: str
    shape: Shape
    initializer: str = "zeros"
    fan_in: int = 1
    fan_out: int = 1
    decays: bool = True


@dataclass(frozen=True)
class StateSpec:
    """A running statistic: an update makes it momentum * state + (1 - momentum) * its mean over the examples."""

    name: str
    shape: Shape
    initial: float = 0.0
    momentum: float = 0.9


@dataclass(frozen=True)
class Buffer:
    """Memory that a layer's kernels need.

    shape        in floats: for each example, or once for a forward call (`per_example` false)
    kept         written by forward and read by backward; else scratch of one pass
    over         a value ("dy") in whose memory scratch may be made: once it is written, the kernels read that no more
    """

    shape: Shape
    per_example: bool = True
    kept: bool = True
    over: str | None = None


@dataclass(frozen=True)
class Call:
    """One kernel and the names of its arguments, in order.

    x, y, dx, dy                 input, output and their gradients; with several inputs x0, x1, ... and dx0, dx1, ...
    a parameter's short name     its values; `d_` + the name: its gradient, to be added to (see `beta`)
    a state's short name         its running value; `d_` + the name in a training forward pass: to be *added* to, the
                                 number of rows times the statistic of this call
    a buffer's name
    ids seed step layer rows     example ids (rows,) int64, the run's seed (uint64), the step, the layer's number, rows
    beta                         0.0 where parameter gradients are to be stored, 1.0 where they are to be added to. A
                                 backward pass that does not name it finds them zeroed and simply adds
    a number                     is passed as it is

    meet: a buffer (once, of 2 k floats, named in `args`) that holds k float64 numbers after this call of a training
    pass; they are added up over the ranks before the next call.  Kernels must then take batches without rows.

    by_lane: what stands for this call where sums over rows go by lanes (`nn.compose_lanes`), of a kernel that keeps
    lanes apart by itself.  Further names of its arguments: `sum_`, `scale_` and `largest_` + a parameter's name (its
    gradient in fixed point, see `kernels.fixed_point`), and lane, the rows of one.
    together: a row's bits may depend on how many rows there are, so that lanes are kept apart in any case.
    """

    kernel: Callable
    args: tuple[str | int | float, ...]
    meet: str | None = None
    by_lane: Call | None = None
    together: bool = False


Calls = Call | tuple[Call, ...]


@dataclass(frozen=True)
class BuiltLayer:
    """What the composer needs to know of a layer for one input shape.

    out_shape        shape of one example's output
    forward          training pass; None: the output is the input's memory, reshaped (flatten)
    backward         stores dx and adds into parameter gradients; None: dy is the gradient of every input (addition)
    backward_params  the same without dx, where no input needs a gradient; None: there is nothing to do there
    predict          evaluation pass; None: `forward`; "alias" where evaluation changes nothing (dropout)
    views            argument name -> trailing shape of the view given to kernels, the leading axis taking the rest:
                     () gives flat arrays, (k,) matrices with k columns; without an entry it is (rows, *shape)
    in_place         the kernels allow y to be x and dx to be dy
    fused            registered name of an activation -> what stands for this layer and that activation behind it
    """

    out_shape: Shape
    forward: Calls | None
    backward: Calls | None
    backward_params: Calls | None = None
    predict: Calls | str | None = None
    params: tuple[ParamSpec, ...] = ()
    state: tuple[StateSpec, ...] = ()
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    views: Mapping[str, Shape] = field(default_factory=dict)
    in_place: bool = False
    fused: Mapping[str, BuiltLayer] = field(default_factory=dict)

    @property
    def meets(self) -> bool:
        """Whether ranks meet within a training pass of this layer: see `Call.meet`."""
        return any(call.meet for calls in (self.forward, self.backward) for call in calls_of(calls))


def calls_of(calls: Calls | str | None) -> tuple[Call, ...]:
    """Return a pass as a tuple of calls."""
    if calls is None or isinstance(calls, str):
        return ()
    return (calls,) if isinstance(calls, Call) else calls


class Layer(Part):
    """Base of all layers; subclasses add their options as fields and implement `build` (or `build_many`)."""

    inputs: ClassVar[int | None] = 1
    """How many inputs the layer takes; None: any number."""

    on_padding: ClassVar[OnPadding] = "refuse"
    """What the layer does inside `padded`, where some steps of a sequence (its first axis) are padding.

    refuse       it mixes steps, and would take padding for data: the model is refused (a layer that says nothing)
    each_step    a step of the output comes from that step of the input(s) alone
    features     the same where a step has features, that is where inputs have two axes or more
    zeros        it mixes steps and takes what lies beyond the ends for zeros: padded steps are set to zero before it
    mask         it is given the mask (steps,) as a further input and leaves padding out; its output has the steps
    mask_ends    the same, and its output has no steps any more
    """

    @abstractmethod
    def build(self, in_shape: Shape) -> BuiltLayer:
        """Describe the layer for inputs of this shape (of one example, without the batch axis).

        A shape that does not fit is a `UserError` that says what shape is needed; the caller adds the layer's name.
        """

    def build_many(self, in_shapes: tuple[Shape, ...]) -> BuiltLayer:
        """Describe the layer for several inputs; the default is for layers with one."""
        if len(in_shapes) != 1:
            raise UserError("it takes one input", found=f"{len(in_shapes)} inputs")
        return self.build(in_shapes[0])


class Composite(Layer):
    """A layer that is made of other layers and has no kernels of its own (residual, parallel)."""

    def build(self, in_shape: Shape) -> BuiltLayer:
        """Never called: the graph takes a composite apart."""
        raise TypeError("a composite layer is expanded, not built")

    @abstractmethod
    def expand(self, add: Callable[..., Any], *values: Any) -> Any:
        """Build the inside from the input value(s) and return the output value.

        `add(layer, *values)` puts a layer (or another composite) into the graph and returns its output value;
        `add.shape(value)` is a value's shape for one example.  `with add.padding(value, mask_layer):` says that some
        steps of a value are padding: see `Padded`.
        """
