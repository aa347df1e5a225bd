"""The contract of compressions: options, and at work a `Coder` for payloads of two shots or a `Summed` one.

Nothing here communicates: `strategies/reducers/compressed.py` sends what is made here.  There are two kinds:

- Payloads that cannot be added (whole numbers with scales, signs, the largest numbers) go in two shots.  The gradients
  are cut into a part for each rank; each rank encodes every other part and sends it to its owner, who decodes and adds
  them up, encodes the sum again and sends it to all (`TwoShot`).
- Payloads that are float32 numbers and add up (at the same places on every rank, products with the same matrix) are
  summed over the ranks, in one round or several (`Summable`).

Either way averages are taken of what was decoded.  With error feedback what encoding drops stays in the `residual`, as
long as the gradients, and is added to the next gradients: of another rank's part what its owner did not get, of the own
part what the owner of the sum could not send.  Only the sum of the residuals over the ranks matters.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from hpctrain.compress.pieces import Tensor, is_encoded, pieces_within
from hpctrain.kernels.compression.blocks import ADD, FEEDBACK, add_pieces
from hpctrain.memory import aligned_zeros
from hpctrain.options import Part

Allocate = Callable[..., np.ndarray]

_DUMMY = 64  # rows and columns of what kernels are made ready with


def chained(*numbers: int) -> int:
    """Return a key for random numbers, 64 bits, that depends on all the numbers (of 64 bits) and their order."""
    digest = hashlib.blake2b(struct.pack(f"<{len(numbers)}Q", *numbers), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


class Source(NamedTuple):
    """What is to be encoded: factor residual + values, or values where there is no residual.

    values    (n,) float32: the gradients, sums over examples
    residual  (n,) float32, or None without error feedback; gets what encoding drops
    factor    what the residual is multiplied by; it has the units of a mean gradient where values are sums
    add       whether values count; False: the residual alone
    key       of random numbers: from the seed, the step and, where each rank must draw its own, the rank's place
    """

    values: np.ndarray
    residual: np.ndarray | None
    factor: float
    add: bool
    key: int

    @property
    def mode(self) -> int:
        """The bits by which kernels know what to do."""
        return 0 if self.residual is None else FEEDBACK | (ADD if self.add else 0)

    @property
    def kept(self) -> np.ndarray:
        """The residual, or where there is none an array that kernels can take in its place."""
        return self.values if self.residual is None else self.residual


class Compression(Part, ABC):
    """How gradients are encoded: the options of the job's `[strategy.compression]`.

    min_size        tensors with fewer elements than this are sent as they are, and so are those with one axis
    warm_up_steps   so many updates at the beginning send everything as it is: gradients change fastest then
    error_feedback  what encoding drops is added to the next gradients; takes memory as the gradients do
    """

    min_size: int = Field(1024, ge=1)
    warm_up_steps: int = Field(0, ge=0)
    error_feedback: bool = True

    def encodes(self, tensor: Tensor) -> bool:
        """Whether a tensor is encoded; what is not is sent as it is."""
        return is_encoded(tensor, self.min_size)

    @abstractmethod
    def payload_bytes(self, tensors: Sequence[Tensor]) -> int:
        """Return the bytes of a payload of these tensors on one rank, give or take what the cuts into parts add."""

    @abstractmethod
    def memory_bytes(self, tensors: Sequence[Tensor]) -> int:
        """Return the memory that payloads of these tensors take on a rank, the residual left out."""

    @abstractmethod
    def warm_up(self) -> None:
        """Compile the kernels, or load them from the cache."""


class TwoShot(Compression):
    """A compression whose payloads cannot be added."""

    @property
    @abstractmethod
    def unit(self) -> int:
        """Numbers that stand together: a part begins and ends between two of them, or at a tensor's end."""

    @abstractmethod
    def coder(self, pieces: np.ndarray) -> Coder:
        """Make what encodes one part, given by its pieces (`compress.pieces`)."""

    def payload_bytes(self, tensors: Sequence[Tensor]) -> int:
        """Return the bytes of one part with all the tensors in it."""
        return self.coder(pieces_within(tensors, 0, _end(tensors), self.unit)).nbytes

    def memory_bytes(self, tensors: Sequence[Tensor]) -> int:
        """Return the bytes of what is sent, and of what the owner of a part is sent."""
        return 2 * self.payload_bytes(tensors)

    def warm_up(self) -> None:
        """Encode and decode a few numbers."""
        pieces = np.array([(0, _DUMMY, 0)], np.int64)
        coder, values = self.coder(pieces), np.zeros(_DUMMY, np.float32)
        views = coder.views(aligned_zeros(coder.nbytes, np.uint8))
        coder.encode(Source(values, np.zeros_like(values) if self.error_feedback else None, 1.0, True, 0), views)
        coder.decode(views, values, False)
        add_pieces(values, np.zeros_like(values), pieces, np.float32(1))


