"""Turns a text into HDF5 files for a character-level language model, and says how well a bigram model predicts it.

    python text_to_hdf5.py [--text FILE ...] [--length 64] [--output DIR]

The default text ships with Python: its language reference (pydoc_data.topics).  It writes text-train.h5 and
text-validation.h5 (the last tenth of the text) beside this script, each with

    tokens  (rows, length) uint8, numbers of characters; attribute `characters`: which number is which
    next    (rows, length) uint8, the character that follows each

Characters are newline and the 95 printable ones of ASCII, 96 in all; others become "?".  The bigram model predicts the
next character from the present one alone, by their frequencies in the training part (plus one, so that what never
happened has a chance).  A network that learns anything must fall well under its loss.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import h5py
import numpy as np

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))


def main() -> None:
    """Read the command line and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", help="text files (default: Python's language reference)")
    parser.add_argument("--length", type=int, default=64, help="characters of an example (default: 64)")
    parser.add_argument("--validation", type=float, default=0.1, help="part of the text, its end (default: 0.1)")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent, help="folder for the files")
    arguments = parser.parse_args()
    if not arguments.output.is_dir():
        sys.exit(f"there is no folder {arguments.output}")
    tokens = numbers(read(arguments.text))
    cut = round(len(tokens) * (1 - arguments.validation))
    parts = {"train": tokens[:cut], "validation": tokens[cut:]}
    losses = baselines(parts["train"], parts["validation"])
    for part, stream in parts.items():
        if len(stream) <= arguments.length:
            sys.exit(f"the {part} part has {len(stream)} characters: too few for examples of {arguments.length}")
        path = arguments.output / f"text-{part}.h5"
        rows = write(path, stream, arguments.length, losses)
        print(f"{path}: {rows} examples of {arguments.length} characters")
    for name, loss in losses.items():
        print(f"validation loss of a {name} model: {loss:.3f} nats a character (perplexity {np.exp(loss):.2f})")


def read(files: list[Path] | None) -> str:
    """Return the text of the files one after another; without files, the text that ships with Python."""
    if files:
        return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def numbers(text: str) -> np.ndarray:
    """Return the numbers (uint8) of a text's characters; what is not among `CHARACTERS` becomes "?"."""
    table = np.full(128, CHARACTERS.index("?"), np.uint8)
    table[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))
    codes = np.frombuffer(text.replace("\t", "    ").encode("ascii", errors="replace"), np.uint8)
    return table[codes]


def baselines(train: np.ndarray, validation: np.ndarray) -> dict[str, float]:
    """Return the mean cross-entropy (nats) of the validation part under models of character frequencies."""
    count = len(CHARACTERS)
    pairs = np.bincount(train[:-1].astype(np.int64) * count + train[1:], minlength=count**2).reshape(count, count) + 1.0
    present, following = validation[:-1], validation[1:]
    single = pairs.sum(axis=0)
    bigram = np.log(pairs / pairs.sum(axis=1, keepdims=True))[present, following]
    return {
        "unigram": float(-np.log(single / single.sum())[following].mean()),
        "bigram": float(-bigram.mean()),
    }


def write(path: Path, stream: np.ndarray, length: int, losses: dict[str, float]) -> int:
    """Cut a stream of numbers into examples and write them; return how many.  A last short piece is left out."""
    rows = (len(stream) - 1) // length
    temporary = path.with_name(f".{path.name}.part")
    with h5py.File(temporary, "w") as file:
        file.attrs.update({f"{name}_loss": loss for name, loss in losses.items()})
        for name, shift in (("tokens", 0), ("next", 1)):
            values = stream[shift : shift + rows * length].reshape(rows, length)
            file.create_dataset(name, data=values, track_times=False).attrs["characters"] = CHARACTERS
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return rows


if __name__ == "__main__":
    main()
