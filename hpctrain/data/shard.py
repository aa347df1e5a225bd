"""`Shard`: how this rank gets at the rows of one part of the data; `MemoryShard`: it has its share of them in memory.

Others are in `stream` (read again in every epoch, a pool of chunks at a time) and in `mapped` (read where they stand in
the files).  All give the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hpctrain.batch import Batch
from hpctrain.data.exchange import ExchangeFeed, Feed, Held, OwnFeed, Steps
from hpctrain.data.format import RowFormat
from hpctrain.data.order import Chunks
from hpctrain.data.ways import Ways

Weigh = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(targets, weight) -> weight, both flat or both (rows, positions)."""


class Shard(ABC):
    """One part of the data (training, validation or test), as this rank sees it.

    format  what a row looks like
    cuts    (chunks + 1,) int64: chunk c of the part has the examples cuts[c] .. cuts[c + 1]; None where nothing needs
            chunks.  An example's id is its index within the part in file order, the same at every world size.
    """

    format: RowFormat
    cuts: np.ndarray | None

    @property
    def window_bytes(self) -> int | None:
        """Bytes of a window over all ranks at most, where the shard has a say in it."""
        return None

    @property
    @abstractmethod
    def total(self) -> int:
        """Rows of the part over all ranks."""

    @abstractmethod
    def weighed(self, weigh: Weigh) -> Shard:
        """Return the same rows with other weights."""

    @abstractmethod
    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield the rows that this rank judges, in order, at most `rows` at a time; step and epoch say nothing.

        Every row is judged by one rank.  Ranks need not have the same number of batches, but all make the call.
        """

    @abstractmethod
    def feed(self, steps: Steps, chunks: Chunks | None) -> Feed:
        """Return what training takes its rows from; `chunks` are those of the order, where it goes by chunks."""

    def own_feed(self, steps: Steps) -> OwnFeed:
        """Return the rows that this rank holds, without any from other ranks."""
        raise TypeError("this rank holds no rows of its own")

    def warm_up(self) -> None:  # noqa: B027 - most need none
        """Compile or load the kernels that this shard needs; no communication, no file."""

    def close(self) -> None:  # noqa: B027 - most have none
        """Give back files and threads."""


@dataclass(frozen=True)
class Pieces:
    """Who holds the pieces of a part.

    owners  (pieces,) int64: the rank that holds a piece
    bases   (pieces,) int64: the row of that rank's arrays at which it begins
    ids     (rows,) int64: the example ids of this rank's rows
    """

    owners: np.ndarray
    bases: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True)
class MemoryShard(Shard):
    """This rank's rows of one part, in memory; there may be none.

    inputs   (rows, *input_shape) float32
    targets  (rows,) or (rows, positions) int64 class labels, or (rows, target_width) float32
    starts   (size + 1,) int64: rank r holds the part's examples starts[r] .. starts[r + 1]
    first    id of this rank's first row
    weight   (rows, format.weight_words) float32: stored weights; None where the format has none
    pieces   where ranks hold several pieces, in any order: `starts` is about the pieces then
    """

    format: RowFormat
    inputs: np.ndarray
    targets: np.ndarray
    starts: np.ndarray
    first: int
    weight: np.ndarray | None = None
    cuts: np.ndarray | None = None
    pieces: Pieces | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def total(self) -> int:
        """Rows of the part over all ranks."""
        return int(self.starts[-1])

    @property
    def stored_weight(self) -> np.ndarray:
        """The stored weights, an array without columns where there are none."""
        return np.empty((len(self), 0), np.float32) if self.weight is None else self.weight

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's rows."""
        return self.inputs.nbytes + self.targets.nbytes + self.stored_weight.nbytes

    def weighed(self, weigh: Weigh) -> MemoryShard:
        """Return the same rows with other weights; see `Weigh`."""
        form, weight = weighed_rows(self.format, self.targets, self.stored_weight, weigh)
        return replace(self, format=form, weight=weight)

    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield the rows that this rank holds; the arrays are views."""
        for lo in range(0, len(self), rows):
            hi = min(lo + rows, len(self))
            ids = self.pieces.ids[lo:hi] if self.pieces else np.arange(self.first + lo, self.first + hi)
            weight = self.format.full_weight(hi - lo)
            self.format.spread(self.stored_weight[lo:hi], weight)
            yield Batch(self.inputs[lo:hi], self.targets[lo:hi], weight, ids, step=0, epoch=0)

    def feed(self, steps: Steps, chunks: Chunks | None) -> Feed:
        """Return rows that are exchanged between the ranks."""
        words = self.format.words(self.inputs, self.targets, self.stored_weight)
        count = len(self.starts) - 1
        owners, bases = np.arange(count), np.zeros(count, np.int64)
        if self.pieces is not None:
            owners, bases = self.pieces.owners, self.pieces.bases
        return ExchangeFeed.of(steps, Held(words, self.starts, owners, bases))

    def own_feed(self, steps: Steps) -> OwnFeed:
        """Return the rows that this rank holds."""
        words = self.format.words(self.inputs, self.targets, self.stored_weight)
        ids, sizes = np.arange(self.first, self.first + len(self)), np.diff(self.starts)
        owners = np.arange(len(sizes))
        if self.pieces is not None:
            ids, owners = self.pieces.ids, self.pieces.owners
        held = np.zeros(steps.group.size, np.int64)
        np.add.at(held, owners, sizes)
        return OwnFeed.of(steps, words, ids, held.tolist())


def weighed_format(form: RowFormat) -> RowFormat:
    """Return the format of rows with a weight for each position."""
    return replace(form, weight_shape=form.position_shape)


def weighed_rows(
    form: RowFormat, targets: np.ndarray, stored: np.ndarray, weigh: Weigh
) -> tuple[RowFormat, np.ndarray]:
    """Return the format of rows that are weighed anew, and their weights, (rows, positions) float32."""
    weight = form.full_weight(len(targets))
    form.spread(stored, weight)
    weight = np.ascontiguousarray(weigh(targets, weight), np.float32)
    return weighed_format(form), weight.reshape(len(targets), form.positions)


@dataclass(frozen=True)
class Dataset:
    """This rank's shards of all parts; None where the job has no such part."""

    train: Shard
    validation: Shard | None = None
    test: Shard | None = None
    ways: Ways | None = None  # how they were chosen
    dropped: Mapping[str, int] = field(default_factory=dict)  # part -> examples of it that are known not to count

    def close(self) -> None:
        """Give back files and threads."""
        for shard in (self.train, self.validation, self.test):
            if shard is not None:
                shard.close()
