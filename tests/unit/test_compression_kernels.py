"""Kernels of compressions against numpy: codes, scales and what is kept, block by block; the largest numbers."""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain.compress.base import Source
from hpctrain.compress.integers import Int8
from hpctrain.compress.one_bit import OneBit
from hpctrain.compress.pieces import total, units
from hpctrain.compress.top_k import TopK
from hpctrain.kernels.compression.blocks import STREAM_FROM
from hpctrain.kernels.compression.sparse import clear, kth_largest
from hpctrain.memory import aligned_zeros

# Pieces (start, length): whole stripes of blocks and a short last block, a single short block, an odd start.
SPANS = ((3, 5000), (5100, 40), (6001, 64), (6100, 256))
LENGTH = 6400


def pieces_of(block: int, spans=SPANS) -> np.ndarray:
    rows, number = [], 0
    for start, length in spans:
        rows.append((start, length, number))
        number += -(-length // block)
    return np.array(rows, np.int64)


def blocks_of(pieces: np.ndarray, block: int):
    for start, length, number in pieces.tolist():
        for lo in range(0, length, block):
            yield number + lo // block, slice(start + lo, start + min(lo + block, length))


def numbers(seed: int, length: int = LENGTH) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal(length) * np.exp(random.uniform(-8, 2, length))).astype(np.float32)


def encoded(compression, pieces: np.ndarray, source: Source):
    coder = compression.coder(pieces)
    payload = aligned_zeros(coder.nbytes, np.uint8)
    views = coder.views(payload)
    coder.encode(source, views)
    return coder, views


@pytest.mark.parametrize("feedback", ["add", "again", "none"])
@pytest.mark.parametrize("block", [32, 256, 4096])
def test_int8_is_what_numpy_says(block: int, feedback: str) -> None:
    pieces, values, before = pieces_of(block), numbers(1), numbers(2)
    residual = None if feedback == "none" else before.copy()
    coder, views = encoded(Int8(block=block), pieces, Source(values.copy(), residual, 0.5, feedback == "add", 1))
    out = np.full(LENGTH, 9, np.float32)
    coder.decode(views, out, False)
    meant = {"add": 0.5 * before.astype(np.float64) + values, "again": before, "none": values}[feedback]
    meant = meant.astype(np.float64)
    inside = np.zeros(LENGTH, bool)
    for number, at in blocks_of(pieces, block):
        scale = abs(meant[at]).max() / 127
        assert views.scales[number] == pytest.approx(scale, rel=1e-6)
        codes = views.codes[number * block : number * block + at.stop - at.start].view(np.int8)
        exact = meant[at] / scale
        assert np.all(abs(codes - exact) < 0.5 + 1e-4)  # float32 may round what is half way to either side
        np.testing.assert_allclose(out[at], codes * scale, rtol=1e-5, atol=1e-30)
        if residual is not None:
            np.testing.assert_allclose(residual[at], meant[at] - codes * scale, atol=1e-5 * scale * 127)
        inside[at] = True
    np.testing.assert_array_equal(out[~inside], 9)
    if residual is not None:
        np.testing.assert_array_equal(residual[~inside], before[~inside])


