"""The MNIST example: IDX files are read as their definition says, and files and jobs fit together."""

import gzip
import importlib.util
import struct
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.job import Job

FOLDER = Path(__file__).resolve().parents[2] / "jobs" / "mnist"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("idx_to_hdf5", FOLDER / "idx_to_hdf5.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def idx(shape: tuple[int, ...], content: bytes, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content


def write_set(folder: Path) -> None:
    for prefix, rows in (("train", 3), ("t10k", 2)):
        images = idx((rows, 2, 2), bytes(range(4 * rows)))
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        with gzip.open(folder / f"{prefix}-labels.idx1-ubyte.gz", "wb") as file:
            file.write(idx((rows,), bytes(range(rows))))


def test_a_set_becomes_two_files(script, tmp_path, monkeypatch, capsys):
    write_set(tmp_path)
    monkeypatch.setattr(sys, "argv", ["idx_to_hdf5.py", str(tmp_path), "--output", str(tmp_path)])
    script.main()
    with h5py.File(tmp_path / "mnist-train.h5") as file:
        assert file["images"].shape == (3, 2, 2, 1)
        assert file["images"].dtype == np.float32
        assert np.allclose(file["images"][1, :, :, 0], np.array([[4, 5], [6, 7]]) / 255)
        assert file["labels"][:].tolist() == [0, 1, 2]
    with h5py.File(tmp_path / "mnist-test.h5") as file:
        assert len(file["images"]) == len(file["labels"]) == 2
    assert "3 images of 2 x 2, 3 classes" in capsys.readouterr().out
    assert not list(tmp_path.glob(".*"))


def test_numbers_are_big_endian(script, tmp_path):
    (tmp_path / "a").write_bytes(idx((2,), struct.pack(">2i", -5, 70_000), kind=0x0C))
    assert script.read(tmp_path / "a").tolist() == [-5, 70_000]


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"PK\3\4", "not an IDX file"), (b"", "not an IDX file"), (idx((4,), b"abc"), "has 3 bytes")],
)
def test_what_is_not_whole_is_told(script, tmp_path, content, told):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match=told):
        script.read(tmp_path / "a")


def test_a_missing_file_is_told_in_a_line(script, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["idx_to_hdf5.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="there is no train-images-idx3-ubyte"):
        script.main()


def test_files_that_do_not_belong_together_are_told(script, tmp_path):
    with pytest.raises(ValueError, match="3 images, but 2 labels"):
        script.write(tmp_path / "a.h5", np.zeros((3, 2, 2), np.uint8), np.zeros(2, np.uint8))


@pytest.mark.parametrize("name", ["cnn-mnist", "resnet8"])
def test_the_jobs_load(name):
    job = Job.load(FOLDER / f"{name}.toml")
    assert job.data.files == str(FOLDER / "mnist-train.h5")
    assert job.name == name
