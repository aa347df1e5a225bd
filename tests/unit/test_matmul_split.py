"""Products by the matrix unit against float64 numpy: every kind, odd shapes, precision, NaN, the same bits for a row.

On a CPU without one, what is tested is the way that is taken there.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from hpctrain.kernels.cpu import FEWEST_ROWS, VARIABLE, has_matrix_unit, want_matrix_unit, wrong_setting
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.matmul import matmul, matmul_bias, matmul_nt, matmul_relu, matmul_tn, multiply
from hpctrain.kernels.microkernel import ADD, BIAS, RELU

if has_matrix_unit():
    from hpctrain.kernels.matmul_split import multiply_split
else:
    multiply_split = multiply

EPSILON = np.finfo("f4").eps


@kernel(cache=False)
def product(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias):
    multiply_split(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias)


@kernel(cache=False)
def by_tiles(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias):
    multiply(m, n, k, a, ars, acs, b, bks, bjs, c, ldc, mode, bias)


def random(*shape, seed=0):
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype("f4")


def strides(array, is_transposed):
    return (1, array.shape[1]) if is_transposed else (array.shape[1], 1)


# Rims of tiles (16) and blocks (32), more than one block of k (512), of rows (256 at that depth), of columns (128).
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (3, 33, 40), (32, 32, 32), (16, 48, 33), (17, 16, 31), (33, 70, 600), (290, 50, 530), (530, 40, 65)]
    + [(40, 140, 70), (5, 260, 1100)],
)
@pytest.mark.parametrize("mode", [0, ADD, BIAS, RELU, ADD + BIAS + RELU])
def test_products_of_every_shape(m, n, k, mode):
    a, b, bias, before = random(m, k), random(k, n, seed=1), random(n, seed=2), random(m, n, seed=3)
    truth = a.astype("f8") @ b
    truth += before if mode & ADD else 0
    truth += bias if mode & BIAS else 0
    truth = np.maximum(truth, 0) if mode & RELU else truth
    for a_turned in (False, True):
        for b_turned in (False, True):
            given_a, given_b = (a.T.copy() if a_turned else a), (b.T.copy() if b_turned else b)
            # Rows of C that are further apart than it is wide: what is between them is not written to.
            room = np.full((m + 1, n + 3), np.nan, "f4")
            room[:m, :n] = before if mode & ADD else np.nan
            addresses = given_a.ctypes.data, *strides(given_a, a_turned), given_b.ctypes.data
            turned = strides(given_b, b_turned)
            product(m, n, k, *addresses, *turned, room.ctypes.data, n + 3, mode, bias.ctypes.data)
            np.testing.assert_allclose(room[:m, :n], truth, rtol=4e-6 * k**0.5, atol=4e-6 * k**0.5)
            assert np.isnan(room[:m, n:]).all()
            assert np.isnan(room[m]).all()


def test_the_error_is_that_of_float32():
    """Against the exact product, the root mean square error is no larger than that of sums of float32 products."""
    for k, n in [(300, 300), (2048, 256)]:
        # Of very different sizes: a number's lower parts must not get lost beside a larger number.
        a = random(64, k) * 10.0 ** np.random.default_rng(5).integers(-6, 6, (64, 1)).astype("f4")
        b = random(k, n) * 10.0 ** np.random.default_rng(6).integers(-6, 6, (1, n)).astype("f4")
        result, truth = np.empty((64, n), "f4"), a.astype("f8") @ b
        matmul(a, b, result, 0.0)
        size = np.linalg.norm(a.astype("f8"), axis=1)[:, None] * np.linalg.norm(b.astype("f8"), axis=0)
        plain = np.zeros((64, n), "f4")
        for p in range(k):  # one product after another, each rounded
            plain += a[:, p : p + 1] * b[p]
        error, float32_error = (np.sqrt(np.mean(((c - truth) / size) ** 2)) for c in (result, plain))
        assert error < min(EPSILON, 1.1 * float32_error)


def test_the_layers_products():
    for m, n, k in [(70, 200, 300), (1, 256, 512), (33, 330, 600)]:
        a, b, bias = random(m, k), random(k, n), random(n)
        truth, bound = a.astype("f8") @ b, {"rtol": 4e-6 * k**0.5, "atol": 4e-6 * k**0.5}
        c = np.empty((m, n), "f4")
        for function, factors in [(matmul, (a, b)), (matmul_nt, (a, b.T.copy())), (matmul_tn, (a.T.copy(), b))]:
            c[:] = np.nan
            function(*factors, c, 0.0)
            np.testing.assert_allclose(c, truth, **bound)
            function(*factors, c, 1.0)
            np.testing.assert_allclose(c, 2 * truth, **bound)
        matmul_bias(a, b, bias, c, 0)
        np.testing.assert_allclose(c, truth + bias, **bound)
        matmul_relu(a, b, c)
        np.testing.assert_allclose(c, np.maximum(truth, 0), **bound)


def test_a_rank_without_rows():
    """Its weight gradient is zero, or stays what it was."""
    nothing, c = np.empty((0, 256), "f4"), np.full((256, 256), 7, "f4")
    matmul_tn(nothing, nothing, c, 1.0)
    assert (c == 7).all()
    matmul_tn(nothing, nothing, c, 0.0)
    assert (c == 0).all()
    for function in (matmul, matmul_nt):
        function(nothing, random(256, 256), nothing.copy(), 0.0)


def test_a_row_has_the_same_bits_whatever_rows_stand_beside_it():
    a, b = random(70, 600), random(600, 300)
    for function, right in ((matmul, b), (matmul_nt, b.T.copy())):
        whole = np.empty((70, 300), "f4")
        function(a, right, whole, 0.0)
        for first, last in [(0, 1), (5, 6), (3, 20), (31, 33), (40, 70)]:
            part = np.empty((last - first, 300), "f4")
            function(a[first:last].copy(), right, part, 0.0)
            assert part.tobytes() == whole[first:last].tobytes()


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001])
def test_nan_stays_nan(bits):
    """Whatever its bits: what old files hold for a missing number may be all ones."""
    for side in range(2):
        a, b = random(40, 300), random(300, 200)
        (a, b)[side].view("u4")[7, 11] = bits
        c = np.empty((40, 200), "f4")
        matmul(a, b, c, 0.0)
        reached = np.zeros((40, 200), bool)
        reached[(7, slice(None)) if side == 0 else (slice(None), 11)] = True
        assert np.array_equal(np.isnan(c), reached)


def test_infinity_and_the_ends_of_the_range():
    a, b = random(40, 300), np.abs(random(300, 200)) + 1
    a[3, 5] = np.inf
    a[4] = 0
    a[4, 0] = 3e37
    a[5] = 0
    a[5, 0] = 2e-38
    c = np.empty((40, 200), "f4")
    matmul(a, b, c, 0.0)
    assert not np.isfinite(c[3]).any()
    np.testing.assert_allclose(c[4], a[4, 0] * b[0], rtol=1e-6)
    # Parts below the smallest normal number, 1.2e-38, count as zero.
    np.testing.assert_allclose(c[5], a[5, 0] * b[0], rtol=0, atol=1.2e-38 * b[0].max())


def test_the_variable_leaves_the_unit_alone():
    code = (
        "import numpy as np; from hpctrain.kernels.cpu import has_matrix_unit; from hpctrain.kernels.jit import *\n"
        "from hpctrain.kernels.matmul import matmul\n"
        "c = np.empty((2, 256), 'f4'); matmul(np.ones((2, 256), 'f4'), np.ones((256, 256), 'f4'), c, 0.0)\n"
        "assert (c == 256).all(); print(has_matrix_unit(), source_hash())"
    )
    environment = {**os.environ, VARIABLE: "off"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    used, name = run.stdout.split()
    assert used == "False"
    from hpctrain.kernels.jit import source_hash

    # Code that was compiled for the unit is not loaded where it must not be used.
    assert (name == source_hash()) == (not has_matrix_unit())


def test_an_unknown_setting_is_told(monkeypatch):
    for setting, wrong in [("on", None), ("off", None), ("", None), ("of", "of"), (" off", " off")]:
        monkeypatch.setenv(VARIABLE, setting)
        assert wrong_setting() == wrong
    monkeypatch.delenv(VARIABLE)
    assert wrong_setting() is None


def test_a_run_of_few_rows_does_not_want_the_unit():
    """Forward products are then those of the register tiles, to the last bit, whatever the number of rows."""
    a, b = random(40, 300), random(300, 256)
    results = {}
    try:
        for rows in (8, 128):
            want_matrix_unit(rows)
            results[rows] = np.empty((40, 256), "f4")
            matmul(a, b, results[rows], 0.0)
    finally:
        want_matrix_unit(FEWEST_ROWS)
    tiles = np.empty((40, 256), "f4")
    by_tiles(40, 256, 300, a.ctypes.data, 300, 1, b.ctypes.data, 256, 1, tiles.ctypes.data, 256, 0, 0)
    assert results[8].tobytes() == tiles.tobytes()
    assert (results[128].tobytes() == tiles.tobytes()) == (not has_matrix_unit())


def test_numbers_far_below_one_keep_their_digits():
    for size in (1e-15, 1e-30):
        a, b = random(40, 300) * np.float32(size), random(300, 200)
        c = np.empty((40, 200), "f4")
        matmul(a, b, c, 0.0)
        truth = a.astype("f8") @ b
        np.testing.assert_allclose(c, truth, rtol=0, atol=4e-6 * np.abs(truth).max())
