"""Choosing a small network for the shape of the examples, and a batch, a split and epochs for their number."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hpctrain.tools.guessing.guess import Guess, is_channels_first
from hpctrain.tools.guessing.inputs import toml

_SMALLEST_IMAGE = 8
_SHORTEST_SERIES = 4
_CHANNELS = 32  # a last axis up to this is taken for channels where the axes could be read both ways
_UNITS = (128, 64)
_CONV1D = ('{type = "conv1d", channels = 32, kernel = 5, padding = "same"}', '"relu"') * 2
_FLATTENED = 4096  # numbers behind the convolutions that dense layers still take one by one


@dataclass
class Network:
    """The lines of `[model]`, why, and what else would fit."""

    lines: list[str]
    why: str
    others: list[str] = field(default_factory=list)


def choose_network(found: Guess) -> Network:
    """Return a network that fits the inputs and targets."""
    shape, outputs = found.input_shape, _outputs(found)
    if found.parts:
        return _branches(found, outputs)
    per_place = _per_place(found)
    if found.data.get("windows"):
        return Network(['preset = "lstm"', "width = 32"], f"a series, {shape}: an LSTM", [_plain_mlp()])
    if per_place:
        return _each_place(found, outputs)
    if len(shape) >= 4 or (len(shape) == 3 and shape[-1] > _CHANNELS and min(shape) >= _SMALLEST_IMAGE):
        return _volume(shape, outputs)
    if len(shape) == 3 and min(shape[:2]) >= _SMALLEST_IMAGE:
        return _image(shape, outputs)
    if len(shape) == 2 and _is_image(found):
        return _image((*shape, 1), outputs, reshape=True)
    if len(shape) == 2 and shape[0] >= _SHORTEST_SERIES:
        return _series(shape, outputs)
    return _table(shape, outputs)


def _outputs(found: Guess) -> int:
    return found.classes if found.target_kind == "class" else found.target_width


def _per_place(found: Guess) -> bool:
    """Return whether there is a target for each place of an example."""
    places = len(found.target_shape)
    if found.target_kind == "class":
        return places > 0 and found.input_shape[:places] == found.target_shape
    return places > 1 and found.input_shape[: places - 1] == found.target_shape[:-1]


def _is_image(found: Guess) -> bool:
    """Return whether (a, b) is an image without an axis of channels, not a series of b numbers."""
    a, b = found.input_shape
    if min(a, b) < _SMALLEST_IMAGE:
        return False
    return found.input_is == "image" or a == b


def _plain_mlp() -> str:
    return 'preset = "mlp"   (all numbers of an example at once)'


def _layers(*layers: str) -> list[str]:
    return ["layers = [", *(f"    {layer}," for layer in layers), "]"]


def _branches(found: Guess, outputs: int) -> Network:
    """Return a network with a branch for the first of several inputs, and one for all the numbers beside it."""
    (path, shape), *_ = found.parts
    first = [f'{{type = "columns", input = {toml(path)}}}']
    if is_channels_first(shape):
        first.append(f'{{type = "permute", axes = {toml([*range(1, len(shape)), 0])}}}')
        shape = (*shape[1:], shape[0])
    if len(shape) == 2 and (found.input_is == "image" or shape[0] == shape[1] >= _SMALLEST_IMAGE):
        first, shape = [*first, f'{{type = "reshape", shape = {toml((*shape, 1))}}}'], (*shape, 1)
    if len(shape) == 3 and min(shape[:2]) >= _SMALLEST_IMAGE:
        first += _convolutions(shape)
    elif len(shape) == 2 and shape[0] >= _SHORTEST_SERIES:
        first += [*_CONV1D, '"global_avg_pool"']
    elif len(shape) == 4 and min(shape[:3]) >= 2:
        first += ['{type = "conv3d", channels = 8, kernel = 3, padding = "same"}', '"relu"', '"global_avg_pool"']
    else:
        first += ['"flatten"', '{type = "dense", units = 64}', '"relu"']
    beside = [f'{{type = "columns", start = {math.prod(shape)}}}', '{type = "dense", units = 32}', '"relu"']
    lines = ["layers = [", '    {type = "parallel", branches = [']
    for branch in (first, beside):
        lines += ["        [", *(f"            {layer}," for layer in branch), "        ],"]
    lines += [
        "    ]},",
        '    {type = "dense", units = 64},',
        '    "relu",',
        f'    {{type = "dense", units = {outputs}}},',
        "]",
    ]
    count = math.prod(found.input_shape) - math.prod(shape)
    why = f"{path!r} has a branch of its own, the {count} number{'s' * (count != 1)} beside it another"
    return Network(lines, why, [_plain_mlp()])


def _image(shape: tuple[int, ...], outputs: int, reshape: bool = False) -> Network:
    layers = [f'{{type = "reshape", shape = {toml(shape)}}}'] if reshape else []
    layers += [*_convolutions(shape), f'{{type = "dense", units = {outputs}}}']
    why = f"images, {shape}: a small convolutional network"
    return Network(_layers(*layers), why, ['preset = "resnet8"   (or resnet20: deeper)', _plain_mlp()])


def _convolutions(shape: tuple[int, ...]) -> list[str]:
    """Return layers that make a row of numbers of an image."""
    layers = []
    height, width = shape[:2]
    for channels in (16, 32, 64):
        if min(height, width) < 4:
            break
        layers += [f'{{type = "conv2d", channels = {channels}, kernel = 3, padding = "same"}}', '"relu"']
        layers.append('{type = "max_pool2d", size = 2}')
        height, width, features = height // 2, width // 2, channels
    if height * width * features <= _FLATTENED:
        return [*layers, '"flatten"', '{type = "dense", units = 64}', '"relu"']
    return [*layers, '"global_avg_pool"']


def _volume(shape: tuple[int, ...], outputs: int) -> Network:
    channels = len(shape) >= 4
    edges = shape[:-1] if channels else shape
    halvings = max(int(math.log2(min(edges))) - 1, 0)
    if len(edges) != 3 or halvings < 1:
        return _table(shape, outputs)
    why = f"volumes, {shape}: convolutions in 3 dimensions"
    return Network(['preset = "cosmoflow"', f"depth = {min(halvings, 5)}", "width = 8"], why, [_plain_mlp()])


def _series(shape: tuple[int, ...], outputs: int) -> Network:
    layers = _layers(*_CONV1D, '"global_avg_pool"', f'{{type = "dense", units = {outputs}}}')
    why = f"series of {shape[0]} steps of {shape[1]} numbers: convolutions along the steps"
    return Network(layers, why, ['preset = "lstm"', _plain_mlp()])


def _table(shape: tuple[int, ...], outputs: int) -> Network:
    hidden = [text for units in _UNITS for text in (f'{{type = "dense", units = {units}}}', '"relu"')]
    flat = ['"flatten"'] if len(shape) > 1 else []
    layers = _layers(*flat, *hidden, f'{{type = "dense", units = {outputs}}}')
    numbers = math.prod(shape)
    return Network(layers, f"{numbers} number{'s' * (numbers != 1)} an example: dense layers", ['preset = "mlp"'])


def _each_place(found: Guess, outputs: int) -> Network:
    """Return a network with an output for each place."""
    shape = found.input_shape
    places = shape[: len(found.target_shape) - (found.target_kind == "real")]
    if len(places) == 1:
        if len(shape) == 1 and found.target_kind == "class":
            lines = ['preset = "gpt"', "width = 64", "depth = 2", f"vocabulary = {outputs}"]
            return Network(lines, "whole numbers with a label for each of them: tokens", ["an embedding and an lstm"])
        lines = ['preset = "lstm"', "width = 32", "each_step = true"]
        if found.target_kind == "real":
            lines = _layers(
                '{type = "lstm", units = 32, return_sequences = true}',
                f'{{type = "dense", units = {found.target_shape[-1]}}}',
            )
        return Network(lines, f"series with a target for each of their {places[0]} steps: an LSTM")
    depth = min((_halvings(edge) for edge in places), default=0)
    channels = outputs if found.target_kind == "class" else found.target_shape[-1]
    if depth and len(shape) == len(places) + 1:
        lines = ['preset = "unet"', "width = 8", f"depth = {min(depth, 3)}", f"channels = {channels}"]
        return Network(lines, "a target for each place of an image: a U-Net")
    conv = f"conv{len(places)}d"
    reshape = [f'{{type = "reshape", shape = {toml((*shape, 1))}}}'] if len(shape) == len(places) else []
    layers = _layers(
        *reshape,
        f'{{type = "{conv}", channels = 16, kernel = 3, padding = "same"}}',
        '"relu"',
        f'{{type = "{conv}", channels = {channels}, kernel = 3, padding = "same"}}',
    )
    return Network(layers, "a target for each place of an image: convolutions that keep its size")


def _halvings(edge: int) -> int:
    """Return how often an edge can be halved."""
    count = 0
    while edge % 2 == 0 and edge > 2:
        edge, count = edge // 2, count + 1
    return count


def global_batch(rows: int) -> int:
    """Return examples an update: about 50 updates an epoch, a power of two from 8 to 256."""
    return 2 ** min(max(round(math.log2(max(rows / 50, 1))), 3), 8)


def epochs(rows: int) -> int:
    """Return epochs: more of them where there are few examples."""
    return 30 if rows < 1000 else 20 if rows < 20_000 else 10


def split(found: Guess) -> tuple[dict[str, object], str]:
    """Return fractions for validation and test, and why; none where there are too few examples."""
    wanted: dict[str, object] = {"validation": 0.1, "test": 0.1}
    if found.test_files:
        del wanted["test"]
    if found.validation_files:
        del wanted["validation"]
    if found.rows < 50:
        return {}, f"{found.rows} examples are too few to keep some apart: split = {{test = 0.2}} would"
    why = "fractions of the examples, drawn by run.seed; the rest trains"
    if found.data.get("windows"):
        return wanted, "fractions of the windows, in time or by whole runs: no row is in two parts; the rest trains"
    if found.group is not None and wanted:
        return {**wanted, "group": found.group}, "whole groups, drawn by run.seed; the rest trains"
    if found.stratify and wanted:
        return {**wanted, "by": "stratified"}, "fractions of each class, drawn by run.seed; the rest trains"
    return wanted, why
