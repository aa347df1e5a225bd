"""Loss kernels: the weighted sum of the losses over the rows, and its derivative.

All have the signature `(outputs, targets, weight (n,), d_outputs, *constants) -> float64` and *store* the derivative of
the returned sum into `d_outputs`.  The weight says what a row is: `outputs` and `d_outputs`, C-contiguous of any shape,
are taken as n rows of outputs.size / n columns, so that positions of a sequence are rows like any others.  Floating
point arrays are float32, or all of them float64.  Sums are taken in float64; n may be 0.

A row of weight 0 does not count, whatever stands in it.  NaN in an output of another row gives NaN in the sum and in
that row's derivative.

Real targets have as many columns as the outputs.  The loss of a row is the *mean* over its k columns, so that a sum
divided by the sum of weights is PyTorch's `reduction="mean"` where all weights are one.
"""

import numpy as np

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.vector_math import exp, log1p
from hpctrain.kernels.views import view


@kernel
def by_weight(values, weight):
    """View C-contiguous `values` of any shape as (n, values.size / n), n = weight.size."""
    rows = weight.size
    return view(values, 0, (rows, values.size // max(rows, 1)))


@kernel
def softmax_cross_entropy(outputs, targets, weight, d_outputs, smoothing):
    """Sum of w (log sum_j exp x_j - sum_j q_j x_j), q_j = (1 - s) [j = t] + s / k for class t and s = smoothing.

    The derivative is w (softmax(x)_j - q_j).  The largest output is subtracted first, so that exp cannot overflow.  A
    class outside 0 .. k - 1 gives NaN.  Label smoothing: Szegedy et al. 2016.
    """
    outputs = by_weight(outputs, weight)
    d_outputs = by_weight(d_outputs, weight)
    rows, columns = outputs.shape
    for i in range(rows):
        top = outputs[i, 0]
        for j in range(1, columns):
            if outputs[i, j] > top:
                top = outputs[i, j]
        for j in range(columns):
            d_outputs[i, j] = outputs[i, j] - top
    total = 0.0
    rest = smoothing / max(columns, 1)
    for i in range(rows):  # the class's output, before the exponentials take its place
        w = np.float64(weight[i])
        label = targets[i]
        if w != 0.0 and 0 <= label < columns:
            mean = 0.0
            if smoothing > 0.0:
                for j in range(columns):
                    mean += np.float64(d_outputs[i, j])
            total -= w * ((1.0 - smoothing) * np.float64(d_outputs[i, label]) + rest * mean)
    powers = view(d_outputs, 0, (d_outputs.size,))
    for j in range(powers.size):  # one flat loop, which is vectorised however few columns there are
        powers[j] = exp(powers[j])
    for i in range(rows):
        w = np.float64(weight[i])
        if w == 0.0:
            for j in range(columns):
                d_outputs[i, j] = 0.0
            continue
        label = targets[i]
        if label < 0 or label >= columns:  # a negative index would count from the end and go unnoticed
            label = 0
            w = np.nan
        exp_sum = 0.0
        for j in range(columns):
            exp_sum += np.float64(d_outputs[i, j])
        total += w * np.log(exp_sum)
        share = w / exp_sum
        # In float64, where 1 - softmax of a row that is nearly right is not yet rounded to zero.
        d_label = share * (np.float64(d_outputs[i, label]) - exp_sum) + w * (smoothing - rest)
        factor, off = outputs.dtype.type(share), outputs.dtype.type(w * rest)
        for j in range(columns):
            d_outputs[i, j] = factor * d_outputs[i, j] - off
        d_outputs[i, label] = d_label
    return total


@kernel
def binary_term(x, y, extra, one):
    """Return p y log(1 + exp(-x)) + (1 - y) log(1 + exp x), p = extra, and its derivative by x; `one` is 1.

    log(1 + exp(-|x|)) is in both terms; the rest of each is |x| on the side where exp would be large.
    """
    positive, negative = extra * y, one - y
    power = exp(-abs(x))
    larger = one / (one + power)
    smaller = power * larger
    rising = x > one - one
    size = abs(x) * (negative if rising else positive)
    slope = negative * (larger if rising else smaller) - positive * (smaller if rising else larger)
    return size + (positive + negative) * log1p(power), slope


@kernel
def binary_cross_entropy(outputs, targets, weight, d_outputs, positive_weight):
    """Sum of w mean_j [p y log(1 + exp(-x)) + (1 - y) log(1 + exp x)] for logits x, p = positive_weight.

    The derivative is w [(1 - y) sigmoid(x) - p y sigmoid(-x)] / k.  With p = 1 this is -y log s - (1 - y) log(1 - s) of
    s = sigmoid(x); all is made of exp(-|x|), so that nothing overflows.  Targets are 0 or 1 as int64 (n,) beside a
    single column of outputs, or probabilities (n, k).
    """
    outputs = by_weight(outputs, weight)
    d_outputs = by_weight(d_outputs, weight)
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    real = outputs.dtype.type
    one, extra = real(1.0), real(positive_weight)
    total = 0.0
    if columns == 1:  # one loop without branches, which is vectorised
        for i in range(rows):
            term, slope = binary_term(outputs[i, 0], real(wanted[i, 0]), extra, one)
            w = np.float64(weight[i])
            total += w * np.float64(term) if w != 0.0 else 0.0
            d_outputs[i, 0] = w * slope if w != 0.0 else 0.0
        return total
    for i in range(rows):
        w = np.float64(weight[i])
        if w == 0.0:
            for j in range(columns):
                d_outputs[i, j] = 0.0
            continue
        row = 0.0
        share = real(w / columns)
        for j in range(columns):
            term, slope = binary_term(outputs[i, j], real(wanted[i, j]), extra, one)
            row += np.float64(term)
            d_outputs[i, j] = share * slope
        total += w / columns * row
    return total


@kernel
def mse(outputs, targets, weight, d_outputs):
    """Sum of w mean_j (x - y)^2; derivative 2 w (x - y) / k."""
    outputs = by_weight(outputs, weight)
    d_outputs = by_weight(d_outputs, weight)
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    total = 0.0
    for i in range(rows):
        share = np.float64(weight[i]) / columns
        if share == 0.0:
            for j in range(columns):
                d_outputs[i, j] = 0.0
            continue
        for j in range(columns):
            difference = np.float64(outputs[i, j]) - np.float64(wanted[i, j])
            total += share * difference * difference
            d_outputs[i, j] = 2.0 * share * difference
    return total


@kernel
def mae(outputs, targets, weight, d_outputs):
    """Sum of w mean_j |x - y|; derivative w sign(x - y) / k, 0 where x = y."""
    outputs = by_weight(outputs, weight)
    d_outputs = by_weight(d_outputs, weight)
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    total = 0.0
    for i in range(rows):
        share = np.float64(weight[i]) / columns
        if share == 0.0:
            for j in range(columns):
                d_outputs[i, j] = 0.0
            continue
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
    outputs = by_weight(outputs, weight)
    d_outputs = by_weight(d_outputs, weight)
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    total = 0.0
    for i in range(rows):
        share = np.float64(weight[i]) / columns
        if share == 0.0:
            for j in range(columns):
                d_outputs[i, j] = 0.0
            continue
        for j in range(columns):
            difference = np.float64(outputs[i, j]) - np.float64(wanted[i, j])
            # The last branch keeps NaN; clipped * (difference - clipped / 2) is both branches of h.
            clipped = delta if difference > delta else (-delta if difference < -delta else difference)
            total += share * clipped * (difference - 0.5 * clipped)
            d_outputs[i, j] = share * clipped
    return total


@kernel
def quantile(outputs, targets, weight, d_outputs, levels):
    """Sum of w mean_jl max(q_l d, (q_l - 1) d), d = y_j - x_jl, for the levels q_l (a tuple) (Koenker, Bassett 1978).

    A row of outputs holds all levels of the first target column, then those of the next.  The derivative by x_jl is
    w / k times -q_l where x is below y, 1 - q_l where it is above, and 0 where they are equal.
    """
    outputs = by_weight(outputs, weight)
    d_outputs = by_weight(d_outputs, weight)
    rows, columns = outputs.shape
    count = len(levels)
    wanted = targets.reshape((rows, columns // count))
    total = 0.0
    for i in range(rows):
        share = np.float64(weight[i]) / columns
        if share == 0.0:
            for j in range(columns):
                d_outputs[i, j] = 0.0
            continue
        for j in range(columns // count):
            for level in range(count):
                at = j * count + level
                below = np.float64(wanted[i, j]) - np.float64(outputs[i, at])
                # The last branch keeps 0 and NaN.
                slope = levels[level] if below > 0.0 else (levels[level] - 1.0 if below < 0.0 else below)
                total += share * slope * below
                d_outputs[i, at] = -share * slope
    return total


@kernel
def poisson(outputs, targets, weight, d_outputs):
    """Sum of w mean_j (exp x - y x), the negative log-likelihood of counts y at rate exp x without its constant.

    The derivative is w (exp x - y) / k.
    """
    outputs = by_weight(outputs, weight)
    d_outputs = by_weight(d_outputs, weight)
    rows, columns = outputs.shape
    wanted = targets.reshape(outputs.shape)
    total = 0.0
    for i in range(rows):
        share = np.float64(weight[i]) / columns
        if share == 0.0:
            for j in range(columns):
                d_outputs[i, j] = 0.0
            continue
        for j in range(columns):
            x, y = np.float64(outputs[i, j]), np.float64(wanted[i, j])
            rate = np.exp(x)
            total += share * (rate - y * x)
            d_outputs[i, j] = share * (rate - y)
    return total
