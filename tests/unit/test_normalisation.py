"""Normalisation kernels against float64 definitions: values far from zero, running statistics, many positions."""

import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.kernels import feature_norms, normalisation
from hpctrain.kernels.columns import line_width
from hpctrain.nn.layers.normalisation import BatchNorm, GroupNorm

EPSILON = 1e-5


def scratch(channels, dtype=np.float32):
    width = line_width(channels)
    return np.full((6, width), np.nan, dtype), np.full(4 * width, np.nan, dtype)


def values(rows, channels, mean=1e3, seed=0):
    random = np.random.default_rng(seed)
    return (mean + random.normal(size=(rows, channels))).astype(np.float32)


def batch_norm(x, scale, bias, rows, mode):
    """Run the training pass; return y, stats and what the running statistics are given."""
    y, stats = np.empty_like(x), np.empty((3, x.shape[1]), np.float32)
    means, variances = np.zeros(x.shape[1], np.float32), np.zeros(x.shape[1], np.float32)
    lines, totals = scratch(x.shape[1])
    flat = (x.reshape(-1), scale, bias, y.reshape(-1), stats, means, variances, lines, totals, rows, EPSILON, mode)
    normalisation.batch_norm_forward(*flat)
    return y, stats, means, variances


def reference(x, scale, bias):
    x = x.astype("f8")
    return (x - x.mean(0)) / np.sqrt(x.var(0) + EPSILON) * scale + bias


def parameters(channels):
    return np.linspace(0.5, 1.5, channels).astype("f4"), np.linspace(-1, 1, channels).astype("f4")


@pytest.mark.parametrize(("rows", "channels"), [(4096, 16), (1000, 3), (37, 300), (2, 1)])
def test_batch_norm_far_from_zero(rows, channels):
    x, (scale, bias) = values(rows, channels), parameters(channels)
    y, _, means, variances = batch_norm(x, scale, bias, 8, 0)
    np.testing.assert_allclose(y, reference(x, scale, bias), rtol=0, atol=2e-5 if rows > 2 else 1e-3)
    np.testing.assert_allclose(means / 8, x.astype("f8").mean(0), rtol=2e-7)
    np.testing.assert_allclose(variances / 8, x.astype("f8").var(0, ddof=1), rtol=2e-5)


def test_batch_norm_of_channels_that_drift():
    """The first rows say little about the rest: the sums' shift must not be taken from them alone."""
    x = values(8192, 4, mean=0.0)
    x[:1024] -= 5000
    scale, bias = parameters(4)
    y, *_ = batch_norm(x, scale, bias, 8, 0)
    np.testing.assert_allclose(y, reference(x, scale, bias), atol=2e-6)


def test_batch_norm_of_a_constant_channel_and_of_one_value():
    scale, bias = parameters(2)
    for rows in (1, 300):
        y, _, means, variances = batch_norm(np.full((rows, 2), 7.0, np.float32), scale, bias, 1, 0)
        assert np.array_equal(y, np.broadcast_to(bias, y.shape))
        assert means.tolist() == [7.0, 7.0]
        assert variances.tolist() == [0.0, 0.0]


def test_batch_norm_without_rows_touches_nothing():
    scale, bias = parameters(3)
    _, _, means, variances = batch_norm(np.empty((0, 3), np.float32), scale, bias, 0, 0)
    assert not means.any()
    assert not variances.any()
    lines, totals = scratch(3)
    empty, d_scale, d_bias = np.empty(0, np.float32), np.ones(3, np.float32), np.ones(3, np.float32)
    stats = np.full((3, 3), np.nan, np.float32)
    normalisation.batch_norm_backward(empty, empty, scale, bias, stats, empty, d_scale, d_bias, lines, totals, 2)
    assert d_scale.tolist() == d_bias.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("relu", [0, 1])
