"""Checkpoints: what is saved comes back to the bit, and whatever is broken is found, named and passed over."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.errors import UserError
from hpctrain.nn.flat import Layout, weights_sha256
from hpctrain.training import checkpoint
from hpctrain.training.checkpoint import Checkpoint, CheckpointError

SHAPES = {
    "z.weight": (3, 5),
    "a.bias": (5,),
    "scale": (),
    "none": (0, 2),
    "block/conv%2F.weight": (2, 1, 3),
    ".": (1,),
    "größe": (2,),
}


def example(step: int = 7) -> Checkpoint:
    rng = np.random.default_rng(step)

    def tensors() -> dict[str, np.ndarray]:
        return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}

    return Checkpoint(
        job_toml='[run]\nname = "größe"\n' + "# long\n" * 20_000,
        parameters=tensors(),
        state={"mean": np.array([np.nan, -0.0, np.inf], np.float32)},
        optimizer={"momentum/1": tensors(), "count": {"x": np.arange(3, dtype=np.int64)}},
        position={"step": step, "epoch": 2, "loss_sum": 0.1 + 0.2, "best": math.nan, "draws": 2**62 + 1, "done": True},
        fingerprint={"rows": 1797, "files": ["a.h5", "b.h5"]},
        world_size=4,
        seed=11,
    )


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert found[name].tobytes() == tensor.tobytes()


def test_everything_comes_back_to_the_bit(tmp_path: Path) -> None:
    wanted = example()
    path = checkpoint.step_path(tmp_path, 7)
    checkpoint.save(path, wanted)
    found = checkpoint.load(path)
    assert path.name == "step-00000007.h5"
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    assert_same(found.parameters, wanted.parameters)
    assert_same(found.state, wanted.state)
    assert set(found.optimizer) == set(wanted.optimizer)
    for slot, tensors in wanted.optimizer.items():
        assert_same(found.optimizer[slot], tensors)
    assert math.isnan(found.position.pop("best"))
    assert math.isnan(wanted.position.pop("best"))
    assert found.position == wanted.position
    assert {name: type(value) for name, value in found.position.items()} == {
        name: type(value) for name, value in wanted.position.items()
    }
    for name in ("job_toml", "fingerprint", "world_size", "seed", "step", "version"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert found.path == path
    assert found.created


def test_any_hdf5_program_can_read_it(tmp_path: Path) -> None:
    wanted = example()
    checkpoint.save(tmp_path / "a.h5", wanted)
    with h5py.File(tmp_path / "a.h5") as file:
        tensor = file["parameters"]["z.weight"]
        assert tensor.dtype == np.dtype("<f4")
        assert np.array_equal(tensor[()], wanted.parameters["z.weight"])
        assert file["job.toml"].asstr()[()] == wanted.job_toml
        assert file["position"].attrs["step"] == 7
        by_hand = hashlib.sha256(
            b"".join(
                tensor.astype("<f4").tobytes() for part in (wanted.parameters, wanted.state) for tensor in part.values()
            )
        )
        assert file.attrs["weights_sha256"] == by_hand.hexdigest()
    first = (tmp_path / "a.h5").read_bytes()[:200].decode()
    assert first.startswith("hpctrain-file 1\nbytes ")


def test_the_hash_of_the_weights_is_that_of_the_flat_buffers() -> None:
    layout, state_layout = Layout([("w", (3, 7)), ("b", (7,))]), Layout([("mean", (7,))])
    rng = np.random.default_rng(0)
    params = rng.standard_normal(layout.size).astype(np.float32)
    state = rng.standard_normal(state_layout.size).astype(np.float32)
    made = Checkpoint("", checkpoint.tensors_of(layout, params), checkpoint.tensors_of(state_layout, state))
    assert made.weights_sha256 == weights_sha256((layout, params), (state_layout, state))


def test_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    checkpoint.save(path, example())
    whole = path.read_bytes()
    for length in (0, 1, 14, 20, 100, 511, 512, 513, 2000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="cut off"):
            checkpoint.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    small = Checkpoint('name = "x"', {"w": np.ones(3, np.float32)}, position={"step": 1})
    checkpoint.save(path, small)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in [*range(110), *rng.integers(110, len(whole), 100)]:
        broken = bytearray(whole)
        broken[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        with pytest.raises(CheckpointError):
            checkpoint.load(path)


def broken(path: Path, kind: str) -> None:
    """Put a file there that cannot be loaded, in one of the ways of `REASONS`."""
    if kind == "other HDF5":
        with h5py.File(path, "w") as file:
            file["x"] = 1
    elif kind == "text":
        path.write_text("hello")
    elif kind == "folder":
        path.mkdir()
    elif kind in ("cut", "flipped", "version"):
        checkpoint.save(path, example())
        content = bytearray(path.read_bytes())
        if kind == "flipped":
            content[5000] ^= 1
        if kind == "version":
            content = content.replace(b"file 1\n", b"file 9\n", 1)
        path.write_bytes(content[:-1000] if kind == "cut" else content)
    elif kind == "model":
        checkpoint.save_model(path, example())


REASONS = {
    "missing": os.strerror(errno.ENOENT),
    "folder": os.strerror(errno.EISDIR),
    "other HDF5": "not a checkpoint",
    "text": "not a checkpoint",
    "cut": "cut off",
    "flipped": "checksum is wrong",
    "version": "format version 9, this hpctrain reads 1",
    "model": "it is a model, not a checkpoint",
}


@pytest.mark.parametrize("kind", REASONS)
def test_each_fault_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.h5"
    broken(path, kind)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path)
    assert REASONS[kind] in caught.value.reason
    assert str(path) in caught.value.message


def test_a_model_file_has_the_weights_alone(tmp_path: Path) -> None:
    wanted = example()
    checkpoint.save_model(tmp_path / "model.h5", wanted)
    found = checkpoint.load_model(tmp_path / "model.h5")
    assert_same(found.parameters, wanted.parameters)
    assert_same(found.state, wanted.state)
    assert found.job_toml == wanted.job_toml
    assert found.optimizer == {}
    assert found.position == {}
    assert wanted.optimizer  # the given one is as it was
    checkpoint.save(tmp_path / "step.h5", wanted)
    assert_same(checkpoint.load_model(tmp_path / "step.h5").parameters, wanted.parameters)


def test_the_latest_whole_one_is_found(tmp_path: Path) -> None:
    skipped: list[tuple[str, str]] = []

    def latest() -> Checkpoint | None:
        skipped.clear()
        return checkpoint.latest_valid(tmp_path, lambda path, reason: skipped.append((path.name, reason)))

    assert latest() is None
    assert checkpoint.latest_valid(tmp_path / "missing", lambda path, reason: None) is None
    for step in (9, 10, 100_000_000):
        checkpoint.save(checkpoint.step_path(tmp_path, step), example(step))
    (tmp_path / "step-notes.h5").write_text("")
    (tmp_path / ".step-00000200.h5.1.tmp").write_text("half")
    found = latest()
    assert found is not None
    assert found.step == 100_000_000  # nine digits come after eight
    assert skipped == []
    newest, second = checkpoint.step_path(tmp_path, 100_000_000), checkpoint.step_path(tmp_path, 10)
    newest.write_bytes(newest.read_bytes()[:5000])
    broken(second, "flipped")
    found = latest()
    assert found is not None
    assert found.step == 9
    assert [name for name, _ in skipped] == [newest.name, second.name]
    assert "cut off" in skipped[0][1]
    assert "checksum" in skipped[1][1]


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        checkpoint.save(checkpoint.step_path(tmp_path, step), example(step))
    (tmp_path / ".step-00000025.h5.1.tmp").write_text("half")
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-00000015.h5", "step-00000020.h5"]
    checkpoint.prune(tmp_path, 0)
    assert [path.name for path in tmp_path.glob("*.h5")] == ["step-00000020.h5"]


def test_pruning_never_takes_the_one_just_written(tmp_path: Path) -> None:
    """A resume passed over a broken later file; that must not push out what is written now."""
    for seconds, step in enumerate((100, 120)):
        path = checkpoint.step_path(tmp_path, step)
        checkpoint.save(path, example(step))
        os.utime(path, (seconds, seconds))
    checkpoint.save(checkpoint.step_path(tmp_path, 110), example(110))
    checkpoint.prune(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000110.h5", "step-00000120.h5"]


FULL_DISK = """
import resource, sys
import numpy as np
from hpctrain.errors import UserError
from hpctrain.training import checkpoint

