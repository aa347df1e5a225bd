"""`Layer`: the contract of every layer, and what a layer tells the composer about itself.

A layer is its options and nothing else; it holds no numbers.  `build` is given the shape of one example and answers
with a `BuiltLayer`: which parameters it needs and which compiled kernels to call, with the *names* of their arguments.
The composer (`nn/compose.py`) turns these into one compiled step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hpctrain.options import Part

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ParamSpec:
    """A trainable tensor: its short name, shape, and initial values (`nn/initializers.py`)."""

    name: str
    shape: Shape
    initializer: str = "zeros"
    fan_in: int = 1
    fan_out: int = 1


@dataclass(frozen=True)
class Call:
    """One kernel and the names of its arguments, in order.

    A name is `x`, `y` (input and output), `dx`, `dy` (their gradients), a parameter's short name, `d_` + a parameter's
    short name (its gradient, to be added to), a buffer's name, or one of `ids seed step layer` (example ids, the run's
    seed, the step, this layer's number).  A number is passed as it is.
    """

    kernel: Callable
    args: tuple[str | int | float, ...]


@dataclass(frozen=True)
class BuiltLayer:
    """What the composer needs to know of a layer for one input shape.

    out_shape        shape of one example's output
    forward          training pass; None: the output is the input's memory, reshaped (flatten)
    backward         adds into parameter gradients and stores dx; None with forward None
    backward_params  the same without dx, for a layer on the network's inputs; None: there is nothing to do there
    predict          evaluation pass; `forward` when left out; "alias" where evaluation changes nothing (dropout)
    params           trainable tensors
    buffers          arrays kept from forward to backward: name -> shape for one example
    views            argument name -> trailing shape of the view handed to kernels, the leading axis taking the rest:
                     () gives flat arrays, (k,) matrices with k columns; without an entry it is (rows, *shape)
    in_place         the kernels allow y to be x and dx to be dy
    """

    out_shape: Shape
    forward: Call | None
    backward: Call | None
    backward_params: Call | None = None
    predict: Call | str | None = None
    params: tuple[ParamSpec, ...] = ()
    buffers: Mapping[str, Shape] = field(default_factory=dict)
    views: Mapping[str, Shape] = field(default_factory=dict)
    in_place: bool = False


class Layer(Part):
    """Base of all layers; subclasses add their options as fields and implement `build`."""

    @abstractmethod
    def build(self, in_shape: Shape) -> BuiltLayer:
        """Describe the layer for inputs of this shape (of one example, without the batch axis).

        A shape that does not fit is a `UserError` that says what shape is needed; the caller adds the layer's name.
        """
