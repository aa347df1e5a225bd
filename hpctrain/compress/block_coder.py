"""Compressions that encode blocks of numbers, each block with a scale of its own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, NamedTuple

import numpy as np
import pydantic
from pydantic import Field

from hpctrain.compress.base import Coder, Source, TwoShot
from hpctrain.compress.pieces import units
from hpctrain.kernels.compression.blocks import CODE_BITS, STOCHASTIC, decode_blocks, encode_blocks


def _whole_vectors(block: int) -> int:
    if block % 32:
        raise ValueError("must be a multiple of 32")
    return block


Block = Annotated[int, Field(ge=32, le=65536), pydantic.AfterValidator(_whole_vectors)]


class Blocks(TwoShot):
    """A payload is a scale (float32) for each block, and then the numbers' codes."""

    @property
    @abstractmethod
    def kind(self) -> int:
        """One of those in `kernels.compression.blocks`."""

    @property
    def unit(self) -> int:
        """A block."""
        return getattr(self, "block", 256)

    @property
    def is_stochastic(self) -> bool:
        """Whether rounding is by chance."""
        return getattr(self, "stochastic", False)

    def coder(self, pieces: np.ndarray) -> BlockCoder:
        """Make what encodes one part."""
        return BlockCoder(self.kind, self.unit, self.is_stochastic, pieces)


class _Payload(NamedTuple):
    codes: np.ndarray
    scales: np.ndarray


class BlockCoder(Coder):
    """Encodes one part, block by block."""

    def __init__(self, kind: int, block: int, is_stochastic: bool, pieces: np.ndarray) -> None:
        self._kind = kind
        self._pieces = pieces
        self._rounding = STOCHASTIC if is_stochastic else 0
        self._scratch = np.zeros(block, np.float32)
        blocks = units(pieces, block)
        self._scale_bytes = 4 * blocks
        self.nbytes = self._scale_bytes + blocks * block * CODE_BITS[kind] // 8

    def views(self, payload: np.ndarray) -> _Payload:
        """Return codes and scales."""
        return _Payload(payload[self._scale_bytes :], payload[: self._scale_bytes].view(np.float32))

    def encode(self, source: Source, views: _Payload) -> None:
        """Write codes and scales."""
        encode_blocks(
            self._kind,
            source.values,
            source.kept,
            self._pieces,
            np.float32(source.factor),
            source.mode | self._rounding,
            np.uint32(source.key),
            views.codes,
            views.scales,
            self._scratch,
        )

    def decode(self, views: _Payload, out: np.ndarray, add: bool) -> None:
        """Store or add codes times scales."""
        decode_blocks(self._kind, views.codes, views.scales, self._pieces, out, add, self._scratch)
