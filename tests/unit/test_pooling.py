"""Pooling layers at their edges: ties, NaN, infinities, no rows, many positions, sizes that do not fit."""

import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.kernels import pooling
from hpctrain.kernels.columns import line_width
from hpctrain.nn.layers.pooling import AvgPool1d, GlobalAvgPool, MaxPool1d, MaxPool2d
from hpctrain.nn.layers.shapes import Permute, Reshape


def max_pool(layer, x, dy=None):
    """Run a layer's kernels on x (rows, length, channels); return y and dx."""
    built = layer.build(x.shape[1:])
    y, dx = np.empty((len(x), *built.out_shape), np.float32), np.full_like(x, np.nan)
    dy = np.ones_like(y) if dy is None else dy
    left = np.empty(built.buffers["left"].shape, np.float32)
    sizes = built.forward.args[3:]
    flat = [array.reshape(-1) for array in (x, y, dy, dx)]
    pooling.max_pool_forward(flat[0], flat[1], len(x), *sizes)
    pooling.max_pool_backward(*flat, left, len(x), *sizes)
    return y, dx


def column(*values):
    return np.array(values, np.float32).reshape(1, -1, 1)


@pytest.mark.parametrize("layer", [MaxPool1d(size=3), MaxPool1d(size=3, stride=3, padding=1)])
def test_the_first_of_equal_values_has_the_gradient(layer):
    _, dx = max_pool(layer, np.full((1, 6, 17), 2.0, np.float32))
    firsts = [0, 3] if layer.padding == "valid" else [0, 2]
    assert np.flatnonzero(dx[0, :, 0]).tolist() == firsts
    assert np.array_equal(dx[0], np.broadcast_to(dx[0, :, :1], (6, 17)))


def test_overlapping_windows_add_their_gradients():
    _, dx = max_pool(MaxPool1d(size=3, stride=1), column(0, 5, 1, 2))
    assert dx.ravel().tolist() == [0, 2, 0, 0]


def test_nan_and_infinity():
    y, dx = max_pool(MaxPool1d(size=2), column(1, np.nan, np.nan, 1, -np.inf, -np.inf, np.inf, 0))
    assert np.isnan(y.ravel()[:2]).all()
    assert y.ravel()[2:].tolist() == [-np.inf, np.inf]
    assert dx.ravel().sum() == 4


def test_no_rows():
    y, dx = max_pool(MaxPool1d(size=2), np.empty((0, 4, 3), np.float32))
    assert y.shape == (0, 2, 3)
    assert dx.shape == (0, 4, 3)
    empty, totals = np.empty(0, np.float32), np.empty(2 * line_width(3), np.float32)
    pooling.global_avg_forward(empty, np.empty((0, 3), np.float32), totals)
    pooling.global_avg_backward(np.empty((0, 3), np.float32), empty, totals)


def test_global_average_of_many_positions_far_from_zero():
    x = (1e3 + np.random.default_rng(0).normal(size=(2, 50_000, 3))).astype(np.float32)
    y = np.empty((2, 3), np.float32)
    pooling.global_avg_forward(x.reshape(-1), y, np.empty(2 * line_width(3), np.float32))
    np.testing.assert_allclose(y, x.astype("f8").mean(1), rtol=1.2e-7)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (MaxPool2d(size=5), (4, 8, 1), "larger than the padded input"),
        (AvgPool1d(size=2, padding=2), (4, 1), "padding alone"),
        (MaxPool2d(size=2), (4, 1), "the input's shape does not fit"),
        (MaxPool2d(size=(2, 2, 2)), (4, 4, 1), "wrong number of axes"),
        (GlobalAvgPool(), (4,), "positions to pool over"),
        (Reshape(shape=(3, -1)), (4,), "cannot be reshaped"),
        (Reshape(shape=(-1, -1)), (4,), "cannot be reshaped"),
        (Reshape(shape=(2, 3)), (4,), "cannot be reshaped"),
        (Reshape(shape=(0, -1)), (4,), "cannot be reshaped"),
        (Permute(axes=(0, 0)), (4, 2), "where each axis goes"),
        (Permute(axes=(1, 0)), (4, 2, 2), "where each axis goes"),
    ],
)
def test_what_does_not_fit_is_refused(layer, shape, message):
    with pytest.raises(UserError, match=message):
        layer.build(shape)