@pytest.mark.parametrize(("rows", "channels"), [(700, 6), (5, 300)])
def test_batch_norm_gradients(rows, channels, relu):
    """Against the formulas in float64, with and without a ReLU behind; the result may take dy's memory."""
    x, (scale, bias) = values(rows, channels, mean=30.0), parameters(channels)
    y, stats, *_ = batch_norm(x, scale, bias, rows, relu)
    dy = values(rows, channels, mean=0.3, seed=1)
    lines, totals = scratch(channels)
    d_scale, d_bias = np.ones(channels, np.float32), np.ones(channels, np.float32)
    result = dy.copy()
    flat = (x.reshape(-1), result.reshape(-1), scale, bias, stats, result.reshape(-1), d_scale, d_bias, lines, totals)
    normalisation.batch_norm_backward(*flat, relu | normalisation.INPUT_GRADIENT)
    plain = reference(x, scale, bias)
    if relu:
        np.testing.assert_allclose(y, np.maximum(plain, 0), atol=1e-5)
    g = np.where(y > 0, dy, 0.0) if relu else dy.astype("f8")
    x = x.astype("f8")
    root = np.sqrt(x.var(0) + EPSILON)
    normal = (x - x.mean(0)) / root
    np.testing.assert_allclose(d_bias - 1, g.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_scale - 1, (g * normal).sum(0), rtol=1e-5, atol=1e-4)
    expected = scale / root * (g - g.mean(0) - normal * (g * normal).mean(0))
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_batch_norm_prediction_gives_a_row_the_same_bits_in_any_batch():
    x, (scale, bias) = values(100, 5), parameters(5)
    mean, var = np.linspace(990, 1010, 5).astype("f4"), np.linspace(0.5, 2, 5).astype("f4")

    def predict(part):
        y, (lines, _) = np.empty_like(part), scratch(5)
        flat = (part.reshape(-1), scale, bias, y.reshape(-1), mean, var, lines, EPSILON, 1)
        normalisation.batch_norm_predict(*flat)
        return y

    whole = predict(x)
    expected = np.maximum((x - mean.astype("f8")) / np.sqrt(var.astype("f8") + EPSILON) * scale + bias, 0)
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)
    assert all(np.array_equal(predict(x[i : i + 3]), whole[i : i + 3]) for i in range(0, 97, 7))


def test_group_norm_far_from_zero():
    x, (scale, bias) = values(2 * 300, 6).reshape(2, 300, 6), parameters(6)
    y, stats, (lines, totals) = np.empty_like(x), np.empty((2, 2, 3), np.float32), scratch(6)
    flat = (x.reshape(-1), scale, bias, y.reshape(-1), stats, lines, totals, EPSILON, 2, 0)
    normalisation.group_norm_forward(*flat)
    grouped = x.astype("f8").reshape(2, 300, 2, 3)
    normal = (grouped - grouped.mean((1, 3), keepdims=True)) / np.sqrt(grouped.var((1, 3), keepdims=True) + EPSILON)
    np.testing.assert_allclose(y, normal.reshape(x.shape) * scale + bias, atol=2e-5)


def test_layer_norm_far_from_zero():
    x, (scale, bias) = values(9, 128), parameters(128)
    y, stats = np.empty_like(x), np.empty((9, 2), np.float32)
    feature_norms.layer_norm_forward(x, scale, bias, y, stats, EPSILON)
    x = x.astype("f8")
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPSILON) * scale + bias
    np.testing.assert_allclose(y, expected, atol=2e-5)


def test_nan_stays_in_its_channel():
    x, (scale, bias) = values(64, 3), parameters(3)
    x[5, 1] = np.nan
    y, *_ = batch_norm(x, scale, bias, 64, 1)
    assert np.isnan(y[:, 1]).all()
    assert np.isfinite(y[:, [0, 2]]).all()


def test_scales_and_biases_do_not_decay():
    built = BatchNorm().build((4, 3))
    assert [spec.decays for spec in built.params] == [False, False]
    assert [(spec.name, spec.initial, spec.momentum) for spec in built.state] == [
        ("running_mean", 0.0, 0.9),
        ("running_var", 1.0, 0.9),
    ]


def test_groups_that_do_not_divide_the_channels():
    with pytest.raises(UserError, match="3 channels, groups = 2"):
        GroupNorm(groups=2).build((4, 3))
