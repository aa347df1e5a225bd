"""Metric kernels: add some rows to a float64 state vector.

`outputs` (n, k) float32, `targets` int64 (n,) or float32 (n, k), `weight` (n,) float32; n may be 0.  A row of weight
0 does not count, whatever it holds.  NaN in an output that counts makes the sum NaN: a broken network is never partly
right.
"""

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel
def accuracy(state, outputs, targets, weight):
    """Add to state = [sum of w [argmax_j x_j = t], sum of w]; one column is a logit: class 1 where x > 0.

    The first of equal outputs is the argmax.
    """
    rows, columns = outputs.shape
    right = 0.0
    weights = 0.0
    for i in range(rows):
        w = np.float64(weight[i])
        if w == 0.0:
            continue
        best = 0
        broken = np.isnan(outputs[i, 0])
        for j in range(1, columns):
            broken = broken or np.isnan(outputs[i, j])
            if outputs[i, j] > outputs[i, best]:
                best = j
        if columns == 1 and outputs[i, 0] > 0.0:
            best = 1
        weights += w
        if broken:
            right = np.nan
        elif best == targets[i]:
            right += w
    state[0] += right
    state[1] += weights


@kernel
def top_k(state, outputs, targets, weight, k):
    """Add to state = [sum of w [rank of t < k], sum of w], the rank being the number of outputs greater than x_t.

    A class without an output gives NaN.
    """
    rows, columns = outputs.shape
    right = 0.0
    weights = 0.0
    for i in range(rows):
        w = np.float64(weight[i])
        if w == 0.0:
            continue
        label = targets[i]
        broken = label < 0 or label >= columns
        wanted = outputs[i, 0 if broken else label]
        rank = 0
        for j in range(columns):
            broken = broken or np.isnan(outputs[i, j])
            if outputs[i, j] > wanted:
                rank += 1
        weights += w
        if broken:
            right = np.nan
        elif rank < k:
            right += w
    state[0] += right
    state[1] += weights


@kernel
def absolute_error(state, outputs, targets, weight):
    """Add to state = [sum of w mean_j |x - y|, sum of w]."""
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    for i in range(rows):
        w = np.float64(weight[i])
        if w == 0.0:
            continue
        row = 0.0
        for j in range(columns):
            row += abs(np.float64(outputs[i, j]) - np.float64(wanted[i, j]))
        state[0] += w * row / columns
        state[1] += w


@kernel
def squared_error(state, outputs, targets, weight):
    """Add to state = [sum of w mean_j (x - y)^2, sum of w]."""
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    for i in range(rows):
        w = np.float64(weight[i])
        if w == 0.0:
            continue
        row = 0.0
        for j in range(columns):
            difference = np.float64(outputs[i, j]) - np.float64(wanted[i, j])
            row += difference * difference
        state[0] += w * row / columns
        state[1] += w


@kernel
def column_squared_error(sums, outputs, targets, weight):
    """Add sum of w (x_j - y_j)^2 to sums[j] (k,), for each column by itself."""
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    for i in range(rows):
        w = np.float64(weight[i])
        if w == 0.0:
            continue
        for j in range(columns):
            difference = np.float64(outputs[i, j]) - np.float64(wanted[i, j])
            sums[j] += w * difference * difference


@kernel(fastmath=False)  # as written, a constant column keeps its exact mean and a sum of squares of exactly 0
def moments(state, targets, weight):
    """Add rows to state = [W, mean_1 .. mean_k, M_1 .. M_k]: W = sum of w, M_j = sum of w (y_j - mean_j)^2.

    One pass that loses nothing to a mean far from zero (West 1979): W += w; d = y - mean; mean += d w / W;
    M += w d (y - mean).
    """
    rows = weight.size
    columns = (state.size - 1) // 2
    values = targets.reshape((rows, columns))
    for i in range(rows):
        w = np.float64(weight[i])
        if w == 0.0:
            continue
        state[0] += w
        part = w / state[0]
        for j in range(columns):
            y = np.float64(values[i, j])
            before = y - state[1 + j]
            state[1 + j] += before * part
            state[1 + columns + j] += w * before * (y - state[1 + j])
