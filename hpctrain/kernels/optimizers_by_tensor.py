"""Update kernels whose steps depend on norms of whole tensors: LAMB and LARS.

Each has two: `..._norms` adds up squares over the ranges of a slice and changes nothing else, then the update proper
takes the sums over the whole tensors.  Both are called with the same arguments:
kernel(params, grads, *slots, starts, stops, lr_factor, decay_factor, tensors, norms, *scalars).

tensors  int64 (ranges,): which row of `norms` a range belongs to
norms    float64 (all tensors of the model, 2): sums of squares, over the slice for the first kernel (rows of tensors
         without a range in it are 0, so that the slices' arrays can simply be added) and over all of it for the second

A tensor without weight decay (decay_factor 0) takes the plain step, as in the authors' codes: the norms of biases and
normalisation scales are no measure for them.  So does one whose norms are 0.
The updates are without fast-math, for the reason that `optimizers.py` gives; the sums are in float64 and vectorised.
"""

import math

import numpy as np

from hpctrain.kernels.jit import kernel


@kernel
def lamb_norms(
    params,
    grads,
    mean,
    square,
    starts,
    stops,
    lr_factor,
    decay_factor,
    tensors,
    norms,
    lr,
    decay,
    beta1,
    beta2,
    new_mean,
    new_square,
    mean_correction,
    root_correction,
    epsilon,
    scale,
):
    """Sums of p^2 and of u^2, with u the step that `lamb` will scale; changes no state."""
    norms[:] = 0
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        m = mean[starts[r] : stops[r]]
        s = square[starts[r] : stops[r]]
        shrink = decay * decay_factor[r]
        weights, steps = 0.0, 0.0
        for i in range(p.size):
            g = scale * gradient[i]
            new_m = beta1 * m[i] + new_mean * g
            new_s = beta2 * s[i] + new_square * (g * g)
            u = mean_correction * new_m / (root_correction * np.sqrt(new_s) + epsilon) + shrink * p[i]
            weights += np.float64(p[i]) * np.float64(p[i])
            steps += np.float64(u) * np.float64(u)
        norms[tensors[r], 0] += weights
        norms[tensors[r], 1] += steps


@kernel(fastmath=False)
def lamb(
    params,
    grads,
    mean,
    square,
    starts,
    stops,
    lr_factor,
    decay_factor,
    tensors,
    norms,
    lr,
    decay,
    beta1,
    beta2,
    new_mean,
    new_square,
    mean_correction,
    root_correction,
    epsilon,
    scale,
):
    """u = A m / (B sqrt(s) + epsilon) + decay p; p -= lr |p| / |u| u; m, s, A and B as in `optimizers.adam`.

    g = scale grad; |p| and |u| are norms over the whole tensor: the roots of norms[tensor, 0] and norms[tensor, 1].
    """
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        m = mean[starts[r] : stops[r]]
        s = square[starts[r] : stops[r]]
        shrink = decay * decay_factor[r]
        ratio = 1.0
        weights, steps = norms[tensors[r], 0], norms[tensors[r], 1]
        if decay_factor[r] != 0 and weights != 0 and steps != 0:
            ratio = math.sqrt(weights / steps)
        rate = p.dtype.type(np.float64(lr) * np.float64(lr_factor[r]) * ratio)
        for i in range(p.size):
            g = scale * gradient[i]
            m[i] = beta1 * m[i] + new_mean * g
            s[i] = beta2 * s[i] + new_square * (g * g)
            p[i] -= rate * (mean_correction * m[i] / (root_correction * np.sqrt(s[i]) + epsilon) + shrink * p[i])


@kernel
def lars_norms(
    params,
    grads,
    velocity,
    starts,
    stops,
    lr_factor,
    decay_factor,
    tensors,
    norms,
    lr,
    decay,
    momentum,
    trust,
    epsilon,
    scale,
):
    """Sums of p^2 and of (scale grad)^2; changes no state."""
    norms[:] = 0
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        weights, gradients = 0.0, 0.0
        for i in range(p.size):
            g = np.float64(scale * gradient[i])
            weights += np.float64(p[i]) * np.float64(p[i])
            gradients += g * g
        norms[tensors[r], 0] += weights
        norms[tensors[r], 1] += gradients


@kernel(fastmath=False)
def lars(
    params,
    grads,
    velocity,
    starts,
    stops,
    lr_factor,
    decay_factor,
    tensors,
    norms,
    lr,
    decay,
    momentum,
    trust,
    epsilon,
    scale,
):
    """v = momentum v + lr trust |p| / (|g| + decay |p| + epsilon) (g + decay p); p -= v; g = scale grad.

    |p| and |g| are norms over the whole tensor: the roots of norms[tensor, 0] and norms[tensor, 1].
    """
    for r in range(starts.size):
        p = params[starts[r] : stops[r]]
        gradient = grads[starts[r] : stops[r]]
        v = velocity[starts[r] : stops[r]]
        shrink = decay * decay_factor[r]
        ratio = 1.0
        weights, gradients = math.sqrt(norms[tensors[r], 0]), math.sqrt(norms[tensors[r], 1])
        if decay_factor[r] != 0 and weights != 0 and gradients != 0:
            ratio = np.float64(trust) * weights / (gradients + np.float64(shrink) * weights + np.float64(epsilon))
        rate = p.dtype.type(np.float64(lr) * np.float64(lr_factor[r]) * ratio)
        for i in range(p.size):
            v[i] = momentum * v[i] + rate * (scale * gradient[i] + shrink * p[i])
            p[i] -= v[i]
