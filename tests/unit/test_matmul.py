"""Products by register tiles against float64 numpy: odd shapes, strides, the rim, NaN, and the same bits for a row."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from hpctrain.kernels import matmul as module
from hpctrain.kernels.dense import column_sums, relu_mask, relu_mask_sums
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.matmul import matmul, matmul_bias, matmul_nt, matmul_relu, matmul_tn, multiply
from hpctrain.kernels.microkernel import ADD, BIAS, RELU

SHAPES = [(m, n, k) for m in (*range(1, 21), 25, 50) for n, k in [(1, 3), (16, 5), (33, 1)]]
SHAPES += [(3, n, 7) for n in (2, 15, 17, 31, 32, 47, 48, 49, 63, 64, 65, 100)]
# More than one block of k; rows and columns that are packed; more rows than a block of packed columns holds.
SHAPES += [(50, 40, 257), (49, 33, 600), (300, 130, 20), (145, 128, 300), (13, 129, 511), (57, 270, 260)]
# Few products for each result; rows in steps of 12, and what is left of them.
SHAPES += [(m, n, k) for m in (23, 24, 28, 36, 50) for n, k in [(70, 10), (300, 32), (33, 8)]] + [
    (52, 40, 33),
    (30, 970, 32),
]
EMPTY = [(0, 3, 4), (3, 0, 4), (0, 0, 0), (5, 17, 0)]


def random(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape) + 7).normal(size=shape).astype(dtype)


def assert_close(result, truth, depth):
    tolerance = (1e-6 if result.dtype == np.float32 else 1e-14) * max(1, depth) ** 0.5 * 4
    np.testing.assert_allclose(result, truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES + EMPTY)
def test_products_of_every_kind(m, n, k, dtype):
    a, b, bias = random(m, k, dtype=dtype), random(k, n, dtype=dtype), random(n, dtype=dtype)
    product = a.astype("f8") @ b.astype("f8")
    unread = np.full((m, n), np.nan, dtype)

    result = unread.copy()
    matmul(a, b, result, 0.0)
    assert_close(result, product, k)
    matmul(a, b, result, 1.0)
    assert_close(result, 2 * product, k)

    for relu, truth in [(0, product + bias), (1, np.maximum(product + bias, 0))]:
        result = unread.copy()
        matmul_bias(a, b, bias, result, relu)
        assert_close(result, truth, k)
    result = unread.copy()
    matmul_relu(a, b, result)
    assert_close(result, np.maximum(product, 0), k)

    for function, factors in [(matmul_tn, (a.T.copy(), b)), (matmul_nt, (a, b.T.copy()))]:
        result = unread.copy()
        function(*factors, result, 0.0)
        assert_close(result, product, k)
        function(*factors, result, 1.0)
        assert_close(result, 2 * product, k)


def test_weight_gradients_with_more_rows_than_a_packed_block_holds():
    x, dy = random(5, 1030), random(5, 1024)
    assert module.M_BLOCK < 1030
    result = np.full((1030, 1024), np.nan, np.float32)
    matmul_tn(x, dy, result, 0.0)
    matmul_tn(x, dy, result, 1.0)
    assert_close(result, 2 * (x.astype("f8").T @ dy.astype("f8")), 5)


@kernel(cache=False)
def multiply_arrays(a, ars, acs, b, bks, bjs, c, bias, m, n, k, mode):
    """`multiply` on the memory of arrays; c's rows lie c.shape[1] apart and begin at c[1, 2]."""
    start = c.ctypes.data + 4 * (c.shape[1] + 2)
    multiply(m, n, k, a.ctypes.data, ars, acs, b.ctypes.data, bks, bjs, start, c.shape[1], mode, bias.ctypes.data)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 19, 3), (13, 33, 300), (50, 70, 20), (29, 16, 2)])
