"""The kernels that combine buffers, against numpy."""

import numpy as np
import pytest

from hpctrain.kernels.reduce import add_into


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [0, 1, 7, 1003])
def test_add_into(dtype, length):
    rng = np.random.default_rng(length)
    total, values = rng.normal(size=length).astype(dtype), rng.normal(size=length).astype(dtype)
    expected = total + values
    add_into(total, values)
    np.testing.assert_array_equal(total, expected)


def test_add_into_keeps_nan_and_infinity():
    total = np.array([1, np.inf, np.nan, np.inf], np.float32)
    add_into(total, np.array([np.nan, 1, 1, -np.inf], np.float32))
    np.testing.assert_array_equal(total, np.array([np.nan, np.inf, np.nan, np.nan], np.float32))
