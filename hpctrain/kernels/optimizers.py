"""Update kernels of the optimizers: one pass over a slice of the flat buffers, in place.

Those that need norms of whole tensors (LAMB, LARS) stand in `optimizers_by_tensor.py`.

All are called as kernel(params, grads, *slots, starts, stops, lr_factor, decay_factor, *scalars).

`params`, `grads` and the state buffers are contiguous arrays (n,) of one floating point type; scalars are of that
type too, so that nothing is computed in float64 by the way.  `starts, stops` (int64) and `lr_factor, decay_factor`
(float32) give ranges of the slice and their factors; what lies between the ranges (padding) is not touched.

No fast-math here: an element's new value must have the same bits wherever a slice is cut, be it in the vectorised body
of a loop or in its tail.  Memory is the limit, so it costs nothing.
"""

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel(fastmath=False)
def sgd(params, grads, starts, stops, lr_factor, decay_factor, lr, decay, scale):
    """g = scale grad + decay p; p -= lr g."""
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        rate = lr * lr_factor[r]
        shrink = decay * decay_factor[r]
        for i in range(p.size):
            p[i] -= rate * (scale * gradient[i] + shrink * p[i])


@kernel(fastmath=False)
def sgd_momentum(params, grads, velocity, starts, stops, lr_factor, decay_factor, lr, decay, momentum, scale):
    """g = scale grad + decay p; v = momentum v + g; p -= lr v."""
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        v = velocity[starts[r] : stops[r]]
        rate = lr * lr_factor[r]
        shrink = decay * decay_factor[r]
        for i in range(p.size):
            v[i] = momentum * v[i] + (scale * gradient[i] + shrink * p[i])
            p[i] -= rate * v[i]


@kernel(fastmath=False)
def sgd_nesterov(params, grads, velocity, starts, stops, lr_factor, decay_factor, lr, decay, momentum, scale):
    """g = scale grad + decay p; v = momentum v + g; p -= lr (g + momentum v)."""
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        v = velocity[starts[r] : stops[r]]
        rate = lr * lr_factor[r]
        shrink = decay * decay_factor[r]
        for i in range(p.size):
            g = scale * gradient[i] + shrink * p[i]
            v[i] = momentum * v[i] + g
            p[i] -= rate * (g + momentum * v[i])


@kernel(fastmath=False)
def adam(
    params,
    grads,
    mean,
    square,
    starts,
    stops,
    lr_factor,
    decay_factor,
    lr,
    decay,
    decoupled_decay,
    beta1,
    beta2,
    new_mean,
    new_square,
    mean_correction,
    root_correction,
    epsilon,
    scale,
):
    """p -= lr (A m / (B sqrt(s) + epsilon) + decoupled_decay p), with decaying means m and s of g and g^2.

    g = scale grad + decay p; m = beta1 m + new_mean g; s = beta2 s + new_square g^2; new_mean = 1 - beta1;
    new_square = 1 - beta2; A = mean_correction = 1 / (1 - beta1^t); B = root_correction = 1 / sqrt(1 - beta2^t).
    """
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        m = mean[starts[r] : stops[r]]
        s = square[starts[r] : stops[r]]
        rate = lr * lr_factor[r]
        shrink = decay * decay_factor[r]
        decoupled = rate * (decoupled_decay * decay_factor[r])
        rate = rate * mean_correction
        for i in range(p.size):
            g = scale * gradient[i] + shrink * p[i]
            # Not m + new_mean (g - m): with a small beta that loses a g far below m, and a square falls to 0.
            m[i] = beta1 * m[i] + new_mean * g
            s[i] = beta2 * s[i] + new_square * (g * g)
            # Not p * (1 - decoupled): in float32 that rounds a small decay to a few digits.
            p[i] -= rate * m[i] / (root_correction * np.sqrt(s[i]) + epsilon) + decoupled * p[i]


@kernel(fastmath=False)
def rmsprop(params, grads, square, starts, stops, lr_factor, decay_factor, lr, decay, rho, new_square, epsilon, scale):
    """g = scale grad + decay p; s = rho s + new_square g^2; p -= lr g / (sqrt(s) + epsilon); new_square = 1 - rho."""
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        s = square[starts[r] : stops[r]]
        rate = lr * lr_factor[r]
        shrink = decay * decay_factor[r]
        for i in range(p.size):
            g = scale * gradient[i] + shrink * p[i]
            s[i] = rho * s[i] + new_square * (g * g)
            p[i] -= rate * g / (np.sqrt(s[i]) + epsilon)


@kernel(fastmath=False)
def rmsprop_momentum(
    params,
    grads,
    square,
    velocity,
    starts,
    stops,
    lr_factor,
    decay_factor,
    lr,
    decay,
    rho,
    new_square,
    epsilon,
    momentum,
    scale,
):
    """As `rmsprop`, with v = momentum v + g / (sqrt(s) + epsilon); p -= lr v."""
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        s = square[starts[r] : stops[r]]
        v = velocity[starts[r] : stops[r]]
        rate = lr * lr_factor[r]
        shrink = decay * decay_factor[r]
        for i in range(p.size):
            g = scale * gradient[i] + shrink * p[i]
            s[i] = rho * s[i] + new_square * (g * g)
            v[i] = momentum * v[i] + g / (np.sqrt(s[i]) + epsilon)
            p[i] -= rate * v[i]


@kernel(fastmath=False)
def adagrad(params, grads, square, starts, stops, lr_factor, decay_factor, lr, decay, epsilon, scale):
    """g = scale grad + decay p; s = s + g^2; p -= lr g / (sqrt(s) + epsilon)."""
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        s = square[starts[r] : stops[r]]
        rate = lr * lr_factor[r]
        shrink = decay * decay_factor[r]
        for i in range(p.size):
            g = scale * gradient[i] + shrink * p[i]
            s[i] += g * g
            p[i] -= rate * g / (np.sqrt(s[i]) + epsilon)


@kernel(fastmath=False)
def lion(
    params,
    grads,
    mean,
    starts,
    stops,
    lr_factor,
    decay_factor,
    lr,
    decay,
    beta1,
    new_direction,
    beta2,
    new_mean,
    scale,
):
    """c = beta1 m + new_direction g; p -= lr (sign(c) + decay p); m = beta2 m + new_mean g; g = scale grad.

    new_direction = 1 - beta1; new_mean = 1 - beta2.  The sign of 0 is 0, that of NaN is NaN.
    """
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        m = mean[starts[r] : stops[r]]
        rate = lr * lr_factor[r]
        shrink = rate * (decay * decay_factor[r])
        for i in range(p.size):
            g = scale * gradient[i]
            c = beta1 * m[i] + new_direction * g
            # Two selects, which vectorise: c itself is left where it is 0 or NaN.
            step = rate if c > 0 else rate * c
            step = -rate if c < 0 else step
            m[i] = beta2 * m[i] + new_mean * g
            p[i] -= step + shrink * p[i]


@kernel(fastmath=False)
def average(params, mean, kept, new):
    """mean = kept mean + new p, for every element; new = 1 - kept."""
    for i in range(params.size):
        mean[i] = kept * mean[i] + new * params[i]


@kernel(fastmath=False)
def swap(a, b):
    """Exchange two arrays' contents."""
    for i in range(a.size):
        value = a[i]
        a[i] = b[i]
        b[i] = value
