"""Checkpoints and models on disk: saving, loading, finding the latest that is whole.

A file is HDF5 with a user block (512 bytes ahead of the HDF5 data, which every HDF5 tool skips by itself) of text:

    hpctrain-file 1            format version
    bytes 123456               length of all that follows the user block
    sha256 6f0c...             of all that follows the user block
    (spaces up to 512)

So a cut or flipped file is found before HDF5 parses a byte of it.  Inside:

    /                          attributes: kind ("checkpoint" or "model"), hpctrain (version), created (ISO 8601, UTC),
                               world_size, seed, weights_sha256 (of parameters, then state)
    /job.toml                  the resolved job, text
    /data_fingerprint.json     what identifies the training data, JSON text
    /interface.json            what the network takes and gives (input_shape, target_kind, ...), JSON text
    /preparation/<name>        what the preparation has learned ("inputs.0.mean"), float64; none: nothing
    /parameters/<name>         one data set a tensor, in its own shape, little-endian float32, in layout order
    /state/<name>              running statistics, likewise
    /optimizer/<slot>/<name>   the optimizer's (and strategy's) buffers, by slot and tensor; checkpoints only
    /strategy/<name>           further arrays of the strategy, of lengths of their own; checkpoints only
    /position                  attributes: step, epoch, step_in_epoch, loss_sum, weight_sum and further numbers;
                               checkpoints only

A `/` in a tensor's name is written as `%2F` (and `%` as `%25`).
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpctrain.errors import UserError
from hpctrain.files import atomic_write, reason, sweep_temporary
from hpctrain.nn.flat import Layout
from hpctrain.version import __version__

FORMAT = 1
_BLOCK = 512  # the smallest user block that HDF5 allows
_MAGIC = b"hpctrain-file "
_HEADER = re.compile(rb"hpctrain-file (\d{1,9})\nbytes (\d{1,18})\nsha256 ([0-9a-f]{64})\n *")

Tensors = dict[str, np.ndarray]


class CheckpointError(UserError):
    """A file that cannot be loaded; `path`, and `reason` in a few words ("cut off: 10 of 20 bytes")."""

    def __init__(self, path: Path, reason: str, hint: str | None = None) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"cannot load {path}: {reason}", hint=hint)


@dataclass
class Checkpoint:
    """Everything that a run needs to go on as if never stopped; arrays by tensor name, in layout order."""

    job_toml: str
    parameters: Tensors  # float32
    state: Tensors = field(default_factory=dict)  # float32
    optimizer: dict[str, Tensors] = field(default_factory=dict)  # by slot; their own dtypes
    position: dict[str, int | float] = field(default_factory=dict)
    strategy: Tensors = field(default_factory=dict)  # their own dtypes and lengths
    fingerprint: dict[str, Any] = field(default_factory=dict)  # JSON values
    interface: dict[str, Any] = field(default_factory=dict)  # JSON values
    preparation: Tensors = field(default_factory=dict)  # float64
    world_size: int = 1
    seed: int = 0
    path: Path | None = None  # where it was loaded from
    version: str = __version__  # of the hpctrain that wrote it
    created: str = ""  # ISO 8601, UTC; set when saved

    @property
    def step(self) -> int:
        """Number of updates behind these weights."""
        return int(self.position["step"])

    @property
    def weights_sha256(self) -> str:
        """Hash of the parameters, then the state, as `nn.flat.weights_sha256` makes it from the flat buffers."""
        digest = hashlib.sha256()
        for tensors in (self.parameters, self.state):
            for tensor in tensors.values():
                digest.update(np.ascontiguousarray(tensor, "<f4"))
        return digest.hexdigest()


def step_path(folder: str | Path, step: int) -> Path:
    """Return the place of the checkpoint after `step` updates: step-NNNNNNNN.h5."""
    return Path(folder) / f"step-{step:08d}.h5"


def save(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all.

    Raises:
        UserError: no space, no permission: names the file and the reason; nothing is left behind.
    """
    _save(Path(path), checkpoint, "checkpoint")


