"""How well each order mixes data that are sorted by class, measured: positions, classes of batches, and training."""

import h5py
import numpy as np
import pytest

from hpctrain import train
from hpctrain.data import load, mapping
from hpctrain.data.order import Chunks, EpochOrder
from hpctrain.data.ways import MEMORY, STREAMED, Ways

ROWS, CLASSES, BATCH = 60_000, 10, 128
FIRSTS = np.minimum(np.arange(0, ROWS + 83, 83), ROWS)  # chunks of 83 rows: 256 KB of rows of 784 numbers


def order_of(shuffle, share, epoch=0):
    return EpochOrder(ROWS, 5, epoch, shuffle, Chunks(FIRSTS, int(share * ROWS)))


def unevenness(ids):
    """Mean over the batches of chi-squared of their classes over its degrees of freedom: 1 for rows drawn at random."""
    labels = (ids * CLASSES // ROWS)[: ROWS // BATCH * BATCH].reshape(-1, BATCH)
    counts = np.stack([np.bincount(row, minlength=CLASSES) for row in labels])
    expected = BATCH / CLASSES
    return float(((counts - expected) ** 2 / expected).sum(axis=1).mean() / (CLASSES - 1))


@pytest.mark.parametrize(("shuffle", "share", "correlation"), [("global", 0.1, 0.02), ("chunks", 0.1, 0.15)])
def test_positions_do_not_follow_the_file(shuffle, share, correlation):
    for epoch in range(3):
        ids = order_of(shuffle, share, epoch).ids(0, ROWS)
        # 723 chunks in random order: a deviation of 1 / sqrt(723) = 0.04.
        assert abs(np.corrcoef(ids, np.arange(ROWS))[0, 1]) < correlation
        assert abs(np.corrcoef(ids[1:], ids[:-1])[0, 1]) < correlation


def test_batches_of_sorted_data_have_all_classes():
    assert unevenness(order_of("global", 1).ids(0, ROWS)) == pytest.approx(1, abs=0.1)
    assert unevenness(order_of("chunks", 1).ids(0, ROWS)) == pytest.approx(1, abs=0.1)
    # A pool of 72 chunks of one class each has 72 / 10 of a class, give or take the root of it: that much the batches
    # differ from each other, beside what chance does: 1 + 128 / 72.
    assert unevenness(order_of("chunks", 0.1).ids(0, ROWS)) == pytest.approx(1 + BATCH / 72, rel=0.2)
    assert unevenness(order_of("none", 0.1).ids(0, ROWS)) > 100


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same 4000 examples of ten classes that overlap, sorted by class and not."""
    folder = tmp_path_factory.mktemp("mixing")
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), 400)
    inputs = (random.normal(size=(CLASSES, 20))[labels] + random.normal(size=(4000, 20))).astype("f4")
    for name, order in (("sorted", np.arange(4000)), ("mixed", random.permutation(4000))):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=inputs[order], chunks=(25, 20))
            file["y"] = labels[order]
    return folder


def accuracy(files, name, shuffle, monkeypatch, **data):
    monkeypatch.setattr(mapping, "_CHUNK_BYTES", 2200)  # 25 rows
    job = {
        "data": {"files": str(files / f"{name}.h5"), "input": "x", "target": "y", "split": {"test": 0.25}, **data},
        "model": {"layers": [{"type": "dense", "units": 32}, "relu", {"type": "dense", "units": CLASSES}]},
        "run": {"epochs": 8, "global_batch": 32, "progress": "none", "checkpoint_every": "never"},
    }
    job["data"]["shuffle"] = shuffle
    return train(job, run_dir=files / f"{name}-{shuffle}-{len(data)}").summary["test"]["accuracy"]


def test_training_on_sorted_data_is_as_good_as_on_mixed_data(files, monkeypatch):
    mixed = accuracy(files, "mixed", "global", monkeypatch)
    assert mixed > 0.8
    assert abs(accuracy(files, "sorted", "global", monkeypatch) - mixed) < 0.03
    assert accuracy(files, "sorted", "none", monkeypatch) < mixed - 0.03
    monkeypatch.setattr(load, "choose", lambda *_: Ways({"train": STREAMED, "test": MEMORY}, "chunks", ()))
    pools = {"shuffle_buffer": "50 KB"}  # a sixth of the rows at a time
    assert abs(accuracy(files, "sorted", "chunks", monkeypatch, **pools) - mixed) < 0.03
