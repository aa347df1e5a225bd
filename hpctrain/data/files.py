"""Which files a job means, and opening one: every way in which that can fail becomes a clear `UserError`."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Sequence
from pathlib import Path

import h5py

from hpctrain.data.manifest import MANIFEST, Manifest
from hpctrain.errors import UserError, nearest

BUILTIN = "builtin:"
ENDINGS = (".h5", ".hdf5", ".nc", ".he5")  # of the files that a folder stands for
_BUILTIN_FOLDER = Path(__file__).parent / "builtin"
# How files of other kinds begin, and what turns them into HDF5.
_CONVERTED = {
    b"CDF": "this is netCDF 3: nccopy -k netCDF-4 OLD.nc NEW.nc makes HDF5 of it",
    b"\x0e\x03\x13\x01": "this is HDF4: h4toh5 makes HDF5 of it",
    b"\x93NUMPY": 'this is a numpy array: h5py writes it to HDF5, file["x"] = numpy.load("x.npy")',
    b"PK\x03\x04": "this is a zip file, as numpy's .npz: write its arrays to HDF5 with h5py",
    b"MATLAB 5.0": "this is a MATLAB file of before 7.3: save it with the option -v7.3",
}
_LISTED = 10  # files in a message
_LOOKED_AT = 1000  # files of a folder, at most, that are opened to see what they are


def expand(
    files: str | list[str], base: str | os.PathLike[str], exclude: Sequence[str] = (), lazy: bool = False
) -> list[str]:
    """Return the absolute paths that `data.files` names: a path, a glob pattern, "builtin:NAME", or a list of these.

    A folder with a manifest of shards in it stands for its shards, in the order of their rows; any other folder for the
    HDF5 files in it.  Relative paths start at `base` (the job file's folder).  The files of a pattern or a folder come
    in the order of their names, the entries of a list in the order of the list: that is the order of the rows.

    exclude  patterns of names of files that are left out; with a "/" in it, a pattern is of the end of their paths
    lazy     look at the first file only; the others are looked at when they are read

    Raises `UserError` where a file is missing, a pattern matches nothing, or something is not a readable HDF5 file.
    """
    paths = [path for entry in ([files] if isinstance(files, str) else files) for path in _expand_one(entry, base)]
    if not paths:
        raise UserError("data.files names no file", allowed="a path, a glob pattern, or a list of these")
    kept = [path for path in paths if not any(_fits(path, pattern) for pattern in exclude)]
    if not kept:
        raise UserError(
            "data.exclude leaves out all files",
            found=f"data.exclude = {', '.join(map(repr, exclude))}; files: {_some(paths)}",
        )
    seen: dict[object, str] = {}
    for number, path in enumerate(kept):
        if not lazy or number == 0:
            check_file(path)
        if (key := path if lazy else identity(path)) in seen:
            first = seen[key]
            raise UserError(
                "data.files names a file twice, so its rows would count twice",
                found=path if path == first else f"{path} is the same file as {first}",
            )
        seen[key] = path
    return kept


def _fits(path: str, pattern: str) -> bool:
    """Return whether a path fits a pattern of names, or with a "/" in it one of the ends of paths."""
    if "/" in pattern:
        return fnmatch.fnmatchcase(path, pattern if pattern.startswith("/") else f"*/{pattern}")
    return fnmatch.fnmatchcase(os.path.basename(path), pattern)


def _some(paths: list[str]) -> str:
    """Return the names of some files, for a message."""
    names = [os.path.basename(path) for path in paths]
    return ", ".join([*names[:_LISTED], f"... and {len(names) - _LISTED} more"] if len(names) > _LISTED else names)


def identity(path: str) -> object:
    """Return a key that is equal for two paths of one file, be they the same, symbolic links or hard links."""
    status = os.stat(path)
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def _expand_one(entry: str, base: Path) -> list[str]:
    if entry.startswith(BUILTIN):
        known = sorted(path.stem for path in _BUILTIN_FOLDER.glob("*.h5"))
        name = entry.removeprefix(BUILTIN)
        if name not in known:
            raise UserError(f"unknown built-in data set {name!r}", allowed=[BUILTIN + name for name in known])
        return [str(_BUILTIN_FOLDER / f"{name}.h5")]
    path = os.path.abspath(os.path.join(base, os.path.expanduser(entry)))
    if os.path.isfile(os.path.join(path, MANIFEST)):
        return _shards(Manifest.load(path))
    if os.path.isdir(path):
        return _in_folder(path)
    if os.path.exists(path) or not glob.has_magic(entry):
        return [path]
    # Folders that are there by just this name are no patterns, whatever characters they have.
    found = _matches(_escaped_folder(path)) or _matches(path)
    if not found:
        raise _no_match(entry, path)
    return found


def _matches(pattern: str) -> list[str]:
    return sorted(match for match in glob.glob(pattern, recursive=True) if not os.path.isdir(match))


def _escaped_folder(path: str) -> str:
    """Return a pattern whose first folders, as far as they are there, stand for themselves."""
    folder = Path(path).parent
    while not folder.is_dir():
        folder = folder.parent
    return os.path.join(glob.escape(str(folder)), os.path.relpath(path, folder))


def _in_folder(path: str) -> list[str]:
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(ENDINGS) and entry.name[0] != ".")
    if not names:
        raise UserError(
            f"data.files names a folder without HDF5 files: {path}",
            allowed=f"files that end in {', '.join(ENDINGS)}",
            hint=f'files with other endings are named by a pattern, for example "{os.path.join(path, "*.dat")}"',
        )
    return [os.path.join(path, name) for name in names]


def _shards(manifest: Manifest) -> list[str]:
    for index in range(len(manifest.shards)):
        manifest.check_size(index)
    return manifest.files


def _no_match(entry: str, path: str) -> UserError:
    folder = Path(path)
    while glob.has_magic(str(folder)) and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return UserError(f"no file matches {entry!r}", found=f"there is no folder {folder}", hint="check the pattern")
    escaped, hint = entry.replace("[", "[[]"), "check the pattern"
    if escaped != entry and _matches(path.replace("[", "[[]")):
        hint = f"in a pattern, brackets mean one of the characters in them; to mean themselves, write {escaped!r}"
    files = [file.name for file in sorted(folder.iterdir())[:_LOOKED_AT] if file.is_file() and h5py.is_hdf5(file)]
    if len(files) > _LISTED:
        files[_LISTED:] = [f"... and {len(files) - _LISTED} more"]
    there = f"the HDF5 files in {folder} are {', '.join(files)}" if files else f"there is no HDF5 file in {folder}"
    return UserError(f"no file matches {entry!r}", found=there, hint=hint)


def check_file(path: str) -> None:
    """Raise a `UserError` unless the path is a readable, nonempty HDF5 file."""
    if not os.path.exists(path):
        folder, name = os.path.split(os.path.abspath(path))
        hint = "in a job file, relative paths start at the job file's folder; on the command line, at the current one"
        if not os.path.isdir(folder):
            found = f"there is no folder {folder}"
            if os.path.islink(folder):
                found = f"{folder} is a symbolic link to {os.readlink(folder)}, which is not there"
            raise UserError(f"data file not found: {path}", found=found, hint=hint)
        if os.path.islink(path):
            raise UserError(
                f"data file not found: {path}",
                found=f"it is a symbolic link to {os.readlink(path)}, which is not there",
                hint="put the file back there, or make the link anew (ln -sfn); rm takes it away",
            )
        # Compared without their endings, which make all names alike; of several files with one stem, HDF5 files count.
        others = sorted(os.listdir(folder), key=lambda other: (other.endswith((".h5", ".hdf5")), other))
        stems = {Path(other).stem: other for other in others if other != name}
        guess = stems.get(nearest(Path(name).stem, stems, cutoff=0.7))
        raise UserError(f"data file not found: {path}", hint=f"did you mean {guess!r}?" if guess else hint)
    if os.path.isdir(path):
        raise UserError(f"a folder is no data file: {path}", allowed="a file, or data.files = the folder of the files")
    if not os.access(path, os.R_OK):
        raise UserError(f"no permission to read {path}", hint="check the file's owner and mode (ls -l)")
    if os.path.getsize(path) == 0:
        raise UserError(f"the data file is empty (0 bytes): {path}", hint="write or copy it again")
    if not h5py.is_hdf5(path):
        with open(path, "rb") as file:
            start = file.read(16)
        raise UserError(
            f"not an HDF5 file: {path}",
            found=f"it starts with {start!r}",
            allowed="a file written by HDF5 (h5py, MATLAB v7.3, netCDF-4, ...)",
            hint=next((hint for magic, hint in _CONVERTED.items() if start.startswith(magic)), None),
        )


def open_file(path: str, cache_bytes: int = 1 << 20) -> h5py.File:
    """Open an HDF5 file for reading; `cache_bytes` is the size of the cache of decoded chunks, for each dataset.

    A file system without locks is no obstacle; HDF5_USE_FILE_LOCKING in the environment has the last word.  Raises
    `UserError` for what `check_file` finds, a truncated file, or one that is open for writing elsewhere.
    """
    check_file(path)
    try:
        return h5py.File(path, "r", locking="best-effort", rdcc_nbytes=cache_bytes)
    except OSError as error:
        text = str(error)
        if "already open for write" in text or "already open for SWMR write" in text:
            raise UserError(
                f"the HDF5 file was not closed by what writes it: {path}",
                found="its header says that it is open for writing: something writes to it now, or died while it did",
                hint="wait until the writer is done; if it died, see what is there after: h5clear -s " + path,
            ) from None
        if "truncated" in text:
            raise UserError(
                f"the HDF5 file is cut off: {path}",
                found=f"{os.path.getsize(path)} bytes, fewer than its header says",
                hint="copy or write it again",
            ) from None
        if "lock" in text:
            raise UserError(
                f"the HDF5 file is locked: {path}",
                found="another process has it open for writing",
                hint="close it there; or set HDF5_USE_FILE_LOCKING=FALSE if you know that nobody writes to it",
            ) from None
        raise UserError(f"HDF5 cannot open {path}", found=text, hint="the file may be damaged") from None
