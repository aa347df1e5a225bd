"""Metric kernels for class labels that need more than right or wrong: counts of each class, likelihood.

`outputs` (n, k) float32, `targets` int64 (n,), `weight` (n,) float32; n may be 0.  A row of weight 0 does not count,
whatever it holds.  The predicted class is the first of the largest outputs; with one column, a logit, class 1 where it
is above 0.  A NaN among a row's outputs or a class that the network does not have is counted apart, as broken.
"""

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel
def predicted_class(outputs, row):
    """Return the class that a row of outputs says, -1 where one of them is NaN."""
    best = 0
    for j in range(outputs.shape[1]):
        if np.isnan(outputs[row, j]):
            return -1
        if outputs[row, j] > outputs[row, best]:
            best = j
    if outputs.shape[1] == 1:
        return 1 if outputs[row, 0] > 0.0 else 0
    return best


@kernel
def class_counts(state, outputs, targets, weight):
    """Add weights to state = [broken, right (c), predicted (c), actual (c)] for c = max(2, k) classes."""
    classes = max(2, outputs.shape[1])
    for i in range(outputs.shape[0]):
        w = np.float64(weight[i])
        if w == 0.0:
            continue
        said, label = predicted_class(outputs, i), targets[i]
        if said < 0 or label < 0 or label >= classes:
            state[0] += w
            continue
        if said == label:
            state[1 + label] += w
        state[1 + classes + said] += w
        state[1 + 2 * classes + label] += w


@kernel
def confusion(state, outputs, targets, weight):
    """Add weights to state = [broken, m (c x c)], m[actual, predicted], for c = max(2, k) classes."""
    classes = max(2, outputs.shape[1])
    for i in range(outputs.shape[0]):
        w = np.float64(weight[i])
        if w == 0.0:
            continue
        said, label = predicted_class(outputs, i), targets[i]
        if said < 0 or label < 0 or label >= classes:
            state[0] += w
        else:
            state[1 + label * classes + said] += w


@kernel
def log_likelihood(state, outputs, targets, weight):
    """Add to state = [sum of w (log sum_j exp x_j - x_t), sum of w]; a class without an output gives NaN."""
    rows, columns = outputs.shape
    for i in range(rows):
        w = np.float64(weight[i])
        if w == 0.0:
            continue
        label = targets[i]
        state[1] += w
        if label < 0 or label >= columns:
            state[0] = np.nan
            continue
        top = np.float64(outputs[i, 0])
        for j in range(1, columns):
            top = max(top, np.float64(outputs[i, j]))
        powers = 0.0
        for j in range(columns):
            powers += np.exp(np.float64(outputs[i, j]) - top)
        state[0] += w * (np.log(powers) + top - np.float64(outputs[i, label]))


@kernel
def log_probabilities(outputs, scores):
    """Store log softmax(x)_j = x_j - log sum_i exp x_i in `scores` (n, k) float32, computed in float64."""
    rows, columns = outputs.shape
    for i in range(rows):
        top = np.float64(outputs[i, 0])
        for j in range(1, columns):
            top = max(top, np.float64(outputs[i, j]))
        powers = 0.0
        for j in range(columns):
            powers += np.exp(np.float64(outputs[i, j]) - top)
        for j in range(columns):
            scores[i, j] = np.float64(outputs[i, j]) - top - np.log(powers)
