"""`PartRows`: which rows of a source are a part's examples: tables of what `Split.part_of` says row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.data.sharding import Split, row_range
from hpctrain.kernels.select import BLOCK_WORDS, rank_blocks, select_rows

_BLOCK = 1 << 20  # rows whose parts are worked out at a time; a multiple of 64


def cut_parts(group: Group, split: Split, bounds: np.ndarray, parts: list[int]) -> dict[int, np.ndarray]:
    """Return for each part the example ids at which its chunks begin, (chunks + 1,) int64; collective.

    bounds  (chunks + 1,) int64: chunk c has the rows bounds[c] .. bounds[c + 1] of the source
    Each rank counts in its share of the chunks.
    """
    lo, hi = row_range(len(bounds) - 1, group.rank, group.size)
    counts = np.zeros((hi - lo, max(parts) + 1), np.int64)
    at = lo
    while at < hi:
        end = max(at + 1, int(np.searchsorted(bounds, bounds[at] + _BLOCK, side="right")) - 1)
        end = min(end, hi)
        part = split.part_of(int(bounds[at]), int(bounds[end]))
        inner = bounds[at : end + 1] - bounds[at]
        for code in parts:
            before = np.concatenate([[0], np.cumsum(part == code)])
            counts[at - lo : end - lo, code] = np.diff(before[inner])
        at = end
    found = np.concatenate(group.all_gather_objects(counts))
    return {code: np.concatenate([[0], np.cumsum(found[:, code])]).astype(np.int64) for code in parts}


@dataclass(frozen=True)
class PartRows:
    """The rows of a source that are a part: a bit for each row, and the number of bits set before each 512.

    Where all rows are the part's there are no bits: an example's id is its row.
    """

    bits: np.ndarray
    ranks: np.ndarray

    @classmethod
    def of(cls, split: Split, part: int) -> PartRows:
        """Work the bits out; takes a bit for each row of the source."""
        if split.counts[part] == split.rows:
            return cls(np.empty(0, np.uint64), np.zeros(1, np.int64))
        blocks = -(-split.rows // (64 * BLOCK_WORDS))
        bits, ranks = np.zeros(blocks * BLOCK_WORDS, np.uint64), np.empty(blocks + 1, np.int64)
        into = bits.view(np.uint8)
        for lo in range(0, split.rows, _BLOCK):
            packed = np.packbits(split.part_of(lo, min(lo + _BLOCK, split.rows)) == part, bitorder="little")
            into[lo // 8 : lo // 8 + len(packed)] = packed
        rank_blocks(bits, ranks)
        return cls(bits, ranks)

    def to_rows(self, ids: np.ndarray) -> np.ndarray:
        """Turn example ids (int64) into rows of the source, in place, and return them."""
        if len(self.bits):
            select_rows(self.bits, self.ranks, ids)
        return ids


def part_bytes(rows: int) -> int:
    """Return the memory that `PartRows` takes for a source of so many rows that has several parts."""
    return rows // 8 + rows // 64
