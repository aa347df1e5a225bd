"""Statistics over ranks: numpy's, and the same bits however many ranks there are and whoever reads."""

import contextlib
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.prepare import fit as fit_module
from hpctrain.data.prepare.fit import fit
from hpctrain.data.prepare.min_max import MinMax
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.prepare.standardise import Standardise
from hpctrain.data.sharding import TRAIN, Split
from hpctrain.errors import UserError

pytestmark = pytest.mark.mpi(min_size=1)
ROWS = 30_011


@pytest.fixture(scope="module")
def group():
    return join()


@pytest.fixture(scope="module")
def folder(group):
    """One folder for all ranks, removed when all are done with it."""
    with tempfile.TemporaryDirectory() as own:
        yield Path(group.broadcast_object(own))
        group.barrier()


@pytest.fixture(scope="module")
def large_mean(group, folder):
    """Numbers with a mean of 1e6 and a deviation of 1, in two files, and numpy's float64 two-pass result."""
    x = 1e6 + np.random.default_rng(1).normal(size=(ROWS, 3))
    paths = [str(folder / name) for name in ("a.h5", "b.h5")]
    if group.rank == 0:
        for path, rows in zip(paths, (slice(0, 10_000), slice(10_000, ROWS)), strict=True):
            with h5py.File(path, "w") as file:
                file["x"], file["y"] = x[rows], x[rows, 0] - 1e6
    group.barrier()
    split = Split(ROWS, 2, 0.1, 0.1)
    return paths, split, x[split.part_of(0, ROWS) == TRAIN]


def learned(group, paths, split, steps, shared, reads=True):
    preparation = Preparation.of(steps, [Standardise()], (3,), (1,))
    source = Hdf5Source(paths, "x", "y") if reads else None
    with source or contextlib.nullcontext():
        fit(group, source, split, preparation, shared)
    return preparation.tensors()


@pytest.mark.parametrize("block_rows", [4096, 512])
@pytest.mark.parametrize("shared", [False, True])
def test_statistics_are_numpys_with_the_same_bits_at_every_world_size(
    group, large_mean, shared, block_rows, monkeypatch
):
    monkeypatch.setattr(fit_module, "BLOCK_ROWS", block_rows)
    paths, split, train = large_mean
    found = learned(group, paths, split, [Standardise()], shared, reads=shared or group.rank == 0)
    np.testing.assert_allclose(found["inputs.0.mean"], train.mean(axis=0), rtol=2e-12)
    np.testing.assert_allclose(found["inputs.0.std"], train.std(axis=0), rtol=2e-12)
    np.testing.assert_allclose(found["targets.0.std"], (train[:, 0] - 1e6).std(), rtol=2e-12)
    alone = learned(SingleGroup(), paths, split, [Standardise()], False)
    bits = {name: values.tobytes() for name, values in alone.items()}
    assert group.all_gather_objects({name: values.tobytes() for name, values in found.items()}) == [bits] * group.size


def test_what_does_not_count_is_left_out_with_the_same_bits(group, folder):
    path = str(folder / "weighed.h5")
    random = np.random.default_rng(3)
    x, mask = 1e6 + random.normal(size=(9000, 2, 3)), random.integers(0, 2, (9000, 2))
    if group.rank == 0:
        with h5py.File(path, "w") as file:
            file["x"], file["y"], file["m"] = x, mask, mask
    group.barrier()

    def found(on, shared):
        preparation = Preparation.of([Standardise(axis="channel")], None, (2, 3), (2,))
        with Hdf5Source([path], "x", "y", mask="m") as source:
            fit(on, source, Split(9000, 0), preparation, shared)
        return preparation.tensors()

    own, alone = found(group, shared=True), found(SingleGroup(), shared=False)
    np.testing.assert_allclose(own["inputs.0.mean"], x[mask == 1].mean(axis=0), rtol=2e-12)
    np.testing.assert_allclose(own["inputs.0.std"], x[mask == 1].std(axis=0), rtol=2e-12)
    assert {name: a.tobytes() for name, a in own.items()} == {name: a.tobytes() for name, a in alone.items()}


def test_fewer_blocks_than_ranks(group, large_mean):
    paths, _, _ = large_mean
    found = learned(group, paths[:1], Split(10_000, 0), [MinMax(), Standardise(axis="all")], shared=True)
    alone = learned(SingleGroup(), paths[:1], Split(10_000, 0), [MinMax(), Standardise(axis="all")], shared=False)
    assert {name: a.tobytes() for name, a in found.items()} == {name: a.tobytes() for name, a in alone.items()}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bad", [5, 9_999])
def test_what_one_rank_finds_ends_on_all(group, folder, shared, bad):
    path = folder / f"bad-{bad}-{shared}.h5"
    if group.rank == 0:
        with h5py.File(path, "w") as file:
            x = np.ones((10_000, 3))
            x[bad, 1] = np.inf
            file["x"], file["y"] = x, x[:, 0]
    group.barrier()
    with pytest.raises(UserError, match=f"infinite number: row {bad} of 'x'") as caught:
        learned(group, [str(path)], Split(10_000, 0), [Standardise()], shared)
    assert caught.value.agreed
    group.barrier()
