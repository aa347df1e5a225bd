"""Turns IDX files (the format of MNIST, Fashion-MNIST, EMNIST) into HDF5 files for hpctrain.

    python idx_to_hdf5.py FOLDER [--output DIR]

FOLDER holds the four files of the set, plain or as .gz:

    train-images-idx3-ubyte   train-labels-idx1-ubyte   t10k-images-idx3-ubyte   t10k-labels-idx1-ubyte

(a dot in place of the last dash, "train-images.idx3-ubyte", is taken too).  It writes mnist-train.h5 and mnist-test.h5
beside this script, or in DIR, each with

    images  (rows, height, width, 1) float32, pixel values / 255, channels last
    labels  (rows,) uint8
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import struct
import sys
from pathlib import Path

import h5py
import numpy as np

PARTS = {"train": "train", "test": "t10k"}
# The third byte of an IDX file says what its numbers are; they are big-endian.
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CHUNK_ROWS = 512


def main() -> None:
    """Read the command line and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the four IDX files")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent, help="folder for the files")
    parser.add_argument("--name", default="mnist", help="first part of the files' names (default: mnist)")
    arguments = parser.parse_args()
    try:
        for part, prefix in PARTS.items():
            images = read(find(arguments.folder, f"{prefix}-images", 3))
            labels = read(find(arguments.folder, f"{prefix}-labels", 1))
            path = arguments.output / f"{arguments.name}-{part}.h5"
            write(path, images, labels)
            print(f"{path}: {len(images)} images of {images.shape[1]} x {images.shape[2]}, {labels.max() + 1} classes")
    except (OSError, ValueError) as error:
        sys.exit(f"idx_to_hdf5.py: {error}")


def find(folder: Path, stem: str, axes: int) -> Path:
    """Return the IDX file of this name in the folder, plain or compressed."""
    names = [f"{stem}{dash}idx{axes}-ubyte{ending}" for dash in "-." for ending in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"there is no {names[0]} (or .gz) in {folder}")


def read(path: Path) -> np.ndarray:
    """Return the array of an IDX file; `ValueError` for a file that is not one, or is cut short."""
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        content = file.read()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES:
        raise ValueError(f"{path} is not an IDX file: it begins with {content[:4].hex(' ')}")
    axes = content[3]
    shape = struct.unpack_from(f">{axes}I", content, 4)
    kind = np.dtype(TYPES[content[2]])
    start = 4 + 4 * axes
    if len(content) - start != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{path} should hold {shape} numbers, but has {len(content) - start} bytes of them")
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def write(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Write one part: to a temporary name first, so that a file that is there is whole."""
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images, but {len(labels)} labels: these files do not belong together")
    pixels = (images[..., np.newaxis] / np.float32(255)).astype(np.float32)
    chunk = (min(CHUNK_ROWS, len(pixels)), *pixels.shape[1:])
    temporary = path.with_name(f".{path.name}.part")
    with h5py.File(temporary, "w") as file:
        options = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "track_times": False}
        file.create_dataset("images", data=pixels, chunks=chunk, **options)
        file.create_dataset("labels", data=labels, track_times=False)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
