"""Normalisation over positions (batch norm, group norm), and over the features of a position (layer and RMS norm)."""

from __future__ import annotations

import math

import numpy as np

from hpctrain.kernels.columns import column_moments, column_shift, column_slopes, map_columns, map_slopes, place_sum
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.views import keep_apart, view

RELU, INPUT_GRADIENT = 1, 2
"""Bits of a pass's `mode`: a ReLU behind the normalisation; the input's gradient is wanted, too."""

# Typed: numba compiles a function anew for each literal number.
_START = np.int64(0)


@kernel(no_cpython_wrapper=True)
def _repeat(out: np.ndarray, channels: int) -> None:
    """Fill a line with its first `channels` numbers."""
    keep_apart()
    for j in range(channels, out.size):
        out[j] = out[j - channels]


@kernel(no_cpython_wrapper=True)
def _doubles(buffer: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Two float64 arrays of `count` numbers in a buffer of 4 `count`."""
    doubles = buffer.view(np.float64)
    return view(doubles, _START, (count,)), view(doubles, count, (count,))


@kernel(no_cpython_wrapper=True)
def _lines_of(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The first four rows of scratch: center, factor, offset, and the line that results are made in."""
    n = lines.shape[1]
    return view(lines, _START, (n,)), view(lines, n, (n,)), view(lines, 2 * n, (n,)), view(lines, 3 * n, (n,))


@kernel(no_cpython_wrapper=True)
def _settle(j, mean, var, n, rows, epsilon, stats, d_running_mean, d_running_var):  # noqa: ANN001, ANN202
    """Write the stats of channel j, and add to what its running statistics follow."""
    stats[0, j] = mean
    stats[1, j] = mean - stats[0, j]
    stats[2, j] = 1.0 / math.sqrt(var + epsilon)
    d_running_mean[j] += rows * mean
    d_running_var[j] += rows * (var * n / max(n - 1, 1))


@kernel(no_cpython_wrapper=True)
def _batch_maps(scale, bias, stats, lines):  # noqa: ANN001, ANN202
    """Write center, factor and offset of every channel from its stats."""
    keep_apart()
    channels, width = scale.size, lines.shape[1]
    for j in range(channels):
        lines[0, j] = stats[0, j]
        lines[1, j] = stats[2, j] * scale[j]
        lines[2, j] = bias[j] - stats[1, j] * lines[1, j]
    for row in range(3):
        _repeat(view(lines, row * width, (width,)), channels)


@kernel
def batch_norm_forward(x, scale, bias, y, stats, d_running_mean, d_running_var, lines, totals, rows, epsilon, mode):  # noqa: ANN001, ANN201
    """y[i, j] = (x[i, j] - mean[j]) / sqrt(var[j] + epsilon) scale[j] + bias[j]; then max(y, 0) where `mode` has RELU.

    mean and var (of n, biased) are those of the n values of channel j in this call: all rows, all positions.
    x, y: flat (n channels); scale, bias (channels,); stats (3, channels), kept: mean, what rounding took from it, and
    1 / sqrt(var + epsilon).  d_running_mean += rows mean; d_running_var += rows var n / (n - 1).  lines (4, width),
    totals (4 width,): scratch, width = columns.line_width(channels).

    Ioffe & Szegedy 2015, arXiv:1502.03167.
    """
    keep_apart()
    channels, width = scale.size, lines.shape[1]
    n = x.size // channels
    if n == 0:
        return
    center, factor, offset, line = _lines_of(lines)
    first, second = _doubles(totals, width)
    column_shift(x, _START, x.size, channels, width, center)
    column_moments(x, _START, x.size, width, center, first, second)
    for j in range(channels):
        away = place_sum(first, j, channels) / n
        var = max(place_sum(second, j, channels) / n - away * away, 0.0)
        _settle(j, center[j] + away, var, n, rows, epsilon, stats, d_running_mean, d_running_var)
    _batch_maps(scale, bias, stats, lines)
    map_columns(x, y, _START, x.size, width, center, factor, offset, mode & RELU, line)


@kernel
def batch_norm_sums(x, scale, sums, lines, totals):  # noqa: ANN001, ANN201
    """sums = (n, sum of x[:, j] for each channel, sum of x[:, j]^2 for each channel), float64.

    What ranks add up between this and `batch_norm_of_sums` to normalise by the statistics of all their rows.  x: flat
    (n channels), n may be 0; sums has room for 1 + 2 channels float64.  Scratch as in `batch_norm_forward`.

    The sums are taken about a value near the mean and then moved to zero, which is the same on all ranks: in float64
    that loses (mean / s)^2 1e-16 of a variance s^2, less than x had lost already when it was rounded to float32.
    """
    keep_apart()
    channels, width = scale.size, lines.shape[1]
    center = view(lines, _START, (width,))
    first, second = _doubles(totals, width)
    column_shift(x, _START, x.size, channels, width, center)
    column_moments(x, _START, x.size, width, center, first, second)
    result, n = sums.view(np.float64), float(x.size // channels)
    result[0] = n
    for j in range(channels):
        shift, away = float(center[j]), place_sum(first, j, channels)
        result[1 + j] = away + n * shift
        result[1 + channels + j] = place_sum(second, j, channels) + shift * (2.0 * away + n * shift)


@kernel
def batch_norm_of_sums(x, scale, bias, y, stats, sums, d_running_mean, d_running_var, lines, rows, epsilon, mode):  # noqa: ANN001, ANN201
    """`batch_norm_forward` with the mean and variance of the n values that `sums` tells of (see `batch_norm_sums`).

    `rows` are those of this call: added up over the ranks, the running statistics follow the mean and var of all.
    """
    keep_apart()
    channels, width = scale.size, lines.shape[1]
    given = sums.view(np.float64)
    n = given[0]
    if n == 0.0:
        return
    center, factor, offset, line = _lines_of(lines)
    for j in range(channels):
        mean = given[1 + j] / n
        var = max(given[1 + channels + j] / n - mean * mean, 0.0)
        _settle(j, mean, var, n, rows, epsilon, stats, d_running_mean, d_running_var)
    _batch_maps(scale, bias, stats, lines)
    map_columns(x, y, _START, x.size, width, center, factor, offset, mode & RELU, line)


@kernel
def batch_norm_predict(x, scale, bias, y, running_mean, running_var, lines, epsilon, mode):  # noqa: ANN001, ANN201
    """y[i, j] = (x[i, j] - running_mean[j]) / sqrt(running_var[j] + epsilon) scale[j] + bias[j], RELU as in training.

    One pass; y may be x.  lines (4, width): scratch.
    """
    keep_apart()
    channels, width = scale.size, lines.shape[1]
    center, factor, offset, line = _lines_of(lines)
    for j in range(channels):
        center[j] = running_mean[j]
        factor[j] = scale[j] / math.sqrt(running_var[j] + epsilon)
        offset[j] = bias[j]
    for row in range(3):
        _repeat(view(lines, row * width, (width,)), channels)
    map_columns(x, y, _START, x.size, width, center, factor, offset, mode & RELU, line)


@kernel(no_cpython_wrapper=True)
def _channel_slopes(x, dy, scale, bias, stats, d_scale, d_bias, lines, totals, relu):  # noqa: ANN001, ANN202
    """d_bias += sum g;  d_scale += sum g x^;  returns the two sums of each channel (float64), which lie in totals."""
    keep_apart()
    channels, width = scale.size, lines.shape[1]
    center, factor, offset, _ = _lines_of(lines)
    first, second = _doubles(totals, width)
    _batch_maps(scale, bias, stats, lines)
    column_slopes(x, dy, _START, x.size, width, center, factor, offset, relu, first, second)
    for j in range(channels):
        # A channel's places are j, j + channels, ...: no other channel reads place j.
        first[j] = place_sum(first, j, channels)
        second[j] = (place_sum(second, j, channels) - stats[1, j] * first[j]) * stats[2, j]
        d_bias[j] += first[j]
        d_scale[j] += second[j]
    return first, second


@kernel(no_cpython_wrapper=True)
def _input_gradient(x, dy, stats, dx, slopes, products, n, lines, relu):  # noqa: ANN001, ANN202
    """dx = scale / s (g - slopes / n - x^ products / n); `lines` holds center, factor and offset."""
    keep_apart()
    channels, width = stats.shape[1], lines.shape[1]
    center, factor, offset, line = _lines_of(lines)
    base, slope = view(lines, 4 * width, (width,)), view(lines, 5 * width, (width,))
    for j in range(channels):
        slope[j] = factor[j] * stats[2, j] * products[j] / n
        base[j] = factor[j] * slopes[j] / n - stats[1, j] * slope[j]
    _repeat(base, channels)
    _repeat(slope, channels)
    map_slopes(x, dy, dx, _START, x.size, width, center, factor, offset, relu, base, slope, line)


@kernel
def batch_norm_backward(x, dy, scale, bias, stats, dx, d_scale, d_bias, lines, totals, mode):  # noqa: ANN001, ANN201
    """With g = dy (zero where a ReLU cut y off), x^ = (x - mean) / s, s = sqrt(var + epsilon), means over the n values:

    d_bias += sum g;  d_scale += sum g x^;  dx = scale / s (g - mean(g) - x^ mean(g x^)), with INPUT_GRADIENT in `mode`.

    Where the ReLU cut off is worked out again from x, which costs less than reading y.  lines (6, width), totals as in
    the forward pass.  dx may be dy.
    """
    keep_apart()
    n, relu = x.size // scale.size, mode & RELU
    if n == 0:
        return
    slopes, products = _channel_slopes(x, dy, scale, bias, stats, d_scale, d_bias, lines, totals, relu)
    if mode & INPUT_GRADIENT:
        _input_gradient(x, dy, stats, dx, slopes, products, n, lines, relu)


@kernel
def batch_norm_slopes(x, dy, scale, bias, stats, d_scale, d_bias, sums, lines, totals, mode):  # noqa: ANN001, ANN201
    """d_bias += sum g;  d_scale += sum g x^, over the n values of this call;  sums = (n, these sums), float64.

    What ranks add up between this and `batch_norm_input_gradient`; names as in `batch_norm_backward`, sums as in
    `batch_norm_sums`.
    """
    keep_apart()
    channels = scale.size
    result, n = sums.view(np.float64), x.size // channels
    for j in range(1 + 2 * channels):
        result[j] = 0.0
    if n == 0:
        return
    slopes, products = _channel_slopes(x, dy, scale, bias, stats, d_scale, d_bias, lines, totals, mode & RELU)
    result[0] = n
    for j in range(channels):
        result[1 + j], result[1 + channels + j] = slopes[j], products[j]


@kernel
def batch_norm_input_gradient(x, dy, scale, bias, stats, dx, sums, lines, mode):  # noqa: ANN001, ANN201
    """dx = scale / s (g - mean(g) - x^ mean(g x^)), the means over the n values that `sums` tells of.

    Names as in `batch_norm_backward`, sums as made by `batch_norm_slopes` and added up.  dx may be dy.
    """
    keep_apart()
    channels = scale.size
    given = sums.view(np.float64)
    if x.size == 0:
        return
    _batch_maps(scale, bias, stats, lines)
    slopes, products = view(given, 1, (channels,)), view(given, 1 + channels, (channels,))
    _input_gradient(x, dy, stats, dx, slopes, products, given[0], lines, mode & RELU)


@kernel(no_cpython_wrapper=True)
def _group_maps(scale, bias, stats, lines, row, groups):  # noqa: ANN001, ANN202
    """Write center, factor and offset of an example's channels from its groups' stats."""
    keep_apart()
    channels, width = scale.size, lines.shape[1]
    size = channels // groups
    for j in range(channels):
        group = j // size
        lines[0, j] = stats[row, group, 0]
        lines[1, j] = stats[row, group, 2] * scale[j]
        lines[2, j] = bias[j] - stats[row, group, 1] * lines[1, j]
    for number in range(3):
        _repeat(view(lines, number * width, (width,)), channels)


@kernel
def group_norm_forward(x, scale, bias, y, stats, lines, totals, epsilon, groups, mode):  # noqa: ANN001, ANN201
    """Batch norm's formula with the mean and the variance of an example's group of channels, over its positions.

    x, y: flat (rows positions channels); stats (rows, groups, 3), kept, and scratch as in batch norm; `groups` equal
    groups of neighbouring channels.  Wu & He 2018, arXiv:1803.08494.
    """
    keep_apart()
    channels, width, rows = scale.size, lines.shape[1], stats.shape[0]
    size, each = x.size // max(rows, 1), channels // groups
    n = size // groups
    center, factor, offset, line = _lines_of(lines)
    first, second = _doubles(totals, width)
    for row in range(rows):
        start = row * size
        column_shift(x, start, size, channels, width, center)
        # One shift for a whole group: its sums belong together.
        for group in range(groups):
            total = 0.0
            for j in range(group * each, (group + 1) * each):
                total += center[j]
            for j in range(group * each, (group + 1) * each):
                center[j] = total / each
        _repeat(center, channels)
        column_moments(x, start, size, width, center, first, second)
        for group in range(groups):
            away, squares = 0.0, 0.0
            for j in range(group * each, (group + 1) * each):
                away += place_sum(first, j, channels)
                squares += place_sum(second, j, channels)
            away /= n
            mean = center[group * each] + away
            stats[row, group, 0] = mean
            stats[row, group, 1] = mean - stats[row, group, 0]
            stats[row, group, 2] = 1.0 / math.sqrt(max(squares / n - away * away, 0.0) + epsilon)
        _group_maps(scale, bias, stats, lines, row, groups)
        map_columns(x, y, start, size, width, center, factor, offset, mode & RELU, line)


@kernel
def group_norm_backward(x, dy, scale, bias, stats, dx, d_scale, d_bias, lines, totals, groups, mode):  # noqa: ANN001, ANN201
    """Batch norm's gradients, where the means are over an example's group: of scale g and of scale g x^.

    dx = (scale g - mean(scale g) - x^ mean(scale g x^)) / s.  Scratch as in `batch_norm_backward`.  dx may be dy.
    """
    keep_apart()
    channels, width, rows, relu = scale.size, lines.shape[1], stats.shape[0], mode & RELU
    size, each = x.size // max(rows, 1), channels // groups
    n = size // groups
    center, factor, offset, line = _lines_of(lines)
    base, slope = view(lines, 4 * width, (width,)), view(lines, 5 * width, (width,))
    first, second = _doubles(totals, width)
    for row in range(rows):
        start = row * size
        _group_maps(scale, bias, stats, lines, row, groups)
        column_slopes(x, dy, start, size, width, center, factor, offset, relu, first, second)
        for group in range(groups):
            lost, inverse = stats[row, group, 1], stats[row, group, 2]
            sums, products = 0.0, 0.0
            for j in range(group * each, (group + 1) * each):
                g = place_sum(first, j, channels)
                product = (place_sum(second, j, channels) - lost * g) * inverse
                d_bias[j] += g
                d_scale[j] += product
                sums += scale[j] * g
                products += scale[j] * product
            for j in range(group * each, (group + 1) * each):
                slope[j] = inverse * inverse * products / n
                base[j] = inverse * sums / n - lost * slope[j]
        if mode & INPUT_GRADIENT:
            _repeat(base, channels)
            _repeat(slope, channels)
            map_slopes(x, dy, dx, start, size, width, center, factor, offset, relu, base, slope, line)
