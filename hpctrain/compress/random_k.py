"""`RandomK`: numbers at places that are chosen by chance, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from hpctrain.compress.base import Allocate, Source, Summable, Summed
from hpctrain.compress.pieces import Tensor, pieces_within, total
from hpctrain.kernels.compression.sparse import decode_places, encode_places, places


class RandomK(Summable):
    """One number of each 1 / `ratio`, at a place drawn from seed and step: no places are sent, and payloads add up.

    Without error feedback what arrives is divided by `ratio`, so that its mean over many steps is right.
    Source: Stich et al., "Sparsified SGD with memory", NeurIPS 2018; Wangni et al., "Gradient sparsification for
    communication-efficient distributed optimization", NeurIPS 2018.
    """

    ratio: float = Field(0.1, gt=0, le=1)

    def summed(self, tensors: Sequence[Tensor], lo: int, hi: int, seed: int, allocate: Allocate) -> RandomPlaces:
        """Make what encodes the tensors within [lo, hi)."""
        return RandomPlaces(self.ratio, pieces_within(tensors, lo, hi), allocate)


class RandomPlaces(Summed):
    """Encodes gradients: one number of each near-even part."""

    def __init__(self, ratio: float, pieces: np.ndarray, allocate: Allocate) -> None:
        self._pieces = pieces
        self._total = total(pieces)
        count = min(self._total, max(1, round(ratio * self._total)))
        self._chosen = np.zeros(count, np.int64)
        self.payloads = [allocate(count)]

    def fill(self, number: int, source: Source) -> None:
        """Write the numbers at this step's places."""
        places(self._pieces, self._total, np.uint64(source.key), self._chosen)
        factor = np.float32(source.factor)
        encode_places(source.values, source.kept, self._pieces, factor, source.mode, self._chosen, self.payloads[0])

    def finish(self, source: Source, out: np.ndarray) -> None:
        """Store the sums at their places, and 0 elsewhere."""
        scale = 1.0 if source.residual is not None else self._total / max(1, len(self._chosen))
        decode_places(self._chosen, self.payloads[0], self._pieces, np.float32(scale), out)
