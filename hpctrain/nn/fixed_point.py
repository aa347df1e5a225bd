"""`FixedPoint`: a model's sums over the examples as whole numbers, the same whatever order they are added in.

The global batch is cut into *lanes*, micro-batches of a fixed number of rows, the same at every world size; a rank
works on whole lanes.  What is summed over rows is summed within a lane in float32, rounded to fixed point, and added up
over lanes and ranks as int32.  The units are those of exponents that are known before (see `kernels.fixed_point`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpctrain.kernels.fixed_point import BLOCK, fit_exponents, to_floats
from hpctrain.nn.flat import ALIGN, CHECKPOINT, LOSS, ROWS, STOP, TAIL, WEIGHT, Layout

MOST_LANES = 4096  # beyond, too few of an int32's digits are left for a lane
_FLAGS = (STOP, CHECKPOINT, ROWS)  # of the tail, whole numbers


@dataclass(frozen=True)
class Lanes:
    """How a global batch is cut: at most `count` lanes of `rows` rows, the last of which may have less."""

    count: int
    rows: int


class FixedPoint:
    """What stands in a gradient buffer of float32 as int32, while it is summed.

    The buffer is the gradients, the sums for running statistics, `slots` and the tail.  The slots are the lanes' own:
    nobody else writes there, so that a sum over the ranks hands them round as they are.

    numbers    int32: the whole buffer
    sums       (tensors,) of int32, gradients and statistics: `numbers` without slots and tail
    exponents  (tensors,) int32: each tensor's numbers are less than two to this in size
    scales     (tensors,) float32: what numbers are multiplied by, before they are rounded
    rows       of a lane
    losses     (lanes,) float64: each lane's sum of losses
    largest    (lanes, tensors) int32: bits of the largest size in a lane's share of each tensor; what a rank finds in
               several lanes may stand at any one of them
    totals     loss, weight (float64) and rows of the last step over all ranks, in the order of the lanes
    """

    def __init__(self, layout: Layout, state_layout: Layout, cut: Lanes, buffer: np.ndarray) -> None:
        """Take a float32 buffer of `layout.size + state_layout.size + slots + TAIL`."""
        tensors = [(slot.offset, slot.stop) for slot in layout]
        tensors += [(layout.size + slot.offset, layout.size + slot.stop) for slot in state_layout]
        self.starts, self.stops = np.array(tensors, np.int64).reshape(-1, 2).T.copy()
        lanes, self.rows = cut.count, cut.rows
        self._digits = 30 - max(0, lanes - 1).bit_length()
        summed = layout.size + state_layout.size
        self.numbers = buffer.view(np.int32)
        self.sums = self.numbers[:summed]
        self._floats, self._slots = buffer[:summed], self.numbers[summed:-TAIL]
        self._tail, self._whole_tail = buffer[-TAIL:], self.numbers[-TAIL:]
        self.losses, self._weights = self._slots[: 4 * lanes].view(np.float64).reshape(2, lanes)
        self.largest = self._slots[4 * lanes :][: lanes * len(tensors)].reshape(lanes, len(tensors))
        self.exponents = np.zeros(len(tensors), np.int32)
        self.scales = np.ones(len(tensors), np.float32)
        self._factors = np.ones(len(tensors), np.float32)
        self._scratch = np.empty(BLOCK, np.float32)
        self.totals = (0.0, 0.0, 0)
        self.load(self.exponents)

    @staticmethod
    def slots(layout: Layout, state_layout: Layout, lanes: int) -> int:
        """Return how many floats the slots take of the buffer."""
        words = lanes * (4 + len(layout) + len(state_layout))
        return -(-words // ALIGN) * ALIGN

    def load(self, exponents: np.ndarray) -> None:
        """Take exponents over, from a checkpoint."""
        self.exponents[:] = exponents
        self.scales[:] = np.ldexp(1.0, self._digits - self.exponents)

    def begin(self) -> None:
        """Begin a step's sums: no lane has given anything yet."""
        self._slots[:] = 0

    def note(self, lane: int, weight: float) -> None:
        """Note a lane's sum of weights."""
        self._weights[lane] = weight

    def close(self) -> None:
        """Make the buffer ready to be added up over the ranks: the tail, too, in whole numbers."""
        for place in _FLAGS:
            self._whole_tail[place] = int(self._tail[place])
        self._whole_tail[WEIGHT] = self._whole_tail[LOSS] = 0

    def settle(self) -> bool:
        """Turn the buffer, added up over the ranks, back into float32, and return True.

        False: numbers did not fit their exponents, which are now set right, and the lanes have to be summed again.  The
        answer is the same on every rank.
        """
        if not fit_exponents(self.largest, self.exponents, self._digits, self.scales, self._factors):
            return False
        to_floats(self.sums, self.starts, self.stops, self._factors, self._floats, self._scratch)
        loss, weight = float(self.losses.sum()), float(self._weights.sum())
        self.totals = loss, weight, int(self._whole_tail[ROWS])
        for place in _FLAGS:
            self._tail[place] = self._whole_tail[place]
        with np.errstate(over="ignore"):
            self._tail[LOSS], self._tail[WEIGHT] = loss, weight
        return True

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the cache, and change nothing."""
        whole, real = np.zeros(1, np.int32), np.zeros(1, np.float32)
        starts, stops = np.zeros(1, np.int64), np.ones(1, np.int64)
        fit_exponents(whole.reshape(1, 1), whole, 0, real, real)
        to_floats(whole, starts, stops, real, real, self._scratch)
