"""The verb `shard` with files that it cannot cut, and disks that it cannot write to: one clear message each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data import filters
from hpctrain.data.manifest import Manifest
from hpctrain.errors import UserError
from hpctrain.tools import shard as tool
from hpctrain.tools.cutting import plan, write


def cut(paths: list[Path], shards: int, out: Path) -> tuple[Manifest, int]:
    return tool.shard(SingleGroup(), [str(path) for path in paths], shards, out)


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((10, 2))
    real = write.write_shard

    def meanwhile(planned: plan.Plan, index: int, progress) -> None:
        real(planned, index, progress)
        with h5py.File(path, "a") as file:
            file["x"][0] = 1

    monkeypatch.setattr(write, "write_shard", meanwhile)
    with pytest.raises(UserError, match="changed while it was cut"):
        cut([path], 2, tmp_path / "out")


def test_a_source_of_a_virtual_dataset_that_changes_meanwhile_is_refused(tmp_path: Path, monkeypatch) -> None:
    part, whole = tmp_path / "part.h5", tmp_path / "whole.h5"
    with h5py.File(part, "w") as file:
        file["x"] = np.zeros((10, 2))
    with h5py.File(whole, "w") as file:
        layout = h5py.VirtualLayout((10, 2), "f8")
        layout[:] = h5py.VirtualSource("part.h5", "x", (10, 2))
        file.create_virtual_dataset("x", layout)
    real = write.write_shard

    def meanwhile(planned: plan.Plan, index: int, progress) -> None:
        real(planned, index, progress)
        status = part.stat()
        os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))

    monkeypatch.setattr(write, "write_shard", meanwhile)
    with pytest.raises(UserError, match=f"changed while it was read: {part}"):
        cut([whole], 2, tmp_path / "out")


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    def refused(match: str, first: dict, second: dict, attributes: float = 1.0) -> None:
        for name, datasets, scale in (("a.h5", first, 1.0), ("b.h5", second, attributes)):
            with h5py.File(tmp_path / name, "w") as file:
                for key, value in datasets.items():
                    file[key] = value
                    file[key].attrs["scale_factor"] = scale
        with pytest.raises(UserError, match=match):
            cut([tmp_path / "a.h5", tmp_path / "b.h5"], 2, tmp_path / "out")

    refused("'x' is not the same in all", {"x": np.ones((3, 2))}, {"x": np.ones((3, 4))})
    refused("'x' is not the same in all", {"x": np.ones((3, 2), "f4")}, {"x": np.ones((3, 2), "f8")})
    refused("do not mean the same", {"x": np.ones((3, 2))}, {"x": np.ones((3, 2))}, 2.0)
    refused("nothing that could be cut", {"x": np.ones(3)}, {"z": np.ones(3)})
    refused("more shards than rows", {"x": np.ones((1, 2))}, {"x": np.ones((0, 2))})
    refused("has no rows", {"x": np.ones((0, 2))}, {"x": np.ones((0, 2))})


def test_a_filter_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.ones((8, 2)), chunks=(4, 2), **hdf5plugin.Blosc())
    assert cut([tmp_path / "a.h5"], 2, tmp_path / "there")[0].rows == 8
    monkeypatch.setattr(filters, "is_available", lambda code: False)
    with pytest.raises(UserError, match=r"'/x' is compressed by a filter that is not installed here[\s\S]*blosc"):
        cut([tmp_path / "a.h5"], 2, tmp_path / "out")


def test_a_damaged_file_is_named_with_the_rows_that_cannot_be_read(tmp_path: Path) -> None:
    for name, chunks in (("packed", (100, 4)), ("small", (50, 4))):  # chunks that are read in blocks, and decoded
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            values = np.random.default_rng(0).normal(size=(900, 4))
            file.create_dataset("x", data=values, chunks=chunks, compression="gzip")
            place = file["x"].id.get_chunk_info_by_coord((100, 0)).byte_offset  # a shard ends in this chunk
        content = bytearray(path.read_bytes())
        content[place : place + 400] = bytes(400)
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"HDF5 cannot read '/x', rows \d+ to \d+, in {path}"):
            cut([path], 7, tmp_path / name)


def test_a_disk_that_becomes_full_is_one_clear_message(tmp_path: Path) -> None:
    """A limit on the size of files is a full disk as far as HDF5 is concerned: a write fails in the middle."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((1000, 500))
    script = (
        "import resource; from hpctrain.cli import main; from hpctrain.comm import join; join()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        f"main(['shard', '{tmp_path}/a.h5', '--shards', '2', '--out', '{tmp_path}/out'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert f"hpctrain: error: cannot write {tmp_path}/out/shard-00000-of-00002.h5" in done.stderr
    assert "make room there" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").glob("*.h5"))
    assert not list((tmp_path / "out").glob(".*")), "no half of a shard is left"
