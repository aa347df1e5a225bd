"""`kernels.gemm` against float64 numpy: both transposes, overwriting and adding, odd shapes and empty ones."""

import numpy as np
import pytest

from hpctrain.kernels.gemm import gemm
from hpctrain.kernels.jit import kernel


@kernel
def product(trans_a, trans_b, a, b, beta, c):
    gemm(trans_a, trans_b, a, b, beta, c)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 7, 3), (17, 1, 33), (1, 19, 2), (0, 3, 4), (3, 4, 0)])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_gemm_equals_float64_numpy(dtype, trans_a, trans_b, m, n, k, beta):
    random = np.random.default_rng(m * 100 + n * 10 + k)
    a = random.normal(size=(k, m) if trans_a else (m, k)).astype(dtype)
    b = random.normal(size=(n, k) if trans_b else (k, n)).astype(dtype)
    # With beta 0 whatever C held must not show, NaN included.
    c = random.normal(size=(m, n)).astype(dtype) if beta else np.full((m, n), np.nan, dtype)
    expected = (a.T if trans_a else a).astype("f8") @ (b.T if trans_b else b).astype("f8") + (c if beta else 0.0)

    product(trans_a, trans_b, a, b, beta, c)

    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(c, expected, rtol=tolerance, atol=tolerance)
