"""Initial values of parameters."""

import math

import numpy as np
import pytest

from hpctrain.nn.initializers import fill_initial


@pytest.mark.parametrize("name", ["lecun_normal", "he_uniform"])
def test_large_tensors_are_drawn_in_pieces_of_one_stream(name):
    values = np.empty((300, 999), np.float32)
    fill_initial(values, name, 50, 1, seed=5, index=3)
    random = np.random.Generator(np.random.Philox(key=[5, 3]))
    limit = math.sqrt(6 / 50)
    wanted = (
        random.normal(0, math.sqrt(1 / 50), values.shape)
        if "normal" in name
        else limit * (2 * random.random(values.shape) - 1)
    )
    np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(3, 3, 2, 5), (4, 9), (6,)])
def test_orthogonal_rows_or_columns(shape):
    values = np.empty(shape)
    fill_initial(values, "orthogonal", 1, 1, seed=3, index=2)
    matrix = values.reshape(-1, shape[-1])
    product = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-12)
    other = np.empty(shape)
    fill_initial(other, "orthogonal", 1, 1, seed=4, index=2)
    assert not np.allclose(values, other)
