"""Normalisation: batch, group, layer and RMS norm."""

import numpy as np

# layer name -> (options, input shapes)
EXAMPLES = {
    "batch_norm": ({"epsilon": 1e-3}, [(5,), (3, 2, 3), (1,)]),
    "batch_norm sync": ({"epsilon": 1e-3, "sync": True}, [(5,), (3, 2, 3), (1,)]),
    "group_norm": ({"groups": 2}, [(3, 4), (6,)]),
    "group_norm instance": ({"groups": 3}, [(2, 2, 3)]),
    "layer_norm": ({"epsilon": 1e-3}, [(5,), (2, 3)]),
    "rms_norm": ({}, [(5,), (2, 3)]),
}

# Layers whose result for a row depends on the other rows of the batch.
ACROSS_ROWS = {"batch_norm", "batch_norm sync"}


def normal(x, axes, epsilon):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def untrained_batch_norm(x, p, o):
    """With a running mean of 0 and a running variance of 1."""
    return x / np.sqrt(1 + o["epsilon"]) * p["scale"] + p["bias"]


def group_norm(x, p, o):
    rows, channels = len(x), x.shape[-1]
    grouped = x.reshape(rows, -1, o["groups"], channels // o["groups"])
    return normal(grouped, (1, 3), 1e-5).reshape(x.shape) * p["scale"] + p["bias"]


# layer name -> f(x (rows, *shape) float64, parameters by short name, options) in evaluation
DEFINITIONS = {
    "batch_norm": untrained_batch_norm,
    "batch_norm sync": untrained_batch_norm,
    "group_norm": group_norm,
    "group_norm instance": group_norm,
    "layer_norm": lambda x, p, o: normal(x, -1, o["epsilon"]) * p["scale"] + p["bias"],
    "rms_norm": lambda x, p, o: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p["scale"],
}
