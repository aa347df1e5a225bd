"""Means, deviations and extremes of columns, in float64, whose bits do not depend on who computes which block.

Moments are an array (6, columns): count, mean, low, squares, minimum, maximum.  NaN is left out of all of them.  The
mean is mean + low, two float64 whose sum is not rounded: where the numbers are large against their deviation, the
difference of two blocks' means would otherwise have no digits left.  `squares` is the sum of squares about the mean.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.jit import kernel

COUNT, MEAN, LOW, SQUARES, MINIMUM, MAXIMUM = range(6)

# Sums are taken in the order that is written: `low` is what rounding has left.
_AS_WRITTEN: set[str] = set()


@kernel(fastmath=_AS_WRITTEN)
def block_moments(x: np.ndarray, count, mean, low, squares, minimum, maximum) -> None:  # noqa: ANN001
    """Store the moments of a flat array whose element i belongs to column i % columns; the arrays: (columns,) float64.

    Two passes: mean = sum x / n; then low = sum (x - mean) / n, squares = sum (x - mean)^2 - n low^2.
    Without a number: count 0, mean, low and squares 0, minimum and maximum infinite.
    """
    columns = count.size
    for j in range(columns):
        count[j] = 0.0
        mean[j] = 0.0
        low[j] = 0.0
        squares[j] = 0.0
        minimum[j] = np.inf
        maximum[j] = -np.inf
    for start in range(0, x.size, columns):
        line = x[start : start + columns]
        for j in range(line.size):
            value = line[j]
            is_number = value == value
            count[j] += 1.0 if is_number else 0.0
            mean[j] += value if is_number else 0.0
            minimum[j] = value if value < minimum[j] else minimum[j]
            maximum[j] = value if value > maximum[j] else maximum[j]
    for j in range(columns):
        mean[j] /= max(count[j], 1.0)
    for start in range(0, x.size, columns):
        line = x[start : start + columns]
        for j in range(line.size):
            difference = line[j] - mean[j] if line[j] == line[j] else 0.0
            low[j] += difference
            squares[j] += difference * difference
    for j in range(columns):
        low[j] /= max(count[j], 1.0)
        squares[j] = max(squares[j] - count[j] * low[j] * low[j], 0.0)


@kernel(fastmath=_AS_WRITTEN)
def merge_moments(into: np.ndarray, other: np.ndarray) -> None:
    """Merge moments (6, columns) of two sets of numbers, A in `into` and B in `other`, in place.

    n = na + nb; d = mean_b - mean_a; mean = mean_a + d nb / n; squares = Sa + Sb + d^2 na nb / n.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979; the
    sum in two floats: Knuth, "The art of computer programming", vol. 2, 4.2.2.
    """
    for j in range(into.shape[1]):
        theirs = other[COUNT, j]
        if theirs == 0.0:
            continue
        mine = into[COUNT, j]
        if mine == 0.0:
            for row in range(into.shape[0]):
                into[row, j] = other[row, j]
            continue
        total = mine + theirs
        difference = (other[MEAN, j] - into[MEAN, j]) + (other[LOW, j] - into[LOW, j])
        into[COUNT, j] = total
        into[SQUARES, j] += other[SQUARES, j] + difference * difference * (mine * (theirs / total))
        mean = into[MEAN, j]
        step = into[LOW, j] + difference * (theirs / total)
        moved = mean + step
        taken = moved - mean
        into[MEAN, j] = moved
        into[LOW, j] = (mean - (moved - taken)) + (step - taken)
        into[MINIMUM, j] = min(into[MINIMUM, j], other[MINIMUM, j])
        into[MAXIMUM, j] = max(into[MAXIMUM, j], other[MAXIMUM, j])
