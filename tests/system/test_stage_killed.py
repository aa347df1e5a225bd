"""`shard` and `stage` under mpirun, killed in the middle (SIGKILL) and started again; a flipped byte at four ranks."""

from __future__ import annotations

import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from launching import hpctrain, start

from hpctrain.data.manifest import Manifest

SHARDS, LIMIT_S = 24, 60


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """30 MB in 24 shards, cut by three ranks."""
    folder = tmp_path_factory.mktemp("shards")
    values = np.random.default_rng(0).random((30_000, 250), np.float32)
    with h5py.File(folder / "all.h5", "w") as file:
        file["x"], file["y"] = values, np.arange(30_000)
    done = hpctrain(3, "shard", folder / "all.h5", "--shards", str(SHARDS), "--out", folder / "out", timeout=LIMIT_S)
    assert done.returncode == 0, done.output
    assert done.stdout.count("24 shards of 1,250 rows") == 1, done.output
    manifest = Manifest.load(folder / "out")
    read = []
    for path in manifest.files:
        with h5py.File(path) as file:
            read.append(file["x"][:])
            assert np.array_equal(file["y"][:], np.arange(30_000)[manifest.shards[len(read) - 1].rows])
    assert np.concatenate(read).tobytes() == values.tobytes()
    return manifest


def test_staging_that_was_killed_goes_on_and_ends_right(shards: Manifest, tmp_path: Path) -> None:
    to = tmp_path / "local"
    with start(2, "-m", "hpctrain", "stage", shards.folder, "--to", to) as launched:
        end = time.monotonic() + LIMIT_S
        while not list(to.glob("*shard-*")):  # the ranks are looked for before it matters: that takes a while
            assert launched.process.poll() is None, launched.stdout + launched.stderr
            assert time.monotonic() < end
        ranks = launched.ranks()
        while len(list(to.glob("shard-*.h5"))) < 2:
            assert time.monotonic() < end
        for process in ranks:
            process.kill()
        launched.wait(LIMIT_S)
    there = {path: path.stat().st_mtime_ns for path in to.glob("shard-*.h5")}
    assert 2 <= len(there) < SHARDS, "killed in the middle"
    assert not (to / "manifest.json").exists()
    done = hpctrain(2, "stage", shards.folder, "--to", to, timeout=LIMIT_S)
    assert done.returncode == 0, done.output
    assert f"{SHARDS} shards in {to}, checked: {SHARDS - len(there)} copied" in done.stdout, done.output
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in there.items()), "what was whole is kept"
    local = Manifest.load(to)
    assert local.here() == list(range(SHARDS))
    for index in range(SHARDS):
        local.verify(index)
    assert not list(to.glob(".*")), "nothing of the killed run is left"


def test_a_flipped_byte_is_one_clear_message_at_four_ranks(shards: Manifest, tmp_path: Path) -> None:
    path = shards.path(7)
    content = path.read_bytes()
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    path.write_bytes(changed)
    try:
        done = hpctrain(4, "stage", shards.folder, "--to", tmp_path / "local", timeout=LIMIT_S)
    finally:
        path.write_bytes(content)
    assert done.returncode == 2, done.output
    assert done.stderr.count(f"shard {path.name} (rows 8750 to 9999) is damaged") == 1, done.output
    assert "Traceback" not in done.output
