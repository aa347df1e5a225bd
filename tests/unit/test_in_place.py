"""Kernels whose result may stand in an argument's memory: the same numbers in place and apart."""

import numpy as np
import pytest

from hpctrain.kernels import activations, dense
from hpctrain.kernels.elementwise import add_arrays

SIZES = [0, 1, 15, 16, 17, 1000]


@pytest.mark.parametrize("size", SIZES)
def test_a_sum_in_the_first_terms_memory(size):
    rng = np.random.default_rng(size)
    a, b = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    total = a + b

    add_arrays(a, b, a)

    np.testing.assert_array_equal(a, total)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("forward", "backward", "constants", "formula"),
    [
        (activations.relu_forward, activations.relu_backward, (), lambda x: np.where(x <= 0, 0, x)),
        (
            activations.leaky_relu_forward,
            activations.leaky_relu_backward,
            (0.1,),
            lambda x: np.where(x <= 0, 0.1 * x, x),
        ),
        (activations.tanh_forward, activations.tanh_backward, (), np.tanh),
    ],
)
def test_activations_in_place(size, forward, backward, constants, formula):
    rng = np.random.default_rng(size)
    x, dy = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    x[:1], dy[-1:] = np.nan, np.inf
    apart, dx = np.empty_like(x), np.empty_like(x)

    forward(x, apart, *constants)
    backward(apart, dy, dx, *constants)
    y = x.copy()
    forward(y, y, *constants)
    backward(y, dy, dy, *constants)

    np.testing.assert_allclose(y, formula(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(y, apart, rtol=1e-6)
    np.testing.assert_allclose(dy, dx, rtol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_masked_gradient_in_place(beta):
    rng = np.random.default_rng(3)
    y, dy = (rng.standard_normal((7, 21)).astype(np.float32) for _ in range(2))
    masked = np.where(y <= 0, 0, dy)
    sums = np.full(21, 2 if beta else np.nan, np.float32)

    dense.relu_mask_sums(y, dy, dy, sums, beta)

    np.testing.assert_array_equal(dy, masked)
    np.testing.assert_allclose(sums, masked.astype("f8").sum(0) + (2 if beta else 0), rtol=1e-5, atol=1e-6)
