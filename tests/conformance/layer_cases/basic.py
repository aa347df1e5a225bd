"""Dense layers, activations, containers and shapes."""

import math

import numpy as np

# layer name -> (options, input shapes)
EXAMPLES = {
    "dense": ({"units": 3}, [(5,), (2, 4), (1,)]),
    "dropout": ({"rate": 0.4}, [(7,), (2, 3)]),
    "flatten": ({}, [(2, 3), (2, 1, 3), (4,)]),
    "gelu": ({}, [(5,), (2, 3)]),
    "leaky_relu": ({"slope": 0.1}, [(5,), (2, 3)]),
    "parallel": ({"branches": [[], ["tanh"], [{"type": "dense", "units": 2}]]}, [(2, 3)]),
    "parallel add": ({"branches": [[], ["tanh"], ["gelu"]], "merge": "add"}, [(2, 3)]),
    "parallel multiply": ({"branches": [[], ["tanh"]], "merge": "multiply"}, [(2, 3)]),
    "relu": ({}, [(5,), (2, 3)]),
    "residual": ({"layers": ["tanh", {"type": "dense", "units": 3}]}, [(2, 3)]),
    "sigmoid": ({}, [(5,), (2, 3)]),
    "tanh": ({}, [(5,), (2, 3)]),
}

# layer name -> f(x (rows, *shape) float64, parameters by short name, options) in evaluation
DEFINITIONS = {
    "dense": lambda x, p, o: x @ p["weight"] + p["bias"],
    "dropout": lambda x, p, o: x,
    "flatten": lambda x, p, o: x.reshape(len(x), -1),
    "gelu": lambda x, p, o: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "leaky_relu": lambda x, p, o: np.where(x > 0, x, o["slope"] * x),
    "parallel": lambda x, p, o: np.concatenate([x, np.tanh(x), x @ p["dense1.weight"] + p["dense1.bias"]], -1),
    "parallel add": lambda x, p, o: x + np.tanh(x) + DEFINITIONS["gelu"](x, p, o),
    "parallel multiply": lambda x, p, o: x * np.tanh(x),
    "relu": lambda x, p, o: np.maximum(x, 0),
    "residual": lambda x, p, o: np.tanh(x) @ p["dense1.weight"] + p["dense1.bias"] + x,
    "sigmoid": lambda x, p, o: 1 / (1 + np.exp(-x)),
    "tanh": lambda x, p, o: np.tanh(x),
}
