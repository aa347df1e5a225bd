"""Inputs that are stored channels first: turned once when read, with all that belongs to them."""

from types import SimpleNamespace

import numpy as np
import pytest
from sources import write

from hpctrain.data.facts import DataFacts
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.errors import UserError
from hpctrain.run.trained import predict

ROWS = 7
SHAPES = [(3, 5), (2, 4, 5), (2, 3, 4, 5), (1, 6, 2)]


def turned(stored):
    """Channels last, place by place, from the definition."""
    result = np.empty((len(stored), *stored.shape[2:], stored.shape[1]), stored.dtype)
    for row, channel in np.ndindex(stored.shape[:2]):
        result[row, ..., channel] = stored[row, channel]
    return result


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", ">i2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_inputs_are_turned(tmp_path, shape, dtype):
    stored = np.random.default_rng(0).integers(0, 200, (ROWS, *shape)).astype(dtype)
    labels = np.arange(ROWS) % 3
    paths = [write(tmp_path / f"{i}.h5", x=stored[part], y=labels[part]) for i, part in enumerate(np.s_[:3, 3:])]
    source = Hdf5Source(paths, "x", "y", channels_first=True)
    assert source.input_shape == (*shape[1:], shape[0])
    inputs, targets, _ = source.read(1, 6)
    assert inputs.dtype == np.float32
    assert inputs.flags.c_contiguous
    assert np.array_equal(inputs, turned(stored)[1:6])
    assert np.array_equal(targets, labels[1:6])


def test_targets_and_weights_with_channels_are_turned_too(tmp_path):
    random = np.random.default_rng(1)
    stored, maps = random.normal(size=(ROWS, 2, 4, 5)), random.normal(size=(ROWS, 3, 4, 5))
    mask, places = random.integers(0, 2, maps.shape), random.uniform(0, 1, (ROWS, 4, 5))
    path = write(tmp_path / "a.h5", x=stored, y=maps, whole=mask, places=places, counts=mask)
    source = Hdf5Source([path], "x", "y", mask="whole", channels_first=True)
    _, targets, weight = source.read(0, ROWS)
    assert source.format.target_shape == (4, 5, 3)
    assert np.array_equal(targets, turned(maps).reshape(ROWS, -1).astype("f4"))
    assert np.array_equal(weight, turned(mask).reshape(ROWS, -1))
    weight = Hdf5Source([path], "x", "y", weight="places", channels_first=True).read(0, ROWS)[2]
    assert np.array_equal(weight, places.reshape(ROWS, -1).astype("f4"))
    own = Hdf5Source([path], "x", "x", channels_first=True)  # an autoencoder
    inputs, targets, _ = own.read(0, ROWS)
    assert np.array_equal(targets, inputs.reshape(ROWS, -1))
    counts = Hdf5Source([path], "x", "counts", "real", channels_first=True)  # whole numbers that a loss takes as real
    assert np.array_equal(counts.read(0, ROWS)[1], turned(mask).reshape(ROWS, -1))


def test_labels_of_places_and_other_targets_stay(tmp_path):
    random = np.random.default_rng(2)
    stored, labels = random.normal(size=(ROWS, 2, 4, 5)), random.integers(0, 3, (ROWS, 4, 5))
    path = write(tmp_path / "a.h5", x=stored, y=labels, z=random.normal(size=(ROWS, 6)))
    source = Hdf5Source([path], "x", "y", channels_first=True)
    assert np.array_equal(source.read(0, ROWS)[1], labels.reshape(ROWS, -1))
    assert Hdf5Source([path], "x", "z", channels_first=True).format.target_shape == (6,)


@pytest.mark.parametrize("shape", [(), (9,)])
def test_inputs_without_channels_are_refused(tmp_path, shape):
    path = write(tmp_path / "a.h5", x=np.zeros((ROWS, *shape)), y=np.zeros(ROWS, int))
    with pytest.raises(UserError, match=r"data\.channels_first is true, but") as caught:
        Hdf5Source([path], "x", "y", channels_first=True)
    assert str((ROWS, *shape)) in caught.value.message
    assert "(rows, channels, length)" in caught.value.message


def test_a_resumed_run_must_read_in_the_same_way(tmp_path):
    path = write(tmp_path / "a.h5", x=np.zeros((ROWS, 2, 2)), y=np.zeros(ROWS, int))
    plain, first = (DataFacts.collect(Hdf5Source([path], "x", "y", channels_first=way)) for way in (False, True))
    assert plain.fingerprint != first.fingerprint
    assert "channels_first" not in plain.fingerprint["train"]  # as in checkpoints of before


def test_predict_takes_inputs_as_they_were_stored():
    seen = []
    model = SimpleNamespace(input_shape=(4, 5, 2), out_shape=(3,), predict=lambda inputs, _: seen.append(inputs))
    stored = np.random.default_rng(3).normal(size=(ROWS, 2, 4, 5))
    assert predict(model, stored, channels_first=True).shape == (ROWS, 3)
    assert seen[0].flags.c_contiguous
    assert np.array_equal(seen[0], turned(stored).astype("f4"))
    with pytest.raises(UserError, match=r"\(rows, 2, 4, 5\)"):
        predict(model, turned(stored), channels_first=True)
