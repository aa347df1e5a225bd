"""Convolution kernels and layers against sums written from the definition, in float32 and float64."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.kernels.conv.depthwise import depthwise_backward, depthwise_forward
from hpctrain.kernels.conv.kernels import IMAGE_GRADIENT, convolve, convolve_backward, transposed, transposed_backward
from hpctrain.kernels.conv.sizes import output_size, sizes_of
from hpctrain.kernels.conv.tile import BIAS, RELU
from hpctrain.nn import LAYERS


@dataclass(frozen=True)
class Case:
    rows: int
    image: tuple[int, int, int]
    kernel: tuple[int, int, int]
    stride: tuple[int, int, int] = (1, 1, 1)
    dilation: tuple[int, int, int] = (1, 1, 1)
    low: tuple[int, int, int] = (0, 0, 0)
    high: tuple[int, int, int] = (0, 0, 0)
    channels: int = 1
    outputs: int = 1
    groups: int = 1

    @property
    def places(self):
        axes = zip(self.image, self.kernel, self.stride, self.dilation, self.low, self.high, strict=True)
        return tuple(output_size(*axis) for axis in axes)

    def taps(self):
        """Each tap, and the places of the padded image that it meets."""
        for tap in itertools.product(*map(range, self.kernel)):
            axes = zip(tap, self.dilation, self.places, self.stride, strict=True)
            yield tap, (slice(None), *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in axes))

    def blocks(self):
        """For each group its channels and its outputs."""
        c, n = self.channels // self.groups, self.outputs // self.groups
        return [(slice(g * c, g * c + c), slice(g * n, g * n + n)) for g in range(self.groups)]

    def pad(self, x):
        return np.pad(x, [(0, 0), *zip(self.low, self.high, strict=True), (0, 0)])

    def gather(self, x, w):
        padded, y = self.pad(x), np.zeros((len(x), *self.places, self.outputs))
        for tap, seen in self.taps():
            for c, n in self.blocks():
                y[..., n] += padded[seen][..., c] @ w[tap][:, n]
        return y

    def spread(self, y, w):
        padded = self.pad(np.zeros((len(y), *self.image, self.channels)))
        for tap, seen in self.taps():
            for c, n in self.blocks():
                padded[seen][..., c] += y[..., n] @ w[tap][:, n].T
        return padded[(slice(None), *(slice(p, p + size) for p, size in zip(self.low, self.image, strict=True)))]

    def weights(self, x, y):
        padded, w = self.pad(x), np.zeros((*self.kernel, self.channels // self.groups, self.outputs))
        for tap, seen in self.taps():
            for c, n in self.blocks():
                w[tap][:, n] = np.einsum("bdhwc,bdhwn->cn", padded[seen][..., c], y[..., n])
        return w


# Widths on both sides of a vector and of two, image widths on both sides of every tile, images smaller than the kernel,
# batches of none and one.
CASES = [
    Case(2, (1, 6, 7), (1, 3, 3), low=(0, 1, 1), high=(0, 1, 1), channels=3, outputs=5),
    Case(1, (1, 5, 30), (1, 3, 3), low=(0, 1, 1), high=(0, 1, 1), channels=2, outputs=33),
    Case(2, (1, 4, 14), (1, 3, 2), stride=(1, 2, 1), low=(0, 1, 0), high=(0, 0, 1), channels=16, outputs=32),
    Case(3, (1, 2, 1), (1, 3, 3), low=(0, 2, 1), high=(0, 1, 1), channels=1, outputs=16),
    Case(0, (1, 4, 4), (1, 3, 3), channels=2, outputs=3),
    Case(
        2,
        (5, 4, 9),
        (3, 2, 3),
        stride=(2, 1, 2),
        dilation=(1, 2, 1),
        low=(1, 1, 1),
        high=(1, 0, 2),
        channels=4,
        outputs=17,
    ),
    Case(2, (4, 4, 11), (2, 2, 2), dilation=(2, 1, 3), channels=4, outputs=40, groups=2),
    Case(
        1,
        (3, 5, 6),
        (2, 3, 3),
        stride=(3, 2, 3),
        dilation=(1, 2, 2),
        low=(2, 3, 3),
        high=(1, 2, 3),
        channels=6,
        outputs=9,
        groups=3,
    ),
    Case(
        2,
        (1, 1, 21),
        (1, 1, 5),
        stride=(1, 1, 2),
        dilation=(1, 1, 2),
        low=(0, 0, 3),
        high=(0, 0, 3),
        channels=8,
        outputs=48,
    ),
    Case(2, (1, 6, 6), (1, 1, 1), stride=(1, 2, 2), channels=16, outputs=20),
    Case(1, (2, 3, 4), (2, 2, 2), stride=(4, 3, 3), low=(1, 1, 1), high=(1, 1, 1), channels=3, outputs=2),
]
TOLERANCE = {"f4": {"rtol": 2e-5, "atol": 5e-5}, "f8": {"rtol": 1e-12, "atol": 1e-12}}


class Numbers:
    """Random arrays of a case, outputs full of NaN, and scratch full of NaN."""

    def __init__(self, case, dtype, transposed=False):
        self.case, self.dtype = case, np.dtype(dtype)
        self.random = np.random.default_rng(3)
        axes = case.image, case.places, case.kernel, case.stride, case.dilation, case.low
        self.sizes = sizes_of(*axes, case.channels, case.outputs, case.groups)
        s = self.sizes
        self.image = self.nan(s.image_d * s.image_h * s.image_w * case.channels)
        self.border = self.nan(s.border_d * s.border_h * s.border_w * case.outputs)
        self.x = self.normal(case.rows, *case.image, case.channels)
        self.y = self.normal(case.rows, *case.places, case.outputs)
        self.w = self.normal(*case.kernel, case.channels // case.groups, case.outputs)
        self.turned = self.nan(self.w.size)
        self.b = self.normal(case.channels if transposed else case.outputs)

    def normal(self, *shape):
        return self.random.normal(size=shape).astype(self.dtype)

    def nan(self, *shape):
        return np.full(shape, np.nan, self.dtype)

    def close(self, actual, expected):
        np.testing.assert_allclose(actual, expected, **TOLERANCE[self.dtype.str[1:]])


def flat(array):
    return array.reshape(-1)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("mode", [0, BIAS | RELU])
def test_convolution(case, dtype, mode):
    n = Numbers(case, dtype)
    x, w, dy = n.x.astype("f8"), n.w.astype("f8"), n.y
    y = n.nan(*dy.shape)
    convolve(flat(n.x), n.w, n.b, flat(y), n.image, case.rows, mode, *n.sizes)
    expected = case.gather(x, w) + (n.b if mode else 0)
    n.close(y, np.maximum(expected, 0) if mode else expected)

    counted = dy.astype("f8") * ((y > 0) if mode else 1)
    for beta, with_dx in [(0.0, True), (1.0, False), (1.0, True)]:
        before, before_b = n.normal(*w.shape), n.normal(case.outputs)
        dw, db = (before.copy(), before_b.copy()) if beta else (n.nan(*w.shape), n.nan(case.outputs))
        dx = n.nan(*x.shape)
        convolve_backward(
            flat(n.x), flat(y), flat(dy), n.w, flat(dx), dw, db, n.image, n.turned, n.border, case.rows,
            mode | IMAGE_GRADIENT * with_dx, beta, *n.sizes,
        )  # fmt: skip
        n.close(dw, case.weights(x, counted) + beta * before)
        if mode:
            n.close(db, counted.sum((0, 1, 2, 3)) + beta * before_b)
        if with_dx:
            n.close(dx, case.spread(counted, w))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("mode", [0, BIAS | RELU])
def test_transposed_convolution(case, dtype, mode):
    n = Numbers(case, dtype, transposed=True)
    x, w, dy = n.y.astype("f8"), n.w.astype("f8"), n.x
    y = n.nan(*dy.shape)
    transposed(flat(n.y), n.w, n.b, flat(y), n.turned, n.border, case.rows, mode, *n.sizes)
    expected = case.spread(x, w) + (n.b if mode else 0)
    n.close(y, np.maximum(expected, 0) if mode else expected)

    counted = dy.astype("f8") * ((y > 0) if mode else 1)
    dw, db, dx = n.nan(*w.shape), n.nan(case.channels), n.nan(*x.shape)
    transposed_backward(
        flat(n.y), flat(y), flat(dy), n.w, flat(dx), dw, db, n.image, case.rows, mode | IMAGE_GRADIENT, 0.0, *n.sizes
    )
    n.close(dw, case.weights(counted, x))
    n.close(dx, case.gather(counted, w))
    if mode:
        n.close(db, counted.sum((0, 1, 2, 3)))


DEPTHWISE = [
    Case(2, (1, 5, 6), (1, 3, 3), low=(0, 1, 1), high=(0, 1, 1), channels=5, outputs=5, groups=5),
    Case(1, (3, 4, 7), (2, 3, 3), (2, 1, 3), (1, 2, 2), (1, 3, 5), (0, 3, 2), channels=3, outputs=6, groups=3),
    Case(2, (1, 1, 2), (1, 1, 3), low=(0, 0, 4), high=(0, 0, 3), channels=2, outputs=2, groups=2),
    Case(0, (1, 3, 3), (1, 2, 2), channels=2, outputs=4, groups=2),
]


@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("mode", [0, BIAS])
def test_depthwise_convolution(case, dtype, mode):
    n = Numbers(case, dtype)
    x, w = n.x.astype("f8"), n.w.astype("f8")
    y = n.nan(*n.y.shape)
    depthwise_forward(flat(n.x), n.w, n.b, flat(y), case.rows, mode, *n.sizes)
    n.close(y, case.gather(x, w) + (n.b if mode else 0))
    for beta in (0.0, 1.0):
        before = n.normal(*w.shape)
        dw, db, dx = before.copy() if beta else n.nan(*w.shape), n.nan(case.outputs), n.nan(*x.shape)
        db[:] = 0 if beta else np.nan
        args = flat(n.x), flat(n.y), n.w, flat(dx), dw, db, case.rows
        depthwise_backward(*args, mode | IMAGE_GRADIENT, beta, *n.sizes)
        n.close(dw, case.weights(x, n.y.astype("f8")) + beta * before)
        n.close(dx, case.spread(n.y.astype("f8"), w))
        if mode:
            n.close(db, n.y.astype("f8").sum((0, 1, 2, 3)))


def test_nan_passes_a_relu_and_its_neighbours_do_not_change():
    case = Case(2, (1, 5, 9), (1, 3, 3), low=(0, 1, 1), high=(0, 1, 1), channels=2, outputs=5)
    n = Numbers(case, "f4")
    clean, y = n.nan(*n.y.shape), n.nan(*n.y.shape)
    convolve(flat(n.x), n.w, n.b, flat(clean), n.image, 2, BIAS | RELU, *n.sizes)
    n.x[0, 0, 2, 4, 1] = np.nan
    convolve(flat(n.x), n.w, n.b, flat(y), n.image, 2, BIAS | RELU, *n.sizes)
    met = np.zeros(y.shape, bool)
    met[0, 0, 1:4, 3:6] = True
    assert np.isnan(y[met]).all()
    np.testing.assert_array_equal(y[~met], clean[~met])


def test_an_example_has_the_same_bits_in_any_batch():
    case = Case(7, (1, 6, 13), (1, 3, 3), low=(0, 1, 1), high=(0, 1, 1), channels=3, outputs=21)
    n = Numbers(case, "f4")
    results = []
    for rows in (slice(0, 7), slice(3, 4), slice(2, 5)):
        x, dy = n.x[rows].copy(), n.y[rows].copy()
        y, dx, dw, db = n.nan(*dy.shape), n.nan(*x.shape), n.nan(*n.w.shape), n.nan(21)
        convolve(flat(x), n.w, n.b, flat(y), n.image, len(x), BIAS, *n.sizes)
        mode = BIAS | IMAGE_GRADIENT
        scratch = n.image, n.turned, n.border, len(x), mode, 0.0
        convolve_backward(flat(x), flat(y), flat(dy), n.w, flat(dx), dw, db, *scratch, *n.sizes)
        results.append((y, dx))
    for whole, alone, some in zip(*results, strict=True):
        np.testing.assert_array_equal(whole[3:4], alone)
        np.testing.assert_array_equal(whole[2:5], some)


@pytest.mark.parametrize(
    ("options", "shape", "out"),
    [
        ({"kernel": 3}, (7, 8, 2), (7, 8, 4)),
        ({"kernel": 3, "stride": 2}, (7, 8, 2), (4, 4, 4)),
        ({"kernel": [3, 2], "stride": [2, 3], "padding": "valid"}, (7, 8, 2), (3, 3, 4)),
        ({"kernel": 3, "padding": [1, 0], "dilation": [1, 3]}, (7, 8, 2), (7, 2, 4)),
        ({"kernel": 5, "padding": 2, "stride": 2}, (1, 1, 2), (1, 1, 4)),
    ],
)
def test_output_shapes(options, shape, out):
    assert LAYERS.get("conv2d")(channels=4, **options).build(shape).out_shape == out


@pytest.mark.parametrize(
    ("options", "out"),
    [
        ({"kernel": 3, "stride": 2}, (14, 16, 4)),
        ({"kernel": 2, "stride": 2, "padding": "valid"}, (14, 16, 4)),
        ({"kernel": 3, "stride": 2, "padding": 1, "output_padding": 1}, (14, 16, 4)),
        ({"kernel": [4, 2], "stride": [1, 3], "padding": [2, 0]}, (6, 23, 4)),
    ],
)
def test_transposed_output_shapes(options, out):
    assert LAYERS.get("conv_transpose2d")(channels=4, **options).build((7, 8, 3)).out_shape == out


@pytest.mark.parametrize(
    ("name", "options", "shape", "words"),
    [
        ("conv2d", {"kernel": 3}, (28, 28), ["(28, 28)", "(height, width, channels)", "reshape"]),
        ("conv1d", {"kernel": [3, 3]}, (28, 2), ["kernel", "[3, 3]", "list of 1"]),
        ("conv2d", {"kernel": 5, "padding": "valid"}, (4, 9, 1), ["larger than the padded input", "(4, 9)", "(5, 5)"]),
        ("conv2d", {"kernel": 3, "groups": 2}, (4, 4, 3), ["groups", "3 channels in"]),
        ("conv_transpose2d", {"kernel": 2, "padding": 4}, (3, 3, 2), ["nothing is left", "(-4, -4)"]),
        ("conv_transpose1d", {"kernel": 2, "padding": 0, "output_padding": 1}, (3, 2), ["output_padding", "stride"]),
        ("conv_transpose1d", {"kernel": 2, "stride": 2, "output_padding": 1}, (3, 2), ["output_padding", "same"]),
    ],
)
def test_mistakes_are_explained(name, options, shape, words):
    layer = LAYERS.get(name)(channels=4, **options)
    with pytest.raises(UserError) as caught:
        layer.build(shape)
    assert all(word in str(caught.value) for word in words)
