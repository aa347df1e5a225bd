"""Initial values of parameters, by name.

Each tensor draws from its own stream, keyed by the run's seed and the tensor's number in the layout (numpy's Philox, a
counter-based generator), so that the values depend on neither the world size nor the other layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np

InitializerName = Literal[
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "lecun_normal",
    "lecun_uniform",
    "ones",
    "orthogonal",
    "zeros",
]

_PIECE = 1 << 16  # numbers drawn at a time
_GAINS = {"glorot": 1.0, "he": 2.0, "lecun": 1.0}


def fill_initial(view: np.ndarray, name: str, fan_in: int, fan_out: int, seed: int, index: int) -> None:
    """Fill a parameter tensor in place.

    glorot (Glorot & Bengio 2010): variance 2 / (fan_in + fan_out); he (He et al. 2015): 2 / fan_in; lecun: 1 / fan_in.
    orthogonal (Saxe, McClelland & Ganguli 2014): as a matrix of all leading axes by the last, its rows or its columns,
    whichever are fewer, are orthonormal; uniformly distributed among such matrices.
    """
    if name in ("zeros", "ones"):
        view[...] = float(name == "ones")
        return
    if name == "orthogonal":
        _fill_orthogonal(view, np.random.Generator(np.random.Philox(key=[seed, index])))
        return
    rule, shape = name.split("_")
    fan = (fan_in + fan_out) / 2.0 if rule == "glorot" else fan_in
    deviation = math.sqrt(_GAINS[rule] / max(fan, 1.0))
    random = np.random.Generator(np.random.Philox(key=[seed, index]))
    draw: Callable[[int], np.ndarray] = (
        random.standard_normal if shape == "normal" else partial(random.uniform, -math.sqrt(3.0), math.sqrt(3.0))
    )
    flat = view.reshape(-1)  # drawn piece by piece, the numbers are the same, and a large tensor needs no second one
    for at in range(0, flat.size, _PIECE):
        piece = flat[at : at + _PIECE]
        piece[:] = deviation * draw(piece.size)


def _fill_orthogonal(view: np.ndarray, random: np.random.Generator) -> None:
    rows, columns = math.prod(view.shape[:-1]), view.shape[-1]
    q, r = np.linalg.qr(random.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.where(np.diag(r) < 0, -1.0, 1.0)  # makes the factorisation unique, and so the distribution uniform
    view[...] = (q if rows >= columns else q.T).reshape(view.shape)
