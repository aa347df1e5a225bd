"""Pooling by windows and over whole examples, and upsampling."""

import itertools

import numpy as np
from conformance.layer_cases.convolutions import as_tuple, pads

# layer name -> (options, input shapes)
EXAMPLES = {
    "avg_pool1d": ({"size": 3, "stride": 2, "padding": 1}, [(6, 2), (1, 1)]),
    "avg_pool2d": ({"size": [2, 3], "padding": "same"}, [(3, 4, 17)]),
    "avg_pool3d": ({"size": 2}, [(2, 4, 2, 3)]),
    "global_avg_pool": ({}, [(4, 3), (2, 3, 2, 1)]),
    "global_max_pool": ({}, [(4, 3), (2, 3, 1, 2)]),
    "max_pool1d": ({"size": 3, "stride": 2, "padding": 1}, [(6, 2), (1, 1)]),
    "max_pool2d": ({"size": [2, 3], "stride": 1, "padding": "same"}, [(3, 4, 2)]),
    "max_pool2d tiles": ({"size": 2}, [(4, 2, 17)]),
    "max_pool2d rest": ({"size": 2}, [(5, 3, 2)]),
    "max_pool3d": ({"size": 2, "stride": [1, 2, 2]}, [(3, 4, 3, 2)]),
    "upsample1d": ({"size": 3, "method": "linear"}, [(4, 2), (1, 1)]),
    "upsample2d": ({"size": [2, 3]}, [(2, 3, 2)]),
    "upsample2d linear": ({"size": [2, 3], "method": "linear"}, [(3, 2, 2)]),
    "upsample3d": ({}, [(1, 2, 2, 17)]),
}


def pool(x, o, axes, reduce):
    """Window after window, the padding cut off."""
    k = as_tuple(o["size"], axes)
    stride = as_tuple(o.get("stride", k), axes)
    around = pads(x.shape[1:-1], k, stride, (1,) * axes, o.get("padding", "valid"))
    places = [
        (size + low + high - taps) // step + 1
        for size, taps, step, (low, high) in zip(x.shape[1:-1], k, stride, around, strict=True)
    ]
    y = np.zeros((len(x), *places, x.shape[-1]))
    for place in itertools.product(*map(range, places)):
        firsts = [at * step - low for at, step, (low, _) in zip(place, stride, around, strict=True)]
        window = tuple(slice(max(first, 0), first + taps) for first, taps in zip(firsts, k, strict=True))
        y[(slice(None), *place)] = reduce(x[(slice(None), *window)], axis=tuple(range(1, axes + 1)))
    return y


def over_all(reduce):
    return lambda x, p, o: reduce(x.reshape(len(x), -1, x.shape[-1]), axis=1)


def upsample(x, p, o):
    """One axis after the other."""
    for axis, size in enumerate(as_tuple(o.get("size", 2), x.ndim - 2), start=1):
        if o.get("method", "nearest") == "nearest":
            x = np.repeat(x, size, axis)
        else:
            places = np.arange(x.shape[axis])
            at = (np.arange(len(places) * size) + 0.5) / size - 0.5
            x = np.apply_along_axis(lambda line, at=at, places=places: np.interp(at, places, line), axis, x)
    return x


# layer name -> f(x (rows, *shape) float64, parameters by short name, options) in evaluation
DEFINITIONS = {
    **{f"avg_pool{axes}d": (lambda x, p, o, axes=axes: pool(x, o, axes, np.mean)) for axes in (1, 2, 3)},
    "global_avg_pool": over_all(np.mean),
    "global_max_pool": over_all(np.max),
    **{f"max_pool{axes}d": (lambda x, p, o, axes=axes: pool(x, o, axes, np.max)) for axes in (1, 2, 3)},
    "max_pool2d tiles": lambda x, p, o: pool(x, o, 2, np.max),
    "max_pool2d rest": lambda x, p, o: pool(x, o, 2, np.max),
    "upsample1d": upsample,
    "upsample2d": upsample,
    "upsample2d linear": upsample,
    "upsample3d": upsample,
}
