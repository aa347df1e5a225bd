"""Variants of dense, alone and fused with the ReLU behind it, and the smooth activations."""

import numpy as np

DENSE_RELU = {"type": "dense", "units": 3}
# layer name, and a word that tells a further example of it -> (options, input shapes)
EXAMPLES = {
    "dense without bias": ({"units": 3, "bias": False}, [(5,)]),
    "elu": ({"alpha": 0.7}, [(5,), (2, 3)]),
    "residual fused": ({"layers": [DENSE_RELU, "relu"]}, [(3,), (2, 3)]),
    "residual fused without bias": ({"layers": [{**DENSE_RELU, "bias": False}, "relu"]}, [(3,)]),
    "silu": ({}, [(5,), (2, 3)]),
    "softmax": ({}, [(5,), (2, 3), (1,)]),
    "softplus": ({}, [(5,), (2, 3)]),
}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# layer name -> f(x (rows, *shape) float64, parameters by short name, options) in evaluation
DEFINITIONS = {
    "dense without bias": lambda x, p, o: x @ p["weight"],
    "elu": lambda x, p, o: np.where(x > 0, x, o["alpha"] * (np.exp(x) - 1)),
    "residual fused": lambda x, p, o: np.maximum(x @ p["dense0.weight"] + p["dense0.bias"], 0) + x,
    "residual fused without bias": lambda x, p, o: np.maximum(x @ p["dense0.weight"], 0) + x,
    "silu": lambda x, p, o: x / (1 + np.exp(-x)),
    "softmax": lambda x, p, o: softmax(x),
    "softplus": lambda x, p, o: np.log(1 + np.exp(x)),
}
