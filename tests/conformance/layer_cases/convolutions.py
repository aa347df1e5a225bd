"""Convolutions: full, depthwise, transposed, in one to three dimensions."""

import itertools

import numpy as np


def as_tuple(value, axes):
    return (value,) * axes if isinstance(value, int) else tuple(value)


def pads(x, k, stride, dilation, padding):
    """Zeros before and after each axis."""
    axes = len(x)
    if padding == "valid":
        return [(0, 0)] * axes
    if padding != "same":
        return [(number, number) for number in as_tuple(padding, axes)]
    found = []
    for size, taps, step, wide in zip(x, k, stride, dilation, strict=True):
        places = -(-size // step)
        total = max((places - 1) * step + wide * (taps - 1) + 1 - size, 0)
        found.append((total // 2, total - total // 2))
    return found


def convolution(x, p, o, axes, groups=None):
    """Sum over taps and channels, one output channel after the other."""
    weight = p["weight"]
    k, outputs = weight.shape[:axes], weight.shape[-1]
    stride, dilation = as_tuple(o.get("stride", 1), axes), as_tuple(o.get("dilation", 1), axes)
    around = pads(x.shape[1:-1], k, stride, dilation, o.get("padding", "same"))
    padded = np.pad(x, [(0, 0), *around, (0, 0)])
    places = [
        (size - wide * (taps - 1) - 1) // step + 1
        for size, taps, step, wide in zip(padded.shape[1:-1], k, stride, dilation, strict=True)
    ]
    groups = groups or o.get("groups", 1)
    inner, outer = x.shape[-1] // groups, outputs // groups
    y = np.zeros((len(x), *places, outputs))
    for tap in itertools.product(*map(range, k)):
        window = tuple(
            slice(t * wide, t * wide + (count - 1) * step + 1, step)
            for t, wide, count, step in zip(tap, dilation, places, stride, strict=True)
        )
        seen = padded[(slice(None), *window)]
        for n in range(outputs):
            first = n // outer * inner
            y[..., n] += seen[..., first : first + inner] @ weight[tap][:, n]
    return y + p.get("bias", 0)


def transposed(x, p, o, axes):
    """Spread each input place over the taps, then cut the padding off."""
    weight = p["weight"]
    k, channels = weight.shape[:axes], weight.shape[-2]
    stride = as_tuple(o.get("stride", 1), axes)
    padding = o.get("padding", "same")
    full = [(size - 1) * step + taps for size, step, taps in zip(x.shape[1:-1], stride, k, strict=True)]
    if padding == "same":
        out = [size * step for size, step in zip(x.shape[1:-1], stride, strict=True)]
        low = [before for before, _ in pads(out, k, stride, (1,) * axes, "same")]
    else:
        low = as_tuple(0 if padding == "valid" else padding, axes)
        extra = as_tuple(o.get("output_padding", 0), axes)
        out = [size - 2 * before + more for size, before, more in zip(full, low, extra, strict=True)]
    room = [max(size, before + length) for size, before, length in zip(full, low, out, strict=True)]
    y = np.zeros((len(x), *room, channels))
    for tap in itertools.product(*map(range, k)):
        window = tuple(
            slice(t, t + (size - 1) * step + 1, step) for t, size, step in zip(tap, x.shape[1:-1], stride, strict=True)
        )
        y[(slice(None), *window)] += x @ weight[tap].T
    inside = tuple(slice(before, before + length) for before, length in zip(low, out, strict=True))
    return y[(slice(None), *inside)] + p.get("bias", 0)


# layer name -> (options, input shapes)
EXAMPLES = {
    "conv1d": ({"channels": 3, "kernel": 3, "stride": 2}, [(5, 2), (1, 1)]),
    "conv1d valid": ({"channels": 17, "kernel": 2, "padding": "valid", "dilation": 2}, [(4, 1)]),
    "conv2d": ({"channels": 3, "kernel": [3, 2], "stride": [1, 2], "padding": [1, 0], "dilation": [2, 1]}, [(4, 5, 2)]),
    "conv2d groups": ({"channels": 4, "kernel": 3, "groups": 2, "bias": False, "dilation": 2}, [(3, 4, 4)]),
    "conv2d one group a channel": ({"channels": 4, "kernel": 2, "groups": 2}, [(3, 3, 2)]),
    "conv3d": ({"channels": 2, "kernel": 2, "stride": 2}, [(3, 2, 3, 1)]),
    "conv_transpose1d": ({"channels": 3, "kernel": 3, "stride": 2}, [(3, 2)]),
    "conv_transpose2d": (
        {"channels": 2, "kernel": 3, "stride": [2, 3], "padding": 1, "output_padding": [1, 2]},
        [(2, 2, 3)],
    ),
    "conv_transpose3d": ({"channels": 2, "kernel": 2, "padding": "valid", "bias": False}, [(1, 2, 2, 2)]),
    "depthwise_conv1d": ({"kernel": 3, "stride": 2, "dilation": 2, "multiplier": 2}, [(5, 3)]),
    "depthwise_conv2d": ({"kernel": [3, 2], "bias": False}, [(3, 4, 3)]),
    "depthwise_conv3d": ({"kernel": 2, "padding": 1, "stride": 2}, [(2, 1, 3, 2)]),
}

# layer name -> f(x (rows, *shape) float64, parameters by short name, options) in evaluation
DEFINITIONS = {
    "conv1d": lambda x, p, o: convolution(x, p, o, 1),
    "conv1d valid": lambda x, p, o: convolution(x, p, o, 1),
    "conv2d": lambda x, p, o: convolution(x, p, o, 2),
    "conv2d groups": lambda x, p, o: convolution(x, p, o, 2),
    "conv2d one group a channel": lambda x, p, o: convolution(x, p, o, 2),
    "conv3d": lambda x, p, o: convolution(x, p, o, 3),
    "conv_transpose1d": lambda x, p, o: transposed(x, p, o, 1),
    "conv_transpose2d": lambda x, p, o: transposed(x, p, o, 2),
    "conv_transpose3d": lambda x, p, o: transposed(x, p, o, 3),
    "depthwise_conv1d": lambda x, p, o: convolution(x, p, o, 1, groups=x.shape[-1]),
    "depthwise_conv2d": lambda x, p, o: convolution(x, p, o, 2, groups=x.shape[-1]),
    "depthwise_conv3d": lambda x, p, o: convolution(x, p, o, 3, groups=x.shape[-1]),
}