def test_nothing_outside_the_result_is_touched(m, n, k, transposed):
    a, b, bias = random(m, k + 3), random(k, n + 5), random(n)
    c = np.full((m + 2, n + 4), 123, np.float32)
    before = random(m, n)
    c[1:-1, 2:-2] = before
    stored_b, bks, bjs = (b.T.copy(), 1, k) if transposed else (b, n + 5, 1)
    multiply_arrays(a, k + 3, 1, stored_b, bks, bjs, c, bias, m, n, k, ADD + BIAS + RELU)
    truth = before + a[:, :k].astype("f8") @ b[:, :n].astype("f8") + bias
    assert_close(c[1:-1, 2:-2], np.maximum(truth, 0), k)
    c[1:-1, 2:-2] = 123
    assert np.all(c == 123)


@pytest.mark.parametrize(("n", "k"), [(1, 77), (10, 64), (70, 300), (256, 28)])
def test_a_row_has_the_same_bits_at_any_row_count(n, k):
    """Forward and input-gradient products: 100 rows at once, and the first rows alone."""
    a, b, bias = random(100, k), random(k, n), random(n)
    bt = b.T.copy()
    whole, whole_nt = np.empty((100, n), np.float32), np.empty((100, n), np.float32)
    matmul_bias(a, b, bias, whole, 1)
    matmul_nt(a, bt, whole_nt, 0.0)
    for rows in (1, 2, 7, 8, 9, 12, 13, 16, 31, 47, 48, 49, 99):
        part = np.empty((rows, n), np.float32)
        matmul_bias(a[:rows], b, bias, part, 1)
        np.testing.assert_array_equal(part, whole[:rows])
        matmul_nt(a[:rows], bt, part, 0.0)
        np.testing.assert_array_equal(part, whole_nt[:rows])


def test_nan_and_infinity_reach_their_row_alone():
    a, b, bias = random(20, 5), random(5, 40), random(40)
    a[3, 2], a[4, 1] = np.nan, np.inf
    result = np.empty((20, 40), np.float32)
    matmul_bias(a, b, bias, result, 1)
    assert np.isnan(result[3]).all()
    assert set(result[4]) == {0.0, np.inf}
    assert np.isfinite(np.delete(result, [3, 4], axis=0)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bias_sums_and_relu_derivative(dtype):
    y, dy = random(9, 21, dtype=dtype), random(9, 21, dtype=dtype)[::-1].copy()
    y[0, :3] = 0.0, -0.0, np.nan
    masked = np.where(y <= 0, 0, dy)  # what is NaN goes on, so that it stays visible
    dz, sums = np.full_like(y, np.nan), np.full(21, np.nan, dtype)
    relu_mask_sums(y, dy, dz, sums, 0.0)
    np.testing.assert_array_equal(dz, masked)
    np.testing.assert_allclose(sums, masked.astype("f8").sum(0), rtol=1e-5, atol=1e-6)
    relu_mask_sums(y, dy, dz, sums, 1.0)
    np.testing.assert_allclose(sums, 2 * masked.astype("f8").sum(0), rtol=1e-5, atol=1e-6)
    dz[:] = np.nan
    relu_mask(y, dy, dz)
    np.testing.assert_array_equal(dz, masked)
    column_sums(dy, sums, 0.0)
    column_sums(dy, sums, 1.0)
    np.testing.assert_allclose(sums, 2 * dy.astype("f8").sum(0), rtol=1e-5, atol=1e-6)
    column_sums(dy[:0], sums, 0.0)
    assert not sums.any()


def test_cached_callers_find_the_shared_functions(tmp_path):
    """A process that compiles nothing binds the pointers when they are first called."""
    code = textwrap.dedent(
        """
        import numpy as np
        from hpctrain.kernels.matmul import matmul
        from hpctrain.kernels.shared import compile_count
        c = np.empty((3, 5), np.float32)
        matmul(np.ones((3, 4), np.float32), np.ones((4, 5), np.float32), c, 0.0)
        assert (c == 4).all()
        print(sum(matmul.stats.cache_misses.values()), compile_count())
        """
    )
    environment = {**os.environ, "HPCTRAIN_CACHE_DIR": str(tmp_path)}
    counts = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        counts.append(run.stdout.split())
    assert counts == [["1", "2"], ["0", "0"]]
