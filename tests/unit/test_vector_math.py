"""The functions of `kernels/vector_math.py` against numpy's and scipy's in float64."""

import re

import numpy as np
import pytest
from scipy import special

from hpctrain.kernels import vector_math
from hpctrain.kernels.jit import kernel

# name -> (truth in float64, bound of the error in float32 units in the last place)
FUNCTIONS = {
    "exp": (np.exp, 1.5),
    "expm1": (np.expm1, 2),
    "log": (np.log, 1.5),
    "log1p": (np.log1p, 2),
    "softplus": (lambda x: np.logaddexp(0, x), 2.5),
    "sigmoid": (special.expit, 3),
    "tanh": (np.tanh, 3),
    "erf": (special.erf, 6),
}
SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1e-39,
    88.72,
    89,
    -87.4,
    -103.2,
    -104,
    3.4e38,
    -3.4e38,
    -1,
]

exp, expm1, log, log1p = vector_math.exp, vector_math.expm1, vector_math.log, vector_math.log1p
softplus, sigmoid, tanh, erf = vector_math.softplus, vector_math.sigmoid, vector_math.tanh, vector_math.erf


@kernel(cache=False)
def table(x, y):
    """y[k, i] = the k-th function of x[i]: all in one kernel, which compiles once."""
    for i in range(x.size):
        y[0, i], y[1, i], y[2, i], y[3, i] = exp(x[i]), expm1(x[i]), log(x[i]), log1p(x[i])
    for i in range(x.size):
        y[4, i], y[5, i], y[6, i], y[7, i] = softplus(x[i]), sigmoid(x[i]), tanh(x[i]), erf(x[i])


def inputs():
    """Every 40013th float32, the neighbourhood of zero, and the special values."""
    patterns = np.arange(0, 2**32, 40013, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ordinary = np.random.default_rng(0).normal(size=20000).astype(np.float32) * 4
    return np.concatenate([np.array(SPECIAL, np.float32), ordinary, patterns])


def values(x):
    y = np.empty((len(FUNCTIONS), x.size), x.dtype)
    table(x, y)
    return dict(zip(FUNCTIONS, y, strict=True))


@pytest.fixture(scope="module")
def float32():
    x = inputs()
    return x, values(x)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float32_is_within_a_few_units_in_the_last_place(name, float32):
    x, results = float32
    function, bound = FUNCTIONS[name]
    truth = function(x.astype(np.float64))
    rounded = truth.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(results[name][~finite], rounded[~finite])
    error = np.abs(results[name][finite] - truth[finite]) / np.spacing(np.abs(rounded[finite]))
    assert error.max() <= bound, f"at {x[finite][error.argmax()]!r}"


def test_signs_of_zero_and_denormals_are_kept(float32):
    x, results = float32
    small = np.abs(x) < 1e-38
    assert small.sum() > 300
    for name in ("expm1", "log1p", "tanh"):
        np.testing.assert_array_equal(results[name][small].view(np.uint32), x[small].view(np.uint32))


def test_results_stay_within_their_bounds(float32):
    x, results = float32
    finite = ~np.isnan(x)
    for name in ("tanh", "erf"):
        assert np.abs(results[name][finite]).max() == 1
    assert results["sigmoid"][finite].min() == 0
    assert results["sigmoid"][finite].max() == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float64_goes_through_libm():
    x = np.concatenate([np.array(SPECIAL), np.random.default_rng(1).normal(size=200) * 3])
    for name, result in values(x).items():
        np.testing.assert_allclose(result, FUNCTIONS[name][0](x), rtol=1e-14, err_msg=name)


def test_bits_do_not_depend_on_the_place_in_the_array(float32):
    """A vector body and its scalar tail round alike."""
    x, results = float32
    for start, count in [(16, 1), (17, 7), (30, 33), (1000, 129)]:
        part = values(x[start : start + count].copy())
        for name, result in part.items():
            whole = results[name][start : start + count]
            np.testing.assert_array_equal(result.view(np.uint32), whole.view(np.uint32), err_msg=name)


def test_a_loop_becomes_vector_code():
    """A call of libm would keep LLVM from vectorising; none may be left."""
    table(np.zeros(1, np.float32), np.empty((8, 1), np.float32))
    code = next(code for kinds, code in table.inspect_asm().items() if kinds[0].dtype.bitwidth == 32)
    # "ps" is packed, "ss" would be one element.
    assert re.search(r"vfn?madd\d+ps|fmla", code)
    assert not re.search(r"\b(exp|log|tanh|erf|log1p|expm1)f\b", code)
