"""The ten models that training is measured by: layers, data, initial weights from the peer.  Not a benchmark itself.

The peer's half, the same networks in PyTorch, is in `peer_torch.py`.  PyTorch has channels first and dense weights as
(out, in), hpctrain channels last and (in, out): what is turned round is turned round here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpctrain.batch import Batch
from hpctrain.nn import LAYERS, LOSSES, PRESETS
from hpctrain.nn.model import Model
from hpctrain.options import part_from

BATCHES = 16  # different batches, taken in turn
TOKENS = 96

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One model.

    layers    what a job file would say
    batch     rows of a step on a rank
    shape     of one example as the peer takes it, channels first
    kind      of targets: "class" (ten of them), "binary", "real" (four numbers) or "tokens" (one a place)
    demand    the ratio that ours must reach, and `stretch` the one that it would like to reach
    flat      dense weights behind a flatten: their name in the peer and the shape (channels first) that was flattened
    tensors   turns the peer's parameters into ours, in our order; default: in the peer's order, one to one
    """

    layers: tuple[Any, ...]
    batch: int
    shape: tuple[int, ...]
    kind: str
    demand: float
    stretch: float
    flat: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tensors: Callable[[Tensors], Iterable[np.ndarray]] | None = None

    @property
    def is_mlp(self) -> bool:
        """Whether there are dense layers alone."""
        return self.kind != "tokens" and len(self.shape) == 1

    def data(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs (batches, rows, *shape) and targets (batches, rows, ...), in the peer's layout."""
        rng = np.random.default_rng(seed)
        rows = (BATCHES, self.batch)
        if self.kind == "tokens":
            return rng.integers(0, TOKENS, (*rows, *self.shape)), rng.integers(0, TOKENS, (*rows, *self.shape))
        inputs = rng.standard_normal((*rows, *self.shape), np.float32)
        if self.kind == "class":
            return inputs, rng.integers(0, 10, rows)
        if self.kind == "binary":
            return inputs, rng.integers(0, 2, rows).astype(np.float32)
        return inputs, rng.standard_normal((*rows, 4), np.float32)

    def batches(self, inputs: np.ndarray, targets: np.ndarray) -> list[Batch]:
        """Return the peer's data as batches of ours."""
        if len(self.shape) > 1:
            inputs = np.moveaxis(inputs, 2, -1)
        targets = targets.astype(np.float32 if self.kind == "real" else np.int64)
        weight = np.ones(targets.shape[1:] if self.kind == "tokens" else self.batch, np.float32)
        ids = np.arange(self.batch)
        return [
            Batch(np.ascontiguousarray(inputs[i], np.float32), targets[i].copy(), weight, ids, i, 0)
            for i in range(len(inputs))
        ]

    def model(self, dtype: Any = np.float32, **memory: Any) -> Model:
        """Return the network, without weights; all it computes is of this type.  `memory`: `allocate...` of `Model`."""
        layers = [part_from(LAYERS, spec, f"layers.{i}", "type") for i, spec in enumerate(self.layers)]
        names = {"binary": "binary_cross_entropy", "real": "mse"}
        loss = LOSSES.get(names.get(self.kind, "softmax_cross_entropy"))()
        shape = (*self.shape[1:], self.shape[0])  # channels last; one axis stays as it is
        return Model(layers, shape, loss, "real" if self.kind == "real" else "class", dtype=dtype, **memory)

    def set_weights(self, model: Model, parameters: Tensors) -> None:
        """Give the model the peer's initial weights."""
        # One tensor at a time, so that a measurement of memory is not that of this copy.
        tensors = self.tensors(parameters) if self.tensors else (self._ours(*item) for item in parameters.items())
        if len(model.layout) != len(parameters):
            raise ValueError(f"ours has {len(model.layout)} tensors, the peer {len(parameters)}")
        for slot, tensor in zip(model.layout, tensors, strict=True):
            if slot.shape != tensor.shape:
                raise ValueError(f"{slot.name} has shape {slot.shape}, the peer's tensor in its place {tensor.shape}")
            model.layout.view(model.params, slot.name)[...] = tensor

    def _ours(self, name: str, tensor: np.ndarray) -> np.ndarray:
        if name in self.flat:
            return flattened_weight(tensor, self.flat[name])
        return turned(tensor)


def turned(tensor: np.ndarray) -> np.ndarray:
    """Turn a weight (out, in, *kernel) into (*kernel, in, out); vectors stay as they are."""
    return tensor if tensor.ndim == 1 else np.moveaxis(tensor, (0, 1), (-1, -2))


def flattened_weight(weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Turn a dense weight (out, in) whose inputs were flattened with channels first into ours, with channels last."""
    parts = weight.reshape(len(weight), *shape)
    return np.moveaxis(parts, (0, 1), (-1, -2)).reshape(math.prod(shape), len(weight))


def _gpt_tensors(parameters: Tensors) -> list[np.ndarray]:
    """Return GPT's tensors in our order: the tables of tokens and positions first, which are not turned round."""
    rest = [turned(tensor) for name, tensor in parameters.items() if name not in ("position", "token.weight")]
    return [parameters["token.weight"], parameters["position"], *rest]


def _dense(units: int) -> dict[str, Any]:
    return {"type": "dense", "units": units}


def _mlp(*units: int) -> tuple[Any, ...]:
    return tuple(layer for count in units for layer in (_dense(count), "relu"))[:-1]


def _conv(channels: int, padding: str = "same") -> dict[str, Any]:
    return {"type": "conv2d", "channels": channels, "kernel": 3, "padding": padding}


def _conv3d(channels: int) -> dict[str, Any]:
    return {"type": "conv3d", "channels": channels, "kernel": 3, "padding": "same"}


def _preset(name: str, input_shape: tuple[int, ...], outputs: int = 10) -> tuple[Any, ...]:
    return tuple(PRESETS.get(name)().specs(input_shape, outputs))


_POOL, _POOL3D = {"type": "max_pool2d", "size": 2}, {"type": "max_pool3d", "size": 2}

CASES: dict[str, Case] = {
    "mlp-small": Case(_mlp(128, 64, 10), 32, (64,), "class", 8, 11),
    "mlp-mnist": Case(_mlp(512, 256, 10), 128, (784,), "class", 1.3, 1.5),
    "mlp-higgs": Case(_mlp(300, 300, 300, 1), 256, (28,), "binary", 1.35, 1.55),
    "mlp-wide": Case(_mlp(2048, 2048, 10), 256, (784,), "class", 1.1, 1.2),
    "cnn-mnist": Case(
        (_conv(32, padding="valid"), "relu", _conv(64, padding="valid"), "relu", _POOL, "flatten", *_mlp(128, 10)),
        *(64, (1, 28, 28), "class", 1.25, 1.6),
        flat={"6.weight": (64, 12, 12)},
    ),
    "cnn-lenet": Case(
        (_conv(32), "relu", _POOL, _conv(64), "relu", _POOL, "flatten", *_mlp(128, 10)),
        *(64, (1, 28, 28), "class", 1.0, 1.3),
        flat={"7.weight": (64, 7, 7)},
    ),
    "resnet8": Case(_preset("resnet8", (32, 32, 3)), 64, (3, 32, 32), "class", 1.0, 1.3),
    "resnet20": Case(_preset("resnet20", (32, 32, 3)), 64, (3, 32, 32), "class", 1.0, 1.3),
    "cnn3d": Case(
        (
            *(_conv3d(16), "leaky_relu", _POOL3D, _conv3d(32), "leaky_relu", _POOL3D, "flatten"),
            *(_dense(64), "leaky_relu", _dense(4)),
        ),
        *(4, (4, 32, 32, 32), "real", 1.0, 1.3),
        flat={"7.weight": (32, 8, 8, 8)},
    ),
    "gpt-tiny": Case(
        *(_preset("gpt", (64,), TOKENS), 16, (64,), "tokens", 1.0, 1.3),
        tensors=_gpt_tensors,
    ),
}