one = checkpoint.Checkpoint("", {f"w{i}": np.ones(5000, np.float32) for i in range(5)}, position={"step": 1})
for limit in range(0, 100_000, 5_003):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        checkpoint.save(sys.argv[1], one)
    except UserError as error:
        print(error.message)
"""


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    """The file size limit stands in for the full disk; HDF5 by itself crashes where it strikes while closing."""
    path = tmp_path / "a.h5"
    checkpoint.save(path, example(1))
    command = [sys.executable, "-c", FULL_DISK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count(f"cannot write {path}") == 20
    assert done.stdout.count(os.strerror(errno.EFBIG)) == 20
    assert done.stderr == ""
    assert [item.name for item in tmp_path.iterdir()] == ["a.h5"]
    assert checkpoint.load(path).step == 1


def test_tensors_go_into_a_flat_buffer_and_back() -> None:
    layout = Layout([("w", (2, 3)), ("b", (3,))])
    tensors = {"b": np.arange(3, dtype=np.float32), "w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    buffer = np.full(layout.size, 9, np.float32)
    checkpoint.fill(layout, buffer, tensors)
    assert np.array_equal(buffer, [0, 1, 2, 3, 4, 5, *[0] * 10, 0, 1, 2, *[0] * 13])
    back = checkpoint.tensors_of(layout, buffer)
    assert list(back) == ["w", "b"]
    assert np.array_equal(back["w"], tensors["w"])
    buffer[:] = 5
    assert back["b"][2] == 5  # a view: writing a checkpoint takes no memory of its own


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"w": np.zeros((3, 2))}, ["'w'", "(3, 2)", "(2, 3)"]),
        ({}, ["'w'", "missing"]),
        ({"w": np.zeros((2, 3)), "v": np.zeros(1)}, ["'v'", "not in the model"]),
    ],
)
def test_tensors_that_do_not_fit_are_named(tensors: dict[str, np.ndarray], words: list[str]) -> None:
    layout = Layout([("w", (2, 3))])
    buffer = np.full(layout.size, 9, np.float32)
    with pytest.raises(UserError) as caught:
        checkpoint.fill(layout, buffer, tensors)
    assert all(word in caught.value.message for word in words)
    assert np.all(buffer == 9)