class Coder(ABC):
    """Encodes and decodes one part.  `nbytes`: the bytes of its payload, always the same."""

    nbytes: int

    @abstractmethod
    def views(self, payload: np.ndarray) -> Any:
        """Return what `encode` and `decode` take for a payload of `nbytes` uint8, 4-byte aligned: views into it."""

    @abstractmethod
    def encode(self, source: Source, views: Any) -> None:
        """Write a payload; with error feedback the residual of the part becomes what it does not say."""

    @abstractmethod
    def decode(self, views: Any, out: np.ndarray, add: bool) -> None:
        """Store in the part of `out` (n,) float32 what a payload says, or add it."""


class Summable(Compression):
    """A compression whose payloads are float32 numbers that are summed over the ranks."""

    @abstractmethod
    def summed(self, tensors: Sequence[Tensor], lo: int, hi: int, seed: int, allocate: Allocate) -> Summed:
        """Make what encodes the tensors that lie within [lo, hi) of the gradients."""

    def payload_bytes(self, tensors: Sequence[Tensor]) -> int:
        """Return the bytes of the payloads of all rounds."""
        made = self.summed(tensors, 0, _end(tensors), 0, aligned_zeros)
        return sum(payload.nbytes for payload in made.payloads)

    def memory_bytes(self, tensors: Sequence[Tensor]) -> int:
        """Return the bytes of the payloads and of what is noted beside them: places, a copy."""
        return 3 * self.payload_bytes(tensors)

    def warm_up(self) -> None:
        """Encode and decode a small tensor."""
        tensor = _Dummy()
        made = self.summed([tensor], 0, tensor.size, 0, aligned_zeros)
        values = np.zeros(tensor.size, np.float32)
        source = Source(values, np.zeros_like(values) if self.error_feedback else None, 1.0, True, 0)
        for number in range(len(made.payloads)):
            made.fill(number, source)
        made.finish(source, values)


class Summed(ABC):
    """Encodes and decodes gradients by payloads that are summed.

    payloads  float32 arrays, one for each round: `fill` writes one, the caller sums it over the ranks, and so on
    """

    payloads: list[np.ndarray]

    @abstractmethod
    def fill(self, number: int, source: Source) -> None:
        """Write the payload of a round; those before have been summed."""

    @abstractmethod
    def finish(self, source: Source, out: np.ndarray) -> None:
        """Store in the encoded parts of `out` the sum over all ranks, once the last payload is summed."""

    def records(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint must hold beside the residual; the same on every rank; the live arrays."""
        return {}


def _end(tensors: Sequence[Tensor]) -> int:
    return max((tensor.offset + tensor.size for tensor in tensors), default=0)


@dataclass(frozen=True)
class _Dummy:
    """A tensor to make kernels ready with."""

    name: str = "dummy"
    offset: int = 0
    shape: tuple[int, ...] = (_DUMMY, _DUMMY)
    size: int = _DUMMY * _DUMMY
