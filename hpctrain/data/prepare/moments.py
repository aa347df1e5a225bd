"""The moments of columns over blocks of rows: of one, and of many, merged in the same order at every world size.

Blocks are numbered in file order.  Two neighbours, 2k and 2k + 1, are merged into one of the next level, and so on: a
tree over the numbers of the blocks, which does not know who computed which of them.
"""

from __future__ import annotations

import numpy as np

from hpctrain.data.prepare.base import Moments
from hpctrain.kernels.statistics import COUNT, LOW, MAXIMUM, MEAN, MINIMUM, SQUARES, block_moments, merge_moments

ROWS = 6  # of an array of moments, see `kernels/statistics.py`
_LINE = 256  # columns that are summed side by side, at least: few columns are taken several times


def moments_of(values: np.ndarray) -> np.ndarray:
    """Return the moments (6, columns) of float64 values (n, columns), C-contiguous."""
    columns = values.shape[1]
    times = max(1, _LINE // columns)
    wide = np.empty((ROWS, columns * times))
    block_moments(values.reshape(-1), *wide)
    if times == 1:
        return wide
    pieces = np.ascontiguousarray(wide.reshape(ROWS, times, columns).swapaxes(0, 1))
    for piece in pieces[1:]:
        merge_moments(pieces[0], piece)
    return pieces[0].copy()


def finished(moments: np.ndarray) -> Moments:
    """Return statistics from moments (6, columns)."""
    std = np.sqrt(moments[SQUARES] / np.maximum(moments[COUNT], 1.0))
    return Moments(moments[COUNT], moments[MEAN] + moments[LOW], std, moments[MINIMUM], moments[MAXIMUM])


class Tree:
    """Moments of blocks that come in order; kept are only those that still wait for a neighbour.

    nodes  (level, number, moments): blocks number * 2^level up to (number + 1) * 2^level
    """

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int, np.ndarray]] = []

    def add(self, level: int, number: int, moments: np.ndarray) -> None:
        """Add the next node, of blocks behind all others, and merge what has become complete."""
        self.nodes.append((level, number, moments))
        while len(self.nodes) > 1:
            (left_level, left, into), (level, right, other) = self.nodes[-2:]
            if left_level != level or left % 2 or right != left + 1:
                return
            merge_moments(into, other)
            self.nodes[-2:] = [(level + 1, left // 2, into)]

    def total(self) -> np.ndarray:
        """Return the moments of all blocks, the first of which must be block 0."""
        whole = self.nodes[0][2].copy()
        for _, _, moments in self.nodes[1:]:
            merge_moments(whole, moments)
        return whole
