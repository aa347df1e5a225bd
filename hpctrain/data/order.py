"""`EpochOrder`: which example stands at which position of an epoch.  Arithmetic from seed and epoch; no files.

"global" is a permutation of all examples that needs no index.  "chunks" takes the chunks in random order, cuts that
order into pools of about so many examples, and mixes within a pool; a position is then found from a table of the
chunks.  Neither knows the world size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hpctrain.data.sharding import permutation
from hpctrain.errors import UserError
from hpctrain.kernels.chunks import cut_pools, pooled_ids

SHUFFLES = ("global", "chunks", "local", "none")

_SHUFFLE_STREAM, _CHUNK_STREAM, _MIX_STREAM, _LOCAL_STREAM = (
    1,
    3,
    4,
    5,
)  # keep the permutations of a seed independent; 2: the split
_MASK64 = 2**64 - 1


@dataclass(frozen=True)
class Chunks:
    """How a part is cut into chunks, and how many examples make a pool.

    firsts     (chunks + 1,) int64: chunk c has the examples firsts[c] .. firsts[c + 1], in file order; it may have none
    pool_rows  examples of a pool, at least
    """

    firsts: np.ndarray
    pool_rows: int

    def __len__(self) -> int:
        return len(self.firsts) - 1

    @property
    def largest(self) -> int:
        """Examples of the largest chunk."""
        return int(np.diff(self.firsts).max(initial=0))

    @property
    def most(self) -> int:
        """Examples of a pool, at most."""
        return min(self.pool_rows + self.largest - 1, int(self.firsts[-1]))


@dataclass(frozen=True)
class Pools:
    """The chunks of an epoch in order, cut into pools.

    order   (chunks,) int64: chunk numbers
    starts  (chunks + 1,) int64: the position at which the k-th chunk of the order begins
    cuts    (pools + 1,) int64: pool j has the chunks order[cuts[j]] .. order[cuts[j + 1] - 1]
    """

    order: np.ndarray
    starts: np.ndarray
    cuts: np.ndarray

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def chunks(self, pool: int) -> np.ndarray:
        """Return the numbers of a pool's chunks."""
        return self.order[self.cuts[pool] : self.cuts[pool + 1]]

    def end(self, pool: int) -> int:
        """Return the position behind a pool's last example."""
        return int(self.starts[self.cuts[pool + 1]])


@dataclass(frozen=True)
class EpochOrder:
    """The order of an epoch: which example stands at which position.

    shuffle = "global" is a pseudo-random permutation of [0, count) that depends on seed and epoch alone, "none" is the
    order of the file, "chunks" the order described above, which needs `chunks`.  Given them, "none" has `pools` too,
    for those who read chunks.  "local" is a permutation of the `count` rows that a rank holds: its own for every rank.
    """

    count: int
    seed: int
    epoch: int
    shuffle: str = "global"
    chunks: Chunks | None = None
    rank: int = 0
    pools: Pools | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.shuffle not in SHUFFLES:
            raise UserError("unknown data.shuffle", found=repr(self.shuffle), allowed=SHUFFLES)
        if self.shuffle in ("global", "local"):
            return
        if self.chunks is not None:
            object.__setattr__(self, "pools", self._cut(self.chunks))
        elif self.shuffle == "chunks":
            raise ValueError('the order "chunks" needs to know the chunks')

    def _cut(self, chunks: Chunks) -> Pools:
        count = len(chunks)
        order = np.arange(count)
        if self.shuffle == "chunks":
            permutation(self.seed, _CHUNK_STREAM, self.epoch, count, 0, count, order)
        starts, cuts = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
        pools = cut_pools(order, chunks.firsts, chunks.pool_rows, starts, cuts)
        return Pools(order, starts, cuts[: pools + 1])

    def ids(self, lo: int, hi: int) -> np.ndarray:
        """Return the example ids (int64) at the positions lo..hi."""
        return self.fill(lo, np.empty(hi - lo, np.int64))

    def fill(self, lo: int, out: np.ndarray) -> np.ndarray:
        """Store the example ids at the positions lo, lo + 1, ... into `out` (int64) and return it."""
        if self.shuffle == "none":
            out[:] = 1
            out[:1] = lo
            return np.cumsum(out, out=out)  # as np.arange, which would make an array each time
        if self.shuffle == "global":
            return permutation(self.seed, _SHUFFLE_STREAM, self.epoch, self.count, lo, lo + len(out), out)
        if self.shuffle == "local":
            number = (self.epoch << 24) + self.rank
            return permutation(self.seed, _LOCAL_STREAM, number, self.count, lo, lo + len(out), out)
        pools, seed = self.pools, np.uint64(self.seed & _MASK64)
        table = (pools.order, self.chunks.firsts, pools.starts, pools.cuts, len(pools))
        pooled_ids(seed, _MIX_STREAM, self.epoch, *table, lo, out)
        return out
