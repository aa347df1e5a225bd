"""`PowerSgd`: matrices as products of two thin ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from hpctrain.compress.base import Allocate, Source, Summable, Summed, chained
from hpctrain.compress.pieces import Tensor, is_encoded
from hpctrain.kernels.compression.low_rank import expand, orthonormalise, project, project_back, refill

SLOT = "power_sgd"


class PowerSgd(Summable):
    """Each matrix M (n, m) as P Q^T with `rank` columns: P = M Q of the Q before, made orthonormal; Q = M^T P.

    A tensor of more axes is a matrix with its last axis as columns.  One that has not more numbers than P and Q is sent
    as it is.
    Source: Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
    optimization", NeurIPS 2019.
    """

    rank: int = Field(4, ge=1, le=64)

    def encodes(self, tensor: Tensor) -> bool:
        """Whether a tensor is encoded: by the common rule, and where P and Q are smaller."""
        return is_encoded(tensor, self.min_size) and self.rank * sum(_matrix(tensor)) < tensor.size

    def summed(self, tensors: Sequence[Tensor], lo: int, hi: int, seed: int, allocate: Allocate) -> Factors:
        """Make what encodes the tensors within [lo, hi), which must hold whole tensors."""
        inside = [tensor for tensor in tensors if lo < tensor.offset + tensor.size and tensor.offset < hi]
        if any(tensor.offset < lo or tensor.offset + tensor.size > hi for tensor in inside):
            raise ValueError("PowerSGD takes whole tensors")
        return Factors(self.rank, inside, seed, allocate)


def _matrix(tensor: Tensor) -> tuple[int, int]:
    """Return rows and columns of a tensor."""
    return tensor.size // tensor.shape[-1], tensor.shape[-1]


class Factors(Summed):
    """Encodes matrices: the first payload is every P, the second every Q."""

    def __init__(self, rank: int, tensors: Sequence[Tensor], seed: int, allocate: Allocate) -> None:
        shapes = [_matrix(tensor) for tensor in tensors]
        self._names = [tensor.name for tensor in tensors]
        self._starts = [tensor.offset for tensor in tensors]
        self._seed = seed
        self.payloads = [allocate(rank * sum(shape[side] for shape in shapes)) for side in (0, 1)]
        self._own = allocate(len(self.payloads[1]))
        self._ps = _thin(self.payloads[0], rank, [n for n, _ in shapes])
        self._qs = _thin(self.payloads[1], rank, [m for _, m in shapes])
        self._own_qs = _thin(self._own, rank, [m for _, m in shapes])

    def fill(self, number: int, source: Source) -> None:
        """Write P, or with the sum of P, made orthonormal, Q."""
        if number == 0:
            for start, p, q in zip(self._starts, self._ps, self._qs, strict=True):
                refill(q, np.uint64(chained(self._seed, start)))
                project(source.values, source.kept, start, np.float32(source.factor), source.mode, q, p)
            return
        matrices = source.values if source.residual is None else source.residual
        for start, p, q in zip(self._starts, self._ps, self._qs, strict=True):
            orthonormalise(p)
            project_back(matrices, start, p, q)
        self._own[:] = self.payloads[1]

    def finish(self, source: Source, out: np.ndarray) -> None:
        """Store P Q^T."""
        for start, p, own, q in zip(self._starts, self._ps, self._own_qs, self._qs, strict=True):
            expand(p, own, q, start, source.mode, source.kept, out)

    def records(self) -> dict[str, np.ndarray]:
        """Return every tensor's Q, as "power_sgd.TENSOR": the next step begins with it."""
        return {f"{SLOT}.{name}": q.reshape(-1) for name, q in zip(self._names, self._qs, strict=True)}


def _thin(buffer: np.ndarray, rank: int, lengths: Sequence[int]) -> list[np.ndarray]:
    """Return views (rank, length), one behind the other."""
    stops = np.cumsum([rank * length for length in lengths])
    pieces = np.split(buffer, stops[:-1]) if lengths else []
    return [piece.reshape(rank, -1) for piece in pieces]
