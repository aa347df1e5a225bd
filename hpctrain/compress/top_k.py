"""`TopK`: the largest numbers and their places."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import Field, field_validator

from hpctrain.compress.base import Coder, Source, TwoShot
from hpctrain.compress.pieces import total
from hpctrain.kernels.compression.sparse import LEAST_SAMPLE, SAMPLE, SLACK, STRIPE, decode_top, encode_top

_NO_GAIN = 0.5  # the fraction whose numbers and places take as many bytes as all numbers alone


class TopK(TwoShot):
    """Of each part (a rank's share of the gradients) the fraction `ratio` that is largest; 8 bytes a number sent.

    Source: Aji & Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; Stich et al.,
    "Sparsified SGD with memory", NeurIPS 2018.

    ratio  in (0, 0.5): from a half on, the numbers with their places take more bytes than all the numbers alone
    """

    ratio: float = Field(0.01, gt=0)

    @field_validator("ratio")
    @classmethod
    def _pays(cls, value: float) -> float:
        if value >= _NO_GAIN:
            raise ValueError(f"must be less than {_NO_GAIN}: a number and its place take 8 bytes, not 4")
        return value

    @property
    def unit(self) -> int:
        """Parts are cut at multiples of a cache line."""
        return 16

    def coder(self, pieces: np.ndarray) -> TopCoder:
        """Make what encodes one part."""
        return TopCoder(self.ratio, pieces)


class _Payload(NamedTuple):
    indices: np.ndarray
    numbers: np.ndarray


class TopCoder(Coder):
    """Encodes one part: its largest numbers."""

    def __init__(self, ratio: float, pieces: np.ndarray) -> None:
        self._pieces = pieces
        self._total = total(pieces)
        self._count = min(self._total, max(1, round(ratio * self._total)))
        self.nbytes = 8 * self._count
        room = min(self._total, 2 * self._count + 1024) + SLACK
        self._room = (
            np.zeros(room, np.int32),
            np.zeros(room, np.int32),
            np.zeros(min(max(LEAST_SAMPLE, min(self._total // 64, SAMPLE)), self._total), np.int32),
            np.zeros(STRIPE // 64, np.uint64),
            np.zeros(STRIPE, np.float32),
        )

    def views(self, payload: np.ndarray) -> _Payload:
        """Return indices and numbers."""
        middle = 4 * self._count
        return _Payload(payload[:middle].view(np.int32), payload[middle:].view(np.float32))

    def encode(self, source: Source, views: _Payload) -> None:
        """Write the largest numbers and their places."""
        encode_top(
            source.values,
            source.kept,
            self._pieces,
            self._total,
            np.float32(source.factor),
            source.mode,
            *views,
            *self._room,
        )

    def decode(self, views: _Payload, out: np.ndarray, add: bool) -> None:
        """Store or add the numbers at their places."""
        decode_top(*views, self._pieces, out, add)
