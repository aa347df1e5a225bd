"""Padding in sequences: which steps are real, and what is taken over the real steps of an example alone.

A mask (rows * steps,) holds 1 where a step is real and 0 where it is padding.  An example without a real step gives
zeros, and its gradients are zeros.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import view


@kernel
def padding_mask(x: np.ndarray, mask: np.ndarray, value: float) -> None:
    """mask[i] = 0 where every x[i, j] is `value`, else 1 (NaN is never padding); x (rows * steps, features)."""
    padding = x.dtype.type(value)
    for i in range(x.shape[0]):
        real = x.dtype.type(0)
        for j in range(x.shape[1]):
            if x[i, j] != padding:
                real = x.dtype.type(1)
        mask[i] = real


@kernel
def zero_steps(x: np.ndarray, mask: np.ndarray, y: np.ndarray) -> None:
    """y[i] = x[i] where mask[i] is not 0, else 0; x, y (rows * steps, features)."""
    zero = y.dtype.type(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] if mask[i] != 0 else zero


@kernel
def real_steps(mask: np.ndarray, first: int, steps: int) -> int:
    """Return how many of `steps` steps from `first` on are real."""
    count = 0
    for i in range(first, first + steps):
        if mask[i] != 0:
            count += 1
    return count


@kernel
def masked_mean_forward(x: np.ndarray, mask: np.ndarray, y: np.ndarray, totals: np.ndarray, steps: int) -> None:
    """y[r, c] = mean over the real steps t and their places p of x[r, t, p, c]; summed in float64.

    x (rows * steps, places channels), y (rows, channels); totals (2 channels,): scratch.
    """
    rows, channels = y.shape
    places = x.shape[1] // channels
    sums = view(totals.view(np.float64), np.int64(0), (channels,))
    for r in range(rows):
        count = real_steps(mask, r * steps, steps)
        sums[:] = 0.0
        for i in range(r * steps, (r + 1) * steps):
            if mask[i] != 0:
                for p in range(places):
                    line = x[i, p * channels : (p + 1) * channels]
                    for c in range(channels):
                        sums[c] += line[c]
        part = 1.0 / max(count * places, 1)
        for c in range(channels):
            y[r, c] = sums[c] * part


@kernel
def masked_mean_backward(mask: np.ndarray, dy: np.ndarray, dx: np.ndarray, steps: int) -> None:
    """dx[r, t, p, c] = dy[r, c] / (real steps x places) at real steps, else 0; shapes as in the forward pass."""
    rows, channels = dy.shape
    places = dx.shape[1] // channels
    zero = dx.dtype.type(0)
    for r in range(rows):
        part = dx.dtype.type(1.0 / max(real_steps(mask, r * steps, steps) * places, 1))
        for i in range(r * steps, (r + 1) * steps):
            for p in range(places):
                line = dx[i, p * channels : (p + 1) * channels]
                for c in range(channels):
                    line[c] = dy[r, c] * part if mask[i] != 0 else zero


@kernel
def masked_max_forward(x: np.ndarray, mask: np.ndarray, y: np.ndarray, steps: int) -> None:
    """y[r, c] = the largest x[r, t, p, c] of the real steps t and their places p; NaN wins.

    x (rows * steps, places channels), y (rows, channels).
    """
    rows, channels = y.shape
    places = x.shape[1] // channels
    for r in range(rows):
        seen = False
        for c in range(channels):
            y[r, c] = 0.0
        for i in range(r * steps, (r + 1) * steps):
            if mask[i] != 0:
                for p in range(places):
                    line = x[i, p * channels : (p + 1) * channels]
                    for c in range(channels):
                        if not (seen and line[c] <= y[r, c]) and y[r, c] == y[r, c]:
                            y[r, c] = line[c]
                    seen = True


@kernel
def masked_max_backward(
    x: np.ndarray, mask: np.ndarray, y: np.ndarray, dy: np.ndarray, dx: np.ndarray, left: np.ndarray, steps: int
) -> None:
    """dx = dy at the first of the largest values of the real steps, else 0; left (channels,): scratch.

    Where the largest value is NaN, the first NaN has the gradient.
    """
    rows, channels = dy.shape
    places = dx.shape[1] // channels
    zero = dx.dtype.type(0)
    for r in range(rows):
        for c in range(channels):
            left[c] = dy[r, c]
        for i in range(r * steps, (r + 1) * steps):
            for j in range(places * channels):
                dx[i, j] = zero
            if mask[i] != 0:
                for p in range(places):
                    for c in range(channels):
                        found, largest = x[i, p * channels + c], y[r, c]
                        if found == largest or (found != found and largest != largest):
                            dx[i, p * channels + c] = left[c]
                            left[c] = zero


@kernel
def last_real_step(mask: np.ndarray, first: int, steps: int) -> int:
    """Return the row of the last real step of `steps` from `first` on, or -1."""
    for i in range(first + steps - 1, first - 1, -1):
        if mask[i] != 0:
            return i
    return -1


@kernel
def masked_last_forward(x: np.ndarray, mask: np.ndarray, y: np.ndarray, steps: int) -> None:
    """y[r] = x at the last real step of row r; x (rows * steps, n), y (rows, n)."""
    for r in range(y.shape[0]):
        at = last_real_step(mask, r * steps, steps)
        for j in range(y.shape[1]):
            y[r, j] = x[at, j] if at >= 0 else 0.0


@kernel
def masked_last_backward(mask: np.ndarray, dy: np.ndarray, dx: np.ndarray, steps: int) -> None:
    """dx = dy at each row's last real step, else 0; dy (rows, n), dx (rows * steps, n)."""
    zero = dx.dtype.type(0)
    for r in range(dy.shape[0]):
        at = last_real_step(mask, r * steps, steps)
        for i in range(r * steps, (r + 1) * steps):
            for j in range(dx.shape[1]):
                dx[i, j] = dy[r, j] if i == at else zero
