"""Files that change while they are read: that is what is told, whatever the numbers in them look like by then."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.facts import DataFacts
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.prepare.fit import fit
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.prepare.standardise import Standardise
from hpctrain.data.sharding import Split
from hpctrain.data.twin import Twin
from hpctrain.errors import UserError

ROWS = 20_000  # more than HDF5 keeps of a dataset


def write(path: Path, inputs: np.ndarray | None = None) -> Path:
    with h5py.File(path, "w") as file:
        ids = np.arange(ROWS)
        file["x"] = np.repeat(ids[:, None], 3, axis=1).astype("f4") if inputs is None else inputs
        file["y"] = ids
        file["kind"] = np.array([b"ant", b"bee"], "S16")[ids % 2]
        file["packed"] = file["x"][:].astype("f8")
    return path


def overwrite(path: Path, name: str, values: np.ndarray, later_ns: int = 10**9) -> None:
    """Write numbers over a dataset as another process would: past HDF5, which has the file open here."""
    with h5py.File(path, locking="best-effort") as file:
        place = file[name].id.get_offset()
    with path.open("r+b") as file:
        file.seek(place)
        file.write(values.tobytes())
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + later_ns))


@pytest.mark.parametrize("kind", [Hdf5Source, Twin])
@pytest.mark.parametrize(
    ("target", "name", "values"),
    [
        ("y", "x", np.full((ROWS, 3), np.nan, "f4")),
        ("y", "y", np.full(ROWS, -1)),
        ("kind", "kind", np.full(ROWS, b"cow", "S16")),
    ],
)
def test_bad_values_of_a_file_that_has_changed_are_a_change(tmp_path, kind, target, name, values) -> None:
    path = write(tmp_path / "a.h5")
    source = Hdf5Source([str(path)], "x", target)
    source = source if kind is Hdf5Source else Twin(source)
    source.check_values(*source.read(0, 4), 0)
    overwrite(path, name, values)
    with pytest.raises(UserError, match=f"a data file has changed while it was read: {path}"):
        source.check_values(*source.read(4, ROWS), 4)
    source.close()


def test_bad_values_of_a_file_as_it_was_are_told(tmp_path) -> None:
    path = write(tmp_path / "a.h5")
    source = Hdf5Source([str(path)], "x", "y")
    source.read(0, 4)
    overwrite(path, "x", np.full((ROWS, 3), np.nan, "f4"), later_ns=0)
    status = path.stat()
    stamp = source._layout.stamps[str(path)]
    os.utime(path, ns=(status.st_atime_ns, stamp.changed_ns))
    with pytest.raises(UserError, match="NaN in the data: row 4 of 'x'"):
        source.check_values(*source.read(4, ROWS), 4)


def test_labels_and_statistics_that_are_looked_at_first(tmp_path, monkeypatch) -> None:
    path = write(tmp_path / "a.h5")
    source = Hdf5Source([str(path)], "x", "y")
    real = Hdf5Source.read_into

    def changed_meanwhile(self, *args, **options) -> None:
        self._opened(0)
        overwrite(path, "y", np.full(ROWS, -1))
        real(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Hdf5Source, "read_into", changed_meanwhile)
        with pytest.raises(UserError, match="has changed while it was read"):
            DataFacts.collect(source)

    source = Hdf5Source([str(path)], "x", "y")
    preparation = Preparation.of([Standardise()], None, (3,), ())
    source.stored("inputs", 0, 1)
    overwrite(path, "x", np.full((ROWS, 3), np.inf, "f4"))
    with pytest.raises(UserError, match="has changed while it was read"):
        fit(SingleGroup(), source, Split(ROWS, 0), preparation, shared=False)


def virtual(folder: Path, name: str) -> None:
    layout = h5py.VirtualLayout((ROWS, 3), "f4")
    layout[:] = h5py.VirtualSource(name, "x", (ROWS, 3))
    with h5py.File(folder / "data.h5", "a") as file:
        file.create_virtual_dataset("x", layout)


def test_the_sources_of_a_virtual_dataset_are_watched(tmp_path) -> None:
    write(tmp_path / "part.h5")
    write(tmp_path / "deep.h5")
    with h5py.File(tmp_path / "part.h5", "a") as file:
        del file["x"]
        layout = h5py.VirtualLayout((ROWS, 3), "f4")
        layout[:] = h5py.VirtualSource("deep.h5", "x", (ROWS, 3))
        file.create_virtual_dataset("x", layout)
    write(tmp_path / "data.h5")
    with h5py.File(tmp_path / "data.h5", "a") as file:
        del file["x"]
    virtual(tmp_path, "part.h5")
    check_watched(tmp_path / "data.h5", ["part.h5", "deep.h5"])


def test_numbered_sources_are_watched(tmp_path) -> None:
    for number in range(2):
        write(tmp_path / f"part-{number}.h5")
    write(tmp_path / "data.h5")
    with h5py.File(tmp_path / "data.h5", "a") as file:
        del file["x"]
        space = h5py.h5s.create_simple((2 * ROWS, 3), (h5py.h5s.UNLIMITED, 3))
        space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (ROWS, 1), (ROWS, 3))
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_virtual(space, b"part-%b.h5", b"x", h5py.h5s.create_simple((ROWS, 3)))
        whole = h5py.h5s.create_simple((2 * ROWS, 3), (h5py.h5s.UNLIMITED, 3))
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, whole, properties)
        del file["y"]
        file["y"] = np.arange(2 * ROWS)
    check_watched(tmp_path / "data.h5", ["part-0.h5", "part-1.h5"], 2 * ROWS)


def test_what_a_link_leads_to_is_watched_and_read_there(tmp_path) -> None:
    other = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("f4")
    write(tmp_path / "other.h5", other)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["before"] = np.zeros(5000)  # so that its numbers would stand elsewhere in this file
        file["y"] = np.arange(ROWS)
        file["x"] = h5py.ExternalLink("other.h5", "x")
    source = Hdf5Source([str(tmp_path / "data.h5")], "x", "y")
    assert source.mapped_rows() is None
    assert np.array_equal(Twin(source).read(0, ROWS)[0], other)
    check_watched(tmp_path / "data.h5", ["other.h5"])


def test_raw_files_are_watched(tmp_path) -> None:
    raw = tmp_path / "numbers.bin"
    raw.write_bytes(np.arange(3 * ROWS, dtype="f4").tobytes())
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("x", (ROWS, 3), "f4", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
        file["y"] = np.arange(ROWS)
    check_watched(tmp_path / "data.h5", ["numbers.bin"])


def check_watched(path: Path, names: list[str], rows: int = ROWS) -> None:
    """Change each file, and look that a pass over the data tells it."""
    for name in names:
        source = Hdf5Source([str(path)], "x", "y")
        assert len(source) == rows
        for each in (source, Twin(source)):
            each.read(0, rows)
        other = path.parent / name
        status = other.stat()
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
        with pytest.raises(UserError, match=f"a data file has changed while it was read: {other}"):
            each.check_files()
        with pytest.raises(UserError, match=f"a data file has changed while it was read: {other}"):
            source.finish()
        with pytest.raises(UserError, match=f"a data file has changed while it was read: {other}"):
            source.read(0, 1)
        each.close()
