"""Initial values of parameters."""

import numpy as np
import pytest

from hpctrain.nn.initializers import fill_initial


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
