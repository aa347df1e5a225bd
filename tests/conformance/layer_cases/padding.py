"""Sequences with padding, and zeros around images."""

import numpy as np
from conformance.layer_cases.sequence import attention

# layer name -> (options, input shapes)
EXAMPLES = {
    "padded": (
        {
            "value": 0,
            "layers": [
                {"type": "embedding", "size": 3, "units": 4},
                {"type": "residual", "layers": [{"type": "attention", "heads": 2}]},
                "global_avg_pool",
                {"type": "dense", "units": 2},
            ],
        },
        [(4,)],
    ),
    "zero_pad": ({"padding": 1}, [(3, 2), (1, 2, 1), (2, 1, 2, 3)]),
    "zero_pad sides": ({"padding": [[0, 2], 1]}, [(2, 3, 2)]),
    "zero_pad nothing": ({"padding": 0}, [(2, 2)]),
}

# Layers that take whole numbers: the highest one that their example takes.
WHOLE_NUMBERS = {"padded": 2}


def padded(x, p, o):
    """Row by row, of the real tokens alone; a row without any gives zeros before the dense layer."""
    means = np.zeros((len(x), 4))
    for row, tokens in enumerate(x.astype(int)):
        real = p["embedding0.weight"][tokens[tokens != 0]][None]
        own = {name.split(".")[-1]: value for name, value in p.items() if "attention" in name}
        if real.size:
            means[row] = (real + attention(real, own, {"heads": 2})).mean(axis=1)[0]
    return means @ p["dense3.weight"] + p["dense3.bias"]


def zero_pad(x, p, o):
    entries = [o["padding"]] * (x.ndim - 2) if isinstance(o["padding"], int) else o["padding"]
    sides = [(entry, entry) if isinstance(entry, int) else entry for entry in entries]
    return np.pad(x, [(0, 0), *sides, (0, 0)])


# layer name -> f(x (rows, *shape) float64, parameters by short name, options) in evaluation
DEFINITIONS = {"padded": padded, "zero_pad": zero_pad, "zero_pad sides": zero_pad, "zero_pad nothing": zero_pad}
