"""Layers that only change shapes or the order of axes."""

# layer name -> (options, input shapes)
EXAMPLES = {
    "columns": ({"start": 1, "stop": 4}, [(5,), (2, 3, 4)]),
    "columns shaped": ({"start": 2, "shape": [3, 2]}, [(8,)]),
    "permute": ({"axes": [1, 2, 0]}, [(2, 3, 4)]),
    "permute two": ({"axes": [1, 0, 2]}, [(3, 2, 2)]),
    "reshape": ({"shape": [3, -1]}, [(2, 6), (3,)]),
}


def permute(x, p, o):
    return x.transpose(0, *(axis + 1 for axis in o["axes"]))


def columns(x, p, o):
    return x[..., o.get("start", 0) : o.get("stop")]


# layer name -> f(x (rows, *shape) float64, parameters by short name, options) in evaluation
DEFINITIONS = {
    "columns": columns,
    "columns shaped": lambda x, p, o: columns(x, p, o).reshape(len(x), *o["shape"]),
    "permute": permute,
    "permute two": permute,
    "reshape": lambda x, p, o: x.reshape(len(x), *o["shape"]),
}
