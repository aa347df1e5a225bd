"""`BatchNorm`, `GroupNorm`, `LayerNorm`, `RmsNorm`: normalised values with a learned scale and bias."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from hpctrain.errors import UserError
from hpctrain.kernels import feature_norms, normalisation
from hpctrain.kernels.columns import line_width
from hpctrain.kernels.normalisation import INPUT_GRADIENT, RELU
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Calls, Layer, OnPadding, ParamSpec, Shape, StateSpec

_FLAT: dict[str, Shape] = {name: () for name in ("x", "dx", "y", "dy")}


def _scale_and_bias(channels: int) -> tuple[ParamSpec, ParamSpec]:
    scale = ParamSpec("scale", (channels,), "ones", decays=False)
    return scale, ParamSpec("bias", (channels,), decays=False)


def _scratch(channels: int) -> dict[str, Buffer]:
    width = line_width(channels)
    shapes = {"lines": (6, width), "totals": (4 * width,)}
    return {name: Buffer(shape, per_example=False, kept=False) for name, shape in shapes.items()}


class BatchNorm(Layer):
    """(x - mean) / sqrt(var + epsilon) scale + bias, for each channel (the last axis).

    Mean and variance are those of a channel over the rows of one forward call (the micro-batch: ghost batch norm,
    Hoffer et al. 2017) and all positions; with `sync` over the whole global batch, the rows of all ranks.  In
    evaluation they are those that training followed: momentum x old + (1 - momentum) x new, the variance unbiased
    (n / (n - 1)) as in PyTorch, whose `momentum` is one minus this.
    Ioffe & Szegedy 2015, arXiv:1502.03167.
    """

    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    epsilon: PositiveFloat = 1e-5
    sync: bool = False

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`scale`, `bias` (channels,), running `running_mean`, `running_var`; out_shape is in_shape, of any rank."""
        return self._built(in_shape, 0)

    def _built(self, in_shape: Shape, mode: int) -> BuiltLayer:
        channels = in_shape[-1]
        predict = ("x", "scale", "bias", "y", "running_mean", "running_var", "lines", self.epsilon, mode)
        forward, backward, backward_params = (self._synchronised if self.sync else self._alone)(mode)
        # The numbers that ranks add up: n and two sums a channel, float64.
        sums = {"sums": Buffer((2 * (1 + 2 * channels),), per_example=False, kept=False)} if self.sync else {}
        return BuiltLayer(
            out_shape=in_shape,
            forward=forward,
            backward=backward,
            backward_params=backward_params,
            predict=Call(normalisation.batch_norm_predict, predict),
            params=_scale_and_bias(channels),
            state=(
                StateSpec("running_mean", (channels,), 0.0, self.momentum),
                StateSpec("running_var", (channels,), 1.0, self.momentum),
            ),
            buffers={"stats": Buffer((3, channels), per_example=False), **_scratch(channels), **sums},
            views=_FLAT,
            in_place=True,
            fused={} if mode & RELU else {"relu": self._built(in_shape, mode | RELU)},
        )

    def _alone(self, mode: int) -> tuple[Calls, Calls, Calls]:
        """Return forward, backward and backward without dx over the rows of one call."""
        forward = ("x", "scale", "bias", "y", "stats", "d_running_mean", "d_running_var", "lines", "totals", "rows")

        def backward(dx: str, mode: int) -> Call:
            args = ("x", "dy", "scale", "bias", "stats", dx, "d_scale", "d_bias", "lines", "totals", mode)
            return Call(normalisation.batch_norm_backward, args)

        return (
            Call(normalisation.batch_norm_forward, (*forward, self.epsilon, mode)),
            backward("dx", mode | INPUT_GRADIENT),
            backward("dy", mode),
        )

    def _synchronised(self, mode: int) -> tuple[Calls, Calls, Calls]:
        """Return the same over the rows of all ranks: sums, which are added up over the ranks, and then the rest."""
        running = ("d_running_mean", "d_running_var")
        forward = ("x", "scale", "bias", "y", "stats", "sums", *running, "lines", "rows", self.epsilon, mode)
        slopes = ("x", "dy", "scale", "bias", "stats", "d_scale", "d_bias", "sums", "lines", "totals", mode)
        gradient = ("x", "dy", "scale", "bias", "stats", "dx", "sums", "lines", mode)
        return (
            (
                Call(normalisation.batch_norm_sums, ("x", "scale", "sums", "lines", "totals"), meet="sums"),
                Call(normalisation.batch_norm_of_sums, forward),
            ),
            (
                Call(normalisation.batch_norm_slopes, slopes, meet="sums"),
                Call(normalisation.batch_norm_input_gradient, gradient),
            ),
            # Sums of gradients are added up with everybody's gradients: nobody need meet for them.
            Call(normalisation.batch_norm_slopes, slopes),
        )


