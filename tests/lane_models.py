"""Small networks on images (6, 4, 1) of the numbers 0 to 4, four classes: tests of lanes share what is compiled."""

from __future__ import annotations

from typing import Any

SHAPE, CLASSES = (6, 4, 1), 4
_OUT = {"type": "dense", "units": CLASSES}
MODELS: dict[str, list[Any]] = {
    "mlp": ["flatten", {"type": "dense", "units": 33}, "relu", _OUT],
    "cnn": [
        {"type": "conv2d", "channels": 5, "kernel": 3},
        "batch_norm",
        "relu",
        {"type": "max_pool2d", "size": 2},
        "flatten",
        {"type": "dropout", "rate": 0.3},
        _OUT,
    ],
    "gpt": [
        "flatten",
        {"type": "embedding", "size": 5, "units": 8},
        "learned_positions",
        {"type": "residual", "layers": ["layer_norm", {"type": "attention", "heads": 2, "causal": True}]},
        {
            "type": "residual",
            "layers": ["layer_norm", {"type": "dense", "units": 16}, "gelu", {"type": "dense", "units": 8}],
        },
        "last_step",
        _OUT,
    ],
}