@pytest.mark.parametrize("feedback", ["add", "again", "none"])
@pytest.mark.parametrize("block", [32, 128, 4096])
def test_signs_are_what_numpy_says(block: int, feedback: str) -> None:
    pieces, values, before = pieces_of(block), numbers(3), numbers(4)
    residual = None if feedback == "none" else before.copy()
    coder, views = encoded(OneBit(block=block), pieces, Source(values.copy(), residual, 2.0, feedback == "add", 1))
    out = np.full(LENGTH, 9, np.float32)
    coder.decode(views, out, True)
    meant = {"add": 2.0 * before.astype(np.float64) + values, "again": before, "none": values}[feedback]
    meant = meant.astype(np.float64)
    for number, at in blocks_of(pieces, block):
        scale = abs(meant[at]).sum() / block  # a short block counts as one with zeros behind
        bits = np.unpackbits(views.codes[number * block // 8 : (number + 1) * block // 8], bitorder="little")
        np.testing.assert_array_equal(bits[: at.stop - at.start], meant[at] >= 0)
        signed = np.where(meant[at] >= 0, scale, -scale)
        np.testing.assert_allclose(out[at] - 9, signed, rtol=1e-5, atol=1e-5)
        if residual is not None:
            np.testing.assert_allclose(residual[at], meant[at] - signed, atol=1e-5 * abs(meant[at]).max())


@pytest.mark.parametrize("compression", [Int8(), OneBit()], ids=["int8", "one_bit"])
def test_large_gradients_decode_as_small_ones(compression) -> None:
    """What is stored past the caches is what is stored through them: in buffers that begin at a line, and elsewhere."""
    length = STREAM_FROM + 1000
    pieces = np.array([(0, length, 0)], np.int64)
    values = np.tile(numbers(5, 4096), length // 4096 + 1)[:length]
    coder, views = encoded(compression, pieces, Source(values, None, 1.0, True, 1))
    aligned, moved = aligned_zeros(length), aligned_zeros(length + 1)[1:]
    coder.decode(views, aligned, False)
    coder.decode(views, moved, False)
    np.testing.assert_array_equal(aligned, moved)
    block = compression.unit
    few = np.array([(0, block, 0)], np.int64)
    coder, views = encoded(compression, few, Source(values, None, 1.0, True, 1))
    coder.decode(views, moved, False)
    np.testing.assert_array_equal(aligned[:block], moved[:block])
    np.testing.assert_array_equal(aligned[4096 : 4096 + block], moved[:block])


def test_large_gradients_are_cleared() -> None:
    pieces = np.array([(5, STREAM_FROM, 0), (STREAM_FROM + 40, 1001, 0), (STREAM_FROM + 1100, 3, 0)], np.int64)
    out = aligned_zeros(STREAM_FROM + 1200)
    out[:] = 1
    clear(pieces, out)
    inside = np.zeros(out.size, bool)
    for start, length, _ in pieces:
        inside[start : start + length] = True
    np.testing.assert_array_equal(out, np.where(inside, 0, 1))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_kth_largest(size: int) -> None:
    values = numbers(6, size)
    values[: size // 3] = values[0]  # some are alike
    largest = np.sort(abs(values))[::-1]
    for k in {1, (size + 1) // 2, size}:
        found = np.int32(kth_largest(values.view(np.int32), k, 0)).view(np.float32)
        assert found == largest[k - 1]
        coarse = np.int32(kth_largest(values.view(np.int32), k, 12)).view(np.float32)
        assert found * (1 - 2**-11) <= coarse <= found


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3, 0.499])
@pytest.mark.parametrize("spans", [SPANS, ((5, 150_000), (150_010, 777))], ids=["all seen", "sampled"])
def test_top_k_are_the_largest(spans, ratio: float) -> None:
    pieces, length = pieces_of(1, spans), spans[-1][0] + spans[-1][1] + 5
    assert units(pieces, 1) == total(pieces)
    values, before = numbers(7, length), numbers(8, length)
    residual = before.copy()
    coder, views = encoded(TopK(ratio=ratio), pieces, Source(values.copy(), residual, 0.5, True, 1))
    inside = np.zeros(length, bool)
    for start, count in spans:
        inside[start : start + count] = True
    x = np.where(inside, np.float32(0.5) * before + values, 0)
    count = len(views.numbers)
    assert count == max(1, round(ratio * total(pieces)))
    places = spans[0][0] + views.indices
    assert len(set(places.tolist())) == count
    assert inside[places].all()
    np.testing.assert_allclose(views.numbers, x[places], rtol=1e-6)
    np.testing.assert_allclose(np.sort(abs(views.numbers)), np.sort(abs(x))[-count:], rtol=1e-6)
    assert not residual[places].any()
    rest = np.delete(np.arange(length), places)
    np.testing.assert_allclose(residual[rest], np.where(inside, x, before)[rest], rtol=1e-6)
