"""Loss kernels: the weighted sum of the losses over the rows, and its derivative.

All have the signature `(outputs (n, k), targets, weight (n,), d_outputs (n, k), *constants) -> float64` and *store* the
derivative of the returned sum into `d_outputs`.  Floating point arrays are float32, or all of them float64.  Sums are
taken in float64; n may be 0.  NaN in an output gives NaN in the sum and in that row's derivative.

Real targets have the shape of the outputs.  The loss of a row is the *mean* over its k columns, so that a sum divided
by the sum of weights is PyTorch's `reduction="mean"` where all weights are one.
"""

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel
def softmax_cross_entropy(outputs, targets, weight, d_outputs):
    """Sum of w (log sum_j exp x_j - x_t) over rows with integer class t; derivative w (softmax(x)_j - [j = t]).

    The largest output is subtracted first, so that exp cannot overflow.  A class outside 0 .. k - 1 gives NaN.
    """
    rows, columns = outputs.shape
    total = 0.0
    for i in range(rows):
        w = np.float64(weight[i])
        label = targets[i]
        if label < 0 or label >= columns:  # a negative index would count from the end and go unnoticed
            label = 0
            w = np.nan
        top = outputs[i, 0]
        for j in range(1, columns):
            if outputs[i, j] > top:
                top = outputs[i, j]
        exp_sum = 0.0
        for j in range(columns):
            power = np.exp(outputs[i, j] - top)
            d_outputs[i, j] = power
            exp_sum += np.float64(power)
        total += w * (np.log(exp_sum) + (np.float64(top) - np.float64(outputs[i, label])))
        share = w / exp_sum
        # In float64, where 1 - softmax of a row that is nearly right is not yet rounded to zero.
        d_label = share * (np.float64(d_outputs[i, label]) - exp_sum)
        for j in range(columns):
            d_outputs[i, j] = share * d_outputs[i, j]
        d_outputs[i, label] = d_label
    return total


@kernel
def binary_cross_entropy(outputs, targets, weight, d_outputs):
    """Sum of w mean_j [max(x, 0) - x y + log(1 + exp(-|x|))] for logits x; derivative w (sigmoid(x) - y) / k.

    This is -y log p - (1 - y) log(1 - p) of p = sigmoid(x), written so that nothing overflows.  Targets are 0 or 1 as
    int64 (n,) beside a single column of outputs, or probabilities (n, k).
    """
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    total = 0.0
    for i in range(rows):
        share = np.float64(weight[i]) / columns
        for j in range(columns):
            x = np.float64(outputs[i, j])
            y = np.float64(wanted[i, j])
            power = np.exp(-abs(x))
            total += share * ((x if x > 0.0 else 0.0) - x * y + np.log1p(power))
            probability = (1.0 if x > 0.0 else power) / (1.0 + power)
            d_outputs[i, j] = share * (probability - y)
    return total


@kernel
def mse(outputs, targets, weight, d_outputs):
    """Sum of w mean_j (x - y)^2; derivative 2 w (x - y) / k."""
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    total = 0.0
    for i in range(rows):
        share = np.float64(weight[i]) / columns
        for j in range(columns):
            difference = np.float64(outputs[i, j]) - np.float64(wanted[i, j])
            total += share * difference * difference
            d_outputs[i, j] = 2.0 * share * difference
    return total


@kernel
def mae(outputs, targets, weight, d_outputs):
    """Sum of w mean_j |x - y|; derivative w sign(x - y) / k, 0 where x = y."""
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    total = 0.0
    for i in range(rows):
        share = np.float64(weight[i]) / columns
        for j in range(columns):
            difference = np.float64(outputs[i, j]) - np.float64(wanted[i, j])
            # The last branch keeps 0 and NaN.
            sign = 1.0 if difference > 0.0 else (-1.0 if difference < 0.0 else difference)
            total += share * abs(difference)
            d_outputs[i, j] = share * sign
    return total


@kernel
def huber(outputs, targets, weight, d_outputs, delta):
    """Sum of w mean_j h(x - y), h(d) = d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2) (Huber 1964).

    The derivative is w / k times x - y, clipped to -delta .. delta.
    """
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    total = 0.0
    for i in range(rows):
        share = np.float64(weight[i]) / columns
        for j in range(columns):
            difference = np.float64(outputs[i, j]) - np.float64(wanted[i, j])
            # The last branch keeps NaN; clipped * (difference - clipped / 2) is both branches of h.
            clipped = delta if difference > delta else (-delta if difference < -delta else difference)
            total += share * clipped * (difference - 0.5 * clipped)
            d_outputs[i, j] = share * clipped
    return total
