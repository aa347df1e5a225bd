"""Presets: whole networks by one line of a job file.  A preset's options are its fields; it answers with layers.

A preset is resolved when a job meets its data: the resolved job holds the layers themselves, so that a run can be
repeated even where a preset has changed.  `hpctrain.nn.PRESETS` names them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from hpctrain.errors import UserError
from hpctrain.nn.layers.base import Layer, Shape
from hpctrain.options import Part, part_from
from hpctrain.registry import family

Specs = list[Any]  # layers as a job file writes them

Rate = Field(0.0, ge=0.0, lt=1.0)


class Preset(Part):
    """Base of all presets."""

    def layers(self, input_shape: Shape, outputs: int) -> list[Layer]:
        """Return the layers for inputs of this shape (of one example, channels last) and so many outputs.

        `outputs` is what the target asks for: the number of classes, or of numbers to predict.  An input that does not
        fit is a `UserError`.
        """
        specs = self.specs(tuple(input_shape), outputs)
        return [part_from(family("layer"), spec, f"model.layers.{index}", "type") for index, spec in enumerate(specs)]

    @abstractmethod
    def specs(self, input_shape: Shape, outputs: int) -> Specs:
        """Return the layers as a job file would write them."""


class Mlp(Preset):
    """`depth` hidden dense layers of `width` units; the inputs of an example are flattened first.

    activation  between the layers; dropout  fraction that is zeroed behind each activation while training
    """

    width: PositiveInt = 256
    depth: int = Field(2, ge=0)
    activation: Literal["relu", "tanh", "sigmoid", "gelu", "silu", "elu"] = "relu"
    dropout: float = Rate

    def specs(self, input_shape: Shape, outputs: int) -> Specs:
        """Take inputs of any shape."""
        specs: Specs = ["flatten"] if len(input_shape) > 1 else []
        for _ in range(self.depth):
            specs += [_dense(self.width), self.activation, *_dropout(self.dropout)]
        return [*specs, _dense(outputs)]


class ResNet(Preset):
    """ResNet-(6n + 2) for small images (He et al. 2016, section 4.2).

    A convolution, three stages of n residual blocks with `width`, 2 width and 4 width channels, the second and third at
    half the resolution of the one before, global average pooling, one dense layer.  Where the shape changes, the
    shortcut is a 1x1 convolution (option B of the paper).  `sync`: batch norm over the global batch.
    """

    depth: ClassVar[int]
    width: PositiveInt = 16
    sync: bool = False

    def specs(self, input_shape: Shape, outputs: int) -> Specs:
        """Take inputs (height, width, channels), or (height, width) for a single channel."""
        specs, _ = _with_channels(input_shape, (2,), type(self).__name__)
        norm = _batch_norm(self.sync)
        specs += [_conv("conv2d", self.width), norm, "relu"]
        before = self.width
        for stage in range(3):
            after = self.width * 2**stage
            for block in range((self.depth - 2) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                specs += [_residual_block(before, after, stride, norm), "relu"]
                before = after
        return [*specs, "global_avg_pool", _dense(outputs)]


class ResNet8(ResNet):
    """ResNet of 8 layers: one block a stage."""

    depth: ClassVar[int] = 8


class ResNet14(ResNet):
    """ResNet of 14 layers: two blocks a stage."""

    depth: ClassVar[int] = 14


class ResNet20(ResNet):
    """ResNet of 20 layers: three blocks a stage."""

    depth: ClassVar[int] = 20


class ResNet32(ResNet):
    """ResNet of 32 layers: five blocks a stage."""

    depth: ClassVar[int] = 32


class ResNet56(ResNet):
    """ResNet of 56 layers: nine blocks a stage."""

    depth: ClassVar[int] = 56


class CosmoFlow(Preset):
    """The 3-D network of CosmoFlow (Mathuriya et al. 2018) as MLPerf HPC has it, without the squashed output.

    `depth` times a convolution (`width` channels, doubled each time), leaky ReLU and a halving max pool, then dense
    layers of 128 and 64 units with dropout.  MLPerf trains width 32 and dropout 0.5 on (128, 128, 128, 4).

    kernel  edge of the convolutions' kernels
    """

    width: PositiveInt = 16
    depth: PositiveInt = 5
    kernel: PositiveInt = 2
    dropout: float = Rate

    def specs(self, input_shape: Shape, outputs: int) -> Specs:
        """Take inputs (depth, height, width, channels) whose edges are 2^depth or more."""
        specs, shape = _with_channels(input_shape, (3,), "CosmoFlow")
        if min(shape[:-1]) < 2**self.depth:
            fits = int(math.log2(min(shape[:-1])))
            raise UserError(
                f"the preset cosmoflow halves the input {self.depth} times, which it is too small for",
                found=f"inputs of shape {input_shape}, taken as volumes (depth, height, width) with one channel"
                if specs
                else f"inputs of shape {input_shape}",
                allowed=f"(depth, height, width, channels) with edges of {2**self.depth} or more",
                hint=f"depth = {fits}" if fits else "for images (height, width, channels) there is the preset resnet20",
            )
        activation = {"type": "leaky_relu", "slope": 0.3}
        for level in range(self.depth):
            channels = self.width * 2**level
            specs += [{"type": "conv3d", "channels": channels, "kernel": self.kernel, "padding": "same"}]
            specs += [activation, {"type": "max_pool3d", "size": 2}]
        specs.append("flatten")
        for units in (128, 64):
            specs += [_dense(units), activation, *_dropout(self.dropout)]
        return [*specs, _dense(outputs)]


class UNet(Preset):
    """U-Net in 1, 2 or 3 dimensions (Ronneberger et al. 2015) with same-size convolutions and batch norm.

    `depth` times: two 3-wide convolutions, max pool by 2 (channels `width`, doubled at each level); back up by nearest
    upsampling and a convolution, beside the level's own features (the skip connection).  The output has the input's
    positions, with a channel for each class or target number.

    channels  of the output; default: the number of classes, or real targets divided by positions
    sync      batch norm over the global batch
    """

    width: PositiveInt = 32
    depth: PositiveInt = 3
    channels: PositiveInt | None = None
    sync: bool = False

    def specs(self, input_shape: Shape, outputs: int) -> Specs:
        """Take inputs (length, channels), (height, width, channels) or (depth, height, width, channels)."""
        if not 2 <= len(input_shape) <= 4:
            raise UserError(
                "the preset unet needs inputs of one to three axes and a last axis of channels",
                found=f"inputs of shape {input_shape}",
            )
        space = input_shape[:-1]
        if any(edge % 2**self.depth for edge in space):
            raise UserError(
                f"the preset unet halves the input {self.depth} times",
                found=f"inputs of shape {input_shape}",
                allowed=f"edges that are multiples of {2**self.depth}",
                hint="give it a smaller depth, or pad the data",
            )
        positions = math.prod(space)
        per_position = outputs // positions if outputs % positions == 0 else outputs
        dimensions = len(space)
        out = {"type": f"conv{dimensions}d", "channels": self.channels or per_position, "kernel": 1}
        return [*self._level(dimensions, 0), out]

    def _level(self, dimensions: int, level: int) -> Specs:
        """Return one level with all that lies below it: same shape in and out, but for the channels."""
        conv, channels, norm = f"conv{dimensions}d", self.width * 2**level, _batch_norm(self.sync)
        twice = [_conv(conv, channels), norm, "relu"] * 2
        if level == self.depth:
            return twice
        down = [{"type": f"max_pool{dimensions}d", "size": 2}, *self._level(dimensions, level + 1)]
        up = [{"type": f"upsample{dimensions}d", "size": 2}, _conv(conv, channels), norm, "relu"]
        return [*twice, {"type": "parallel", "branches": [[], [*down, *up]]}, *twice]


class Gpt(Preset):
    """A decoder of the GPT kind (Radford et al. 2019): predicts the next token at every position.

    Token and position embeddings, `depth` pre-norm blocks of causal attention with `heads` heads and a two-layer
    network four times as wide, a layer norm, and one output for each token.

    vocabulary  number of tokens of the input; default: that of the target
    padding     token that fills sequences up, which no other token sees (the layer "padded"); default: none does
    """

    width: PositiveInt = 128
    depth: PositiveInt = 4
    heads: PositiveInt = 4
    dropout: float = Rate
    vocabulary: PositiveInt | None = None
    padding: NonNegativeInt | None = None

    def specs(self, input_shape: Shape, outputs: int) -> Specs:
        """Take inputs (length,) of token ids."""
        if len(input_shape) != 1:
            raise UserError(
                "the preset gpt needs one row of token ids an example",
                found=f"inputs of shape {input_shape}",
                allowed="(length,)",
            )
        if self.width % self.heads:
            raise UserError(
                "the preset gpt shares its width out to the heads",
                found=f"width = {self.width}, heads = {self.heads}",
                allowed=f"a width that is a multiple of {self.heads}",
            )
        drop = _dropout(self.dropout)
        attend: Specs = ["layer_norm", {"type": "attention", "heads": self.heads, "causal": True}, *drop]
        think: Specs = ["layer_norm", _dense(4 * self.width), "gelu", _dense(self.width), *drop]
        block = [{"type": "residual", "layers": part} for part in (attend, think)]
        embed = [{"type": "embedding", "size": self.vocabulary or outputs, "units": self.width}, "learned_positions"]
        return _padded(self.padding, [*embed, *drop, *(block * self.depth), "layer_norm", _dense(outputs)])


class Lstm(Preset):
    """`depth` recurrent layers of `width` units over a sequence, and a dense layer on the last step's state.

    cell          "lstm" (Hochreiter & Schmidhuber 1997) or "gru" (Cho et al. 2014)
    each_step     the dense layer works on every step: an output for each position
    padding       steps whose numbers all have this value are left out (the layer "padded"); default: none is
    """

    width: PositiveInt = 64
    depth: PositiveInt = 1
    cell: Literal["lstm", "gru"] = "lstm"
    dropout: float = Rate
    each_step: bool = False
    padding: float | None = None

    def specs(self, input_shape: Shape, outputs: int) -> Specs:
        """Take inputs (length, features), or (length,) for one feature."""
        specs, _ = _with_channels(input_shape, (1,), "lstm")
        for level in range(self.depth):
            sequences = self.each_step or level + 1 < self.depth
            specs.append({"type": self.cell, "units": self.width, "return_sequences": sequences})
            specs += _dropout(self.dropout)
        return _padded(self.padding, [*specs, _dense(outputs)])


def _padded(value: float | None, specs: Specs) -> Specs:
    return specs if value is None else [{"type": "padded", "value": value, "layers": specs}]


def _with_channels(input_shape: Shape, axes: Sequence[int], preset: str) -> tuple[Specs, Shape]:
    """Return the layers that give the inputs an axis of channels where they have none, and the shape behind them."""
    if len(input_shape) in axes:
        shape = (*input_shape, 1)
        return [{"type": "reshape", "shape": list(shape)}], shape
    if len(input_shape) - 1 in axes:
        return [], input_shape
    wanted = {1: "(length, features)", 2: "(height, width, channels)", 3: "(depth, height, width, channels)"}
    raise UserError(
        f"the preset {preset.lower()} does not fit the inputs",
        found=f"inputs of shape {input_shape}",
        allowed=" or ".join(wanted[count] for count in axes),
    )


def _dense(units: int) -> dict[str, Any]:
    return {"type": "dense", "units": units}


def _conv(kind: str, channels: int, stride: int = 1) -> dict[str, Any]:
    """Return a 3-wide convolution without bias, as it stands before a batch norm."""
    return {"type": kind, "channels": channels, "kernel": 3, "stride": stride, "padding": 1, "bias": False}


def _batch_norm(sync: bool) -> str | dict[str, Any]:
    return {"type": "batch_norm", "sync": True} if sync else "batch_norm"


def _residual_block(before: int, after: int, stride: int, norm: str | dict[str, Any]) -> dict[str, Any]:
    inside = [_conv("conv2d", after, stride), norm, "relu", _conv("conv2d", after), norm]
    block: dict[str, Any] = {"type": "residual", "layers": inside}
    if before != after or stride > 1:
        short = {"type": "conv2d", "channels": after, "kernel": 1, "stride": stride, "padding": "valid", "bias": False}
        block["shortcut"] = [short]
    return block


def _dropout(rate: float) -> Specs:
    return [{"type": "dropout", "rate": rate}] if rate else []
