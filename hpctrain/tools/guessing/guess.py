"""`Guess`: what the section `[data]` of a job could be, why, and what else it could be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LARGE = 8  # places along an edge of an image
_MOST_CHANNELS = 4  # of images that may be stored channels first


@dataclass
class Guess:
    """A guess at `[data]`, and what the network needs to know of it.

    data          keys of the section, without `files`
    why           key -> the reason
    others        what else could have been chosen: a line each
    files         of the data, in order; `test_files` where their names say so; `left_out`: name -> why
    rows          number of examples, about
    input_shape   of an example in memory
    target_kind   "class" or "real"; `target_shape` of an example's, () for one label
    classes       largest label + 1, or the number of different texts
    as_real       whether integers are to be taken as numbers, which needs a loss that says so
    """

    data: dict[str, Any]
    why: dict[str, str]
    files: list[str]
    rows: int
    input_shape: tuple[int, ...]
    target_kind: str
    target_shape: tuple[int, ...] = ()
    classes: int | None = None
    as_real: bool = False
    others: list[str] = field(default_factory=list)
    test_files: list[str] = field(default_factory=list)
    validation_files: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    stratify: bool = False  # whether there is one label of few an example
    group: str | None = None  # what says which examples belong together
    parts: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)  # of flat inputs: path and own shape
    input_is: str = ""  # a word for what examples are, where names tell: "image"

    @property
    def target_width(self) -> int:
        """Numbers in one target."""
        width = 1
        for extent in self.target_shape:
            width *= extent
        return width


def is_channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether examples are images whose first axis is much the shortest: that is how PyTorch stores channels."""
    has_axes = len(shape) >= 3 and min(shape[1:]) >= LARGE
    return has_axes and shape[0] <= _MOST_CHANNELS < shape[-1]
