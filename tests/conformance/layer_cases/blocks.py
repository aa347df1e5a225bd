"""Blocks made of other layers."""

import numpy as np


def squeeze_excite(x, p, o):
    mean = x.mean(axis=tuple(range(1, x.ndim - 1)))
    hidden = np.maximum(mean @ p["dense1.weight"] + p["dense1.bias"], 0)
    gate = 1 / (1 + np.exp(-(hidden @ p["dense3.weight"] + p["dense3.bias"])))
    return x * gate.reshape(len(x), *(1,) * (x.ndim - 2), x.shape[-1])


# layer name -> (options, input shapes)
EXAMPLES = {"squeeze_excite": ({"reduction": 2}, [(3, 2, 5), (4, 3)])}

# layer name -> f(x (rows, *shape) float64, parameters by short name, options) in evaluation
DEFINITIONS = {"squeeze_excite": squeeze_excite}
