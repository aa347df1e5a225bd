"""Normalisation over the features of one position: layer norm and RMS norm.

Every position is worked on by itself, so a row has the same bits in any batch.
"""

from __future__ import annotations

import math

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import keep_apart

_BLOCK = 64


@kernel(no_cpython_wrapper=True, fastmath={"contract"})
def _standardise(x, mean, rest, inverse, scale, bias, y):  # noqa: ANN001, ANN202
    # Not reassociated: x - (mean + rest) would lose what `rest` is for.
    for j in range(x.size):
        y[j] = ((x[j] - mean) - rest) * (inverse * scale[j]) + bias[j]


@kernel
def layer_norm_forward(x, scale, bias, y, stats, epsilon):  # noqa: ANN001, ANN201
    """y[i, j] = (x[i, j] - mean[i]) / sqrt(var[i] + epsilon) scale[j] + bias[j]: mean and var of a row's features.

    var is the biased one.  x, y (n, features); stats (n, 2), kept: mean and 1 / sqrt(var + epsilon).  The mean of what
    is left after the first mean is subtracted too: features far from zero lose nothing.
    Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """
    keep_apart()
    zero, features = x.dtype.type(0), x.shape[1]
    for i in range(x.shape[0]):
        total = zero
        for j in range(features):
            total += x[i, j]
        mean = x.dtype.type(total / features)
        rest, squares = zero, zero
        for j in range(features):
            away = x[i, j] - mean
            rest += away
            squares += away * away
        rest = x.dtype.type(rest / features)
        var = max(squares / features - rest * rest, 0.0)
        inverse = x.dtype.type(1.0 / math.sqrt(var + epsilon))
        _standardise(x[i], mean, rest, inverse, scale, bias, y[i])
        stats[i, 0] = mean + rest
        stats[i, 1] = inverse


@kernel(no_cpython_wrapper=True)
def _take_up(block: np.ndarray, out: np.ndarray) -> None:
    """out += block; block = 0."""
    keep_apart()
    zero = block.dtype.type(0)
    for j in range(out.size):
        out[j] += block[j]
        block[j] = zero


@kernel
def layer_norm_backward(x, dy, scale, stats, dx, d_scale, d_bias, block, needs_dx):  # noqa: ANN001, ANN201
    """With x^ = (x - mean) / s, s = sqrt(var + epsilon), g = scale dy, means over a row's features:

    d_bias += sum_i dy;  d_scale += sum_i dy x^;  dx = (g - mean(g) - x^ mean(g x^)) / s, where `needs_dx`.

    block (2, features): scratch, the sums of a block of rows, so that sums over many rows stay exact.
    """
    keep_apart()
    zero, features = x.dtype.type(0), x.shape[1]
    for j in range(features):
        block[0, j], block[1, j] = zero, zero
    for at in range(0, x.shape[0], _BLOCK):
        for i in range(at, min(at + _BLOCK, x.shape[0])):
            mean, inverse = stats[i, 0], stats[i, 1]
            sums, products = zero, zero
            for j in range(features):
                normal = (x[i, j] - mean) * inverse
                block[0, j] += dy[i, j] * normal
                block[1, j] += dy[i, j]
                g = dy[i, j] * scale[j]
                sums += g
                products += g * normal
            if needs_dx:
                base = x.dtype.type(sums / features)
                slope = x.dtype.type(products / features)
                for j in range(features):
                    normal = (x[i, j] - mean) * inverse
                    dx[i, j] = inverse * (dy[i, j] * scale[j] - (base + normal * slope))
        _take_up(block[0], d_scale)
        _take_up(block[1], d_bias)


@kernel
def rms_norm_forward(x, scale, y, stats, epsilon):  # noqa: ANN001, ANN201
    """y[i, j] = x[i, j] / sqrt(mean_j(x[i, j]^2) + epsilon) scale[j]; stats (n, 1), kept: the root's inverse.

    Zhang & Sennrich 2019, arXiv:1910.07467.
    """
    keep_apart()
    zero, features = x.dtype.type(0), x.shape[1]
    for i in range(x.shape[0]):
        squares = zero
        for j in range(features):
            squares += x[i, j] * x[i, j]
        inverse = x.dtype.type(1.0 / math.sqrt(squares / features + epsilon))
        for j in range(features):
            y[i, j] = x[i, j] * (inverse * scale[j])
        stats[i, 0] = inverse


@kernel
def rms_norm_backward(x, dy, scale, stats, dx, d_scale, block, needs_dx):  # noqa: ANN001, ANN201
    """With x^ = x / s, g = scale dy: d_scale += sum_i dy x^;  dx = (g - x^ mean(g x^)) / s; block (1, features)."""
    keep_apart()
    zero, features = x.dtype.type(0), x.shape[1]
    for j in range(features):
        block[0, j] = zero
    for at in range(0, x.shape[0], _BLOCK):
        for i in range(at, min(at + _BLOCK, x.shape[0])):
            inverse = stats[i, 0]
            products = zero
            for j in range(features):
                normal = x[i, j] * inverse
                block[0, j] += dy[i, j] * normal
                products += dy[i, j] * scale[j] * normal
            if needs_dx:
                slope = x.dtype.type(products / features)
                for j in range(features):
                    dx[i, j] = inverse * (dy[i, j] * scale[j] - x[i, j] * inverse * slope)
        _take_up(block[0], d_scale)
