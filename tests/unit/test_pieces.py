"""Long arrays are cut into pieces that follow one another; short ones stay as they are."""

import numpy as np
import pytest

from hpctrain.comm import pieces


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(pieces, "MOST_BYTES", 20)


@pytest.mark.parametrize("shape", [(0,), (), (5,), (2, 2)])
def test_a_short_array_is_left_as_it_is(shape):
    array = np.zeros(shape, np.float32)
    assert [piece is array for piece in pieces.pieces(array)] == [True]
    assert not pieces.is_long(array)


@pytest.mark.parametrize(("dtype", "longest"), [("f4", 5), ("f8", 2), ("u1", 20), ("V30", 1)])
def test_a_long_array_comes_in_pieces_of_its_own_memory(dtype, longest):
    array = np.zeros((7, 6), dtype)
    cut = list(pieces.pieces(array))
    assert pieces.is_long(array)
    assert [len(piece) for piece in cut[:-1]] == [longest] * (len(cut) - 1)
    assert sum(map(len, cut)) == 42
    starts = [piece.ctypes.data - array.ctypes.data for piece in cut]
    assert starts == [number * longest * array.itemsize for number in range(len(cut))]


def test_what_is_not_contiguous_is_not_copied_behind_the_caller_s_back():
    with pytest.raises(ValueError, match="contiguous"):
        list(pieces.pieces(np.zeros((9, 9))[:, :4]))