class GroupNorm(Layer):
    """Batch norm's formula with the mean and variance of an example's group of channels over its positions.

    `groups` equal groups of neighbouring channels; as many groups as channels is instance norm.  No running statistics.
    Wu & He 2018, arXiv:1803.08494.
    """

    groups: PositiveInt
    epsilon: PositiveFloat = 1e-5

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`scale`, `bias` (channels,); out_shape is in_shape, of any rank."""
        if in_shape[-1] % self.groups:
            raise UserError(
                "the channels cannot be divided into groups",
                found=f"{in_shape[-1]} channels, groups = {self.groups}",
                allowed=f"groups that divide {in_shape[-1]}",
            )
        return self._built(in_shape, 0)

    def _built(self, in_shape: Shape, mode: int) -> BuiltLayer:
        forward = ("x", "scale", "bias", "y", "stats", "lines", "totals", self.epsilon, self.groups, mode)

        def backward(dx: str, mode: int) -> Call:
            args = ("x", "dy", "scale", "bias", "stats", dx, "d_scale", "d_bias", "lines", "totals", self.groups, mode)
            return Call(normalisation.group_norm_backward, args)

        return BuiltLayer(
            out_shape=in_shape,
            forward=Call(normalisation.group_norm_forward, forward),
            backward=backward("dx", mode | INPUT_GRADIENT),
            backward_params=backward("dy", mode),
            params=_scale_and_bias(in_shape[-1]),
            buffers={"stats": Buffer((self.groups, 3)), **_scratch(in_shape[-1])},
            views=_FLAT,
            in_place=True,
            fused={} if mode & RELU else {"relu": self._built(in_shape, mode | RELU)},
        )


class LayerNorm(Layer):
    """(x - mean) / sqrt(var + epsilon) scale + bias, mean and variance over the features (the last axis) of a position.

    Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """

    on_padding: ClassVar[OnPadding] = "features"

    epsilon: PositiveFloat = 1e-5

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`scale`, `bias` (features,); out_shape is in_shape, of any rank."""
        backward = ("x", "dy", "scale", "stats", "dx", "d_scale", "d_bias", "block")
        return _over_features(
            in_shape,
            Call(feature_norms.layer_norm_forward, ("x", "scale", "bias", "y", "stats", self.epsilon)),
            Call(feature_norms.layer_norm_backward, backward),
            _scale_and_bias(in_shape[-1]),
        )


class RmsNorm(Layer):
    """x / sqrt(mean(x^2) + epsilon) scale, the mean over the features (the last axis) of a position.

    Zhang & Sennrich 2019, arXiv:1910.07467.
    """

    on_padding: ClassVar[OnPadding] = "features"

    epsilon: PositiveFloat = 1e-5

    def build(self, in_shape: Shape) -> BuiltLayer:
        """`scale` (features,); out_shape is in_shape, of any rank."""
        return _over_features(
            in_shape,
            Call(feature_norms.rms_norm_forward, ("x", "scale", "y", "stats", self.epsilon)),
            Call(feature_norms.rms_norm_backward, ("x", "dy", "scale", "stats", "dx", "d_scale", "block")),
            _scale_and_bias(in_shape[-1])[:1],
        )


def _over_features(in_shape: Shape, forward: Call, backward: Call, params: tuple[ParamSpec, ...]) -> BuiltLayer:
    """Return a layer whose kernels see a matrix of features; `backward` lacks its last argument, needs_dx."""
    features, kept = in_shape[-1], 1 if len(params) == 1 else 2
    positions = in_shape[:-1]
    without: tuple[Any, ...] = tuple("dy" if arg == "dx" else arg for arg in backward.args)
    return BuiltLayer(
        out_shape=in_shape,
        forward=forward,
        backward=Call(backward.kernel, (*backward.args, 1)),
        backward_params=Call(backward.kernel, (*without, 0)),
        params=params,
        buffers={
            "stats": Buffer((*positions, kept)),
            "block": Buffer((len(params), features), per_example=False, kept=False),
        },
        views={**dict.fromkeys(_FLAT, (features,)), "stats": (kept,)},
    )