def save_model(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write the weights and the job, without the optimizer's state and the position; errors as in `save`."""
    _save(Path(path), replace(checkpoint, optimizer={}, position={}, strategy={}), "model")


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint to resume from.

    Raises:
        CheckpointError: not there, not readable, not a file of ours, of another format version, cut off, damaged, or a
            model file, from which a run cannot go on.
    """
    return _load(Path(path), kinds=("checkpoint",))


def load_model(path: str | Path) -> Checkpoint:
    """Read the weights of a model file, or those of a checkpoint; errors as in `load`."""
    return _load(Path(path), kinds=("model", "checkpoint"))


def load_preparation(path: str | Path) -> Tensors:
    """Read what the preparation of a checkpoint has learned, and nothing else of it; errors as in `load`."""
    return _load(Path(path), ("checkpoint",), lambda file, _: _read_tensors(file.get("preparation", {})))


def latest_valid(folder: str | Path, on_skip: Callable[[Path, str], None], read: Callable[[Path], Any] = load) -> Any:
    """Return the newest checkpoint of a folder that is whole, or what `read` takes of it; None without one.

    `on_skip(path, reason)` is told of each newer one that is not.
    """
    for path in reversed(_step_files(Path(folder))):
        try:
            return read(path)
        except CheckpointError as error:
            on_skip(path, error.reason)
    return None


def prune(folder: str | Path, keep: int) -> None:
    """Keep the newest `keep` checkpoints (at least one), and remove older ones and what killed writers left.

    To be called after `save`.  The file written last always stays, even where files of later steps are there: those may
    be the broken ones that a resume has skipped.  A file that cannot be removed is left for the next time.
    """
    files = _step_files(Path(folder))
    staying = set(files[-max(1, keep) :])
    if files:
        staying.add(max(files, key=lambda path: (path.stat().st_mtime_ns, path.name)))
    for path in files:
        if path not in staying:
            with contextlib.suppress(OSError):
                path.unlink()
    sweep_temporary(Path(folder))


def tensors_of(layout: Layout, buffer: np.ndarray) -> Tensors:
    """Return a flat float32 buffer's tensors in their own shapes, by name, in layout order: views, not copies.

    A checkpoint of them is written before the next step, and takes no memory of its own.
    """
    return layout.views(buffer)


def fill(layout: Layout, buffer: np.ndarray, tensors: Tensors) -> None:
    """Write tensors into a flat float32 buffer; the padding between them is set to zero.

    Raises:
        UserError: a tensor of the layout is missing, one too many is there, or a shape differs (names both shapes).
    """
    names = [slot.name for slot in layout]
    for slot in layout:
        if slot.name not in tensors:
            raise UserError(
                f"tensor {slot.name!r} of the model is missing in the file", found=", ".join(tensors) or "none"
            )
        if tensors[slot.name].shape != slot.shape:
            raise UserError(
                f"tensor {slot.name!r} does not fit the model",
                found=f"shape {tensors[slot.name].shape} in the file",
                allowed=f"shape {slot.shape} in the model",
                hint="the job's model must be the one that the file was written with",
            )
    if extra := [name for name in tensors if name not in names]:
        raise UserError(f"tensor {extra[0]!r} of the file is not in the model", allowed=names)
    buffer[:] = 0
    for name, view in layout.views(buffer).items():
        view[...] = tensors[name]


def _step_files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, oldest step first."""
    found = [
        (int(m[1]), path) for path in folder.glob("step-*.h5") if (m := re.fullmatch(r"step-(\d+)\.h5", path.name))
    ]
    return [path for _, path in sorted(found)]


class _Output(io.FileIO):
    """A file for HDF5 to write to that never refuses: the first failure is kept in `failure` for us to raise later.

    HDF5 does not bear a full disk: depending on where it strikes, closing the file ends in a segmentation fault.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all bytes, or note why not."""
        rest = memoryview(data).cast("B")
        length = len(rest)
        try:
            while rest and self.failure is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.failure = error
        return length

    def readinto(self, buffer: Any) -> int:
        """Read; what a failed write has left out reads as zeros."""
        view = memoryview(buffer).cast("B")
        count = super().readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the length, or note why not."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


def _save(path: Path, checkpoint: Checkpoint, kind: str) -> None:
    def write(temporary: Path) -> None:
        with _Output(temporary, "w+b") as output:
            _write_content(output, checkpoint, kind)
            if output.failure:
                raise output.failure
        _write_header(temporary)

    atomic_write(path, write)


def _write_content(output: _Output, checkpoint: Checkpoint, kind: str) -> None:
    with h5py.File(output, "w", userblock_size=_BLOCK) as file:
        file.attrs["kind"] = kind
        file.attrs["hpctrain"] = __version__
        file.attrs["created"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        file.attrs["world_size"] = checkpoint.world_size
        file.attrs["seed"] = checkpoint.seed
        file.attrs["weights_sha256"] = checkpoint.weights_sha256
        # Data sets, since an attribute holds no more than 64 KB.
        file["job.toml"] = checkpoint.job_toml
        file["data_fingerprint.json"] = json.dumps(checkpoint.fingerprint)
        file["interface.json"] = json.dumps(checkpoint.interface)
        _write_tensors(file, "preparation", checkpoint.preparation)
        _write_tensors(file, "parameters", checkpoint.parameters)
        _write_tensors(file, "state", checkpoint.state)
        if kind == "checkpoint":
            optimizer = file.create_group("optimizer", track_order=True)
            for slot, tensors in checkpoint.optimizer.items():
                _write_tensors(optimizer, _to_link(slot), tensors)
            _write_tensors(file, "strategy", checkpoint.strategy)
            file.create_group("position").attrs.update(checkpoint.position)


def _write_tensors(parent: h5py.Group, where: str, tensors: Tensors) -> None:
    group = parent.create_group(where, track_order=True)  # reads back in layout order
    for name, tensor in tensors.items():
        tensor = np.asarray(tensor)
        group.create_dataset(_to_link(name), data=tensor.astype(tensor.dtype.newbyteorder("<"), copy=False))


def _write_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(_BLOCK)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        header = b"%s%d\nbytes %d\nsha256 %s\n" % (_MAGIC, FORMAT, file.tell() - _BLOCK, digest.encode())
        file.seek(0)
        file.write(header.ljust(_BLOCK))


def _load(path: Path, kinds: tuple[str, ...], read: Callable[[h5py.File, Path], Any] | None = None) -> Any:
    try:
        _check_header(path)
        with h5py.File(path, "r", locking=False) as file:
            kind = str(file.attrs["kind"])
            if kind not in kinds:
                hint = "resume from a file of the folder `checkpoints`"
                raise CheckpointError(path, f"it is a {kind}, not a {kinds[0]}", hint)
            return (read or _read_content)(file, path)
    except OSError as error:
        raise CheckpointError(path, reason(error)) from None
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        # The checksum is right, so this was written by something that does not keep to the layout.
        raise CheckpointError(path, f"its content does not follow the layout ({error})") from None


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        block = file.read(_BLOCK)
        if not block:
            raise CheckpointError(path, "cut off: it is empty")
        if not block.startswith(_MAGIC[: len(block)]):
            raise CheckpointError(path, "it is not a checkpoint or model of hpctrain")
        match = _HEADER.fullmatch(block)
        if match is None:
            whole = len(block) == _BLOCK
            raise CheckpointError(path, "damaged: its header cannot be read" if whole else "cut off within its header")
        if int(match[1]) != FORMAT:
            hint = "load it with the version of hpctrain that wrote it"
            raise CheckpointError(path, f"it has format version {int(match[1])}, this hpctrain reads {FORMAT}", hint)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        length = file.tell() - _BLOCK
        if length != int(match[2]):
            word = "cut off" if length < int(match[2]) else "damaged"
            raise CheckpointError(path, f"{word}: it has {length:,} of {int(match[2]):,} bytes")
        if digest != match[3].decode():
            raise CheckpointError(path, "damaged: its checksum is wrong")


def _read_content(file: h5py.File, path: Path) -> Checkpoint:
    return Checkpoint(
        job_toml=file["job.toml"].asstr()[()],
        parameters=_read_tensors(file["parameters"]),
        state=_read_tensors(file["state"]),
        optimizer={_from_link(slot): _read_tensors(group) for slot, group in file.get("optimizer", {}).items()},
        position={name: value.item() for name, value in file["position"].attrs.items()} if "position" in file else {},
        strategy=_read_tensors(file.get("strategy", {})),
        fingerprint=json.loads(file["data_fingerprint.json"].asstr()[()]),
        interface=json.loads(file["interface.json"].asstr()[()]),
        preparation=_read_tensors(file.get("preparation", {})),
        world_size=int(file.attrs["world_size"]),
        seed=int(file.attrs["seed"]),
        path=path,
        version=str(file.attrs["hpctrain"]),
        created=str(file.attrs["created"]),
    )


def _read_tensors(group: h5py.Group) -> Tensors:
    tensors = {_from_link(name): data[()] for name, data in group.items()}
    return {name: np.asarray(tensor, tensor.dtype.newbyteorder("=")) for name, tensor in tensors.items()}


def _to_link(name: str) -> str:
    """Return a tensor's name as one HDF5 link: without `/`, and not the `.` that means the group itself."""
    return "%2E" if name == "." else name.replace("%", "%25").replace("/", "%2F")


def _from_link(link: str) -> str:
    return link.replace("%2E", ".").replace("%2F", "/").replace("%25", "%")
