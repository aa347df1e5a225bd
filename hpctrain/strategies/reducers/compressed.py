"""`Compressed`: the sum of the gradients over the ranks, of which large tensors travel encoded.

Small and sensitive slices (`Compression.encodes` is the rule), sums of running statistics and the tail go as they are,
packed into one exchange; it goes first and brings the step's weight.  What encoding drops has the units of a sum over
that step's examples; the next step's sum may be of more or fewer: so the residual is multiplied by the ratio of the two
weights, as if it were kept in units of the mean gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.shared_memory import shared_rows
from hpctrain.compress import COMPRESSIONS
from hpctrain.compress.base import Compression, Source, Summable, chained
from hpctrain.compress.pieces import Tensor, others, pieces_within
from hpctrain.kernels.compression.sparse import pack, unpack
from hpctrain.nn.flat import TAIL, WEIGHT
from hpctrain.strategies.base import FlatModel
from hpctrain.strategies.reducers.base import Reducer
from hpctrain.strategies.reducers.overlapped import Overlapped
from hpctrain.strategies.reducers.two_shot import TwoShots

RESIDUAL = "residual"


class Compressed(Reducer):
    """grad_buffer <- sum over ranks of grad_buffer, but for what encoding drops, slice by slice.

    name, collective  sums what is not encoded, payloads that add up, and everything during the first steps
    cuts              where slices begin that leave during the backward pass; None: the whole buffer after it

    `settle` makes the residual the sum over the ranks, of which each then takes its share: what a checkpoint holds, and
    what every rank has when the run goes on from it, so that both go on with the same bits.
    """

    def __init__(
        self,
        name: str,
        collective: Collective,
        model: FlatModel,
        compression: Compression,
        cuts: Sequence[int] | None = None,
    ) -> None:
        group, buffer = collective.group, model.grad_buffer
        self._name, self._collective, self._buffer = name, collective, buffer
        self._compression = compression
        self._key = chained(int(model.seed), _STREAM)
        self._residual = group.allocate(len(model.params)) if compression.error_feedback else None
        # In units of the mean gradient the residual of this rank is `unit` times what the buffer holds.
        self._unit, self._weight = 1.0, 0.0
        stops = (len(buffer), *(cuts or ()), 0)
        tensors = [slot for slot in model.layout if compression.encodes(slot)]
        self._slices = [
            _Slice(self, collective, compression, tensors, lo, hi) for hi, lo in zip(stops, stops[1:], strict=False)
        ]
        self._overlapped: Overlapped | None = None
        if cuts is not None:
            work = [partial(self._reduce_slice, number) for number in range(len(self._slices))]
            self._overlapped = Overlapped(name, collective, buffer, cuts, work)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Where slices begin that leave during the backward pass."""
        return () if self._overlapped is None else self._overlapped.cuts

    def ready(self, lo: int, step: int) -> None:
        """Let slices go."""
        if self._overlapped is not None:
            self._overlapped.ready(lo, step)

    def reduce(self, step: int) -> None:
        """Sum the buffer, or wait until it is summed."""
        if self._overlapped is not None:
            self._overlapped.reduce(step)
        else:
            self._reduce_slice(0, step)

    def _reduce_slice(self, number: int, step: int) -> None:
        part = self._slices[number]
        if step < self._compression.warm_up_steps:
            self._collective.all_reduce(part.buffer)
            return
        part.pack_and_sum()
        if number == 0:
            self._weight = part.weight
        if self._weight != 0:  # else nothing is updated: what has been dropped stays
            part.reduce(Source(self._buffer, self._residual, self._weight * self._unit, True, self._key_of(step)))
        part.unpack()
        if number == len(self._slices) - 1 and self._weight != 0:
            self._unit = 1.0 / self._weight

    def _key_of(self, step: int) -> int:
        return chained(self._key, step)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the residual, which `settle` makes the same on every rank."""
        return {} if self._residual is None else {RESIDUAL: self._residual}

    def records(self) -> dict[str, np.ndarray]:
        """Return what the compression goes on with beside the residual; the same on every rank."""
        kept = [part.summed.records() for part in self._slices if part.summed is not None]
        return {name: values for records in kept for name, values in records.items()}

    def load_records(self, records: dict[str, np.ndarray]) -> None:
        """Take over what `records` returned."""
        for name, values in self.records().items():
            values[:] = records[name]

    def settle(self) -> None:
        """Make the residual the sum over all ranks in units of the mean gradient, of which this rank takes a share."""
        if self._residual is not None:
            with np.errstate(invalid="ignore"):  # of a run that has diverged
                self._residual *= np.float32(self._unit)
            self._keep_own()
            self._collective.all_reduce(self._residual)
            self._unit = 1.0 / self._holders

    def restored(self) -> None:
        """Take a share of the residual that a checkpoint held."""
        self._unit = 1.0 / self._holders

    @property
    def _holders(self) -> int:
        """How many ranks hold a residual of the same number."""
        return self._slices[0].group.size

    def _keep_own(self) -> None:
        """Clear the residual where other ranks of this node hold it."""
        at = 0
        for part in reversed(self._slices):
            lo, hi = part.own
            self._residual[at:lo] = 0
            at = min(hi, len(self._residual))
        self._residual[at:] = 0

    def describe(self) -> str:
        """Return what is at work, and what it makes of the bytes."""
        kind = COMPRESSIONS.name_of(type(self._compression))
        before, after = 4 * len(self._buffer), sum(part.nbytes for part in self._slices)
        how = self._name if self._overlapped is None else self._overlapped.describe()
        first = self._compression.warm_up_steps
        since = f", as they are in the first {first} updates" if first else ""
        return f"{how}; {kind}: {_megabytes(before)} of gradients a step are sent as {_megabytes(after)}{since}"

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the cache."""
        self._collective.warm_up()
        self._compression.warm_up()
        values, pieces = np.zeros(1, np.float32), np.zeros((0, 3), np.int64)
        pack(values, pieces, values)
        unpack(values, pieces, values)

    def close(self) -> None:
        """End the thread that lets slices go."""
        if self._overlapped is not None:
            self._overlapped.close()


_STREAM = 0xC0DE  # of random numbers, among those that come from the run's seed


class _Slice:
    """grad_buffer[lo:hi]: what is packed, and what is encoded how.

    group    the ranks that exchange payloads; `own`: the part of the slice whose payloads are this rank's business
    summed   what encodes where payloads are summed, else None
    nbytes   of a payload of the whole slice: what a node, or a rank of its own, sends less than twice
    """

    def __init__(
        self,
        reducer: Compressed,
        collective: Collective,
        compression: Compression,
        tensors: Sequence[Tensor],
        lo: int,
        hi: int,
    ) -> None:
        self._all, self._collective = reducer._buffer, collective
        self.buffer = reducer._buffer[lo:hi]
        self.group, self.own = collective.group, (lo, hi)
        self._as_it_is = others(tensors, lo, hi)
        allocate = partial(type(collective).allocate, self.group)
        self._packed = allocate(int(self._as_it_is[:, 1].sum()))
        self._within: Collective | None = None
        self.summed = None
        pieces = pieces_within(tensors, lo, hi)
        is_empty = not len(pieces)
        self._two_shots: TwoShots | None = None
        if isinstance(compression, Summable):
            if not is_empty:
                self.summed = compression.summed(tensors, lo, hi, reducer._key, allocate)
            self.nbytes = sum(payload.nbytes for payload in self.summed.payloads) if self.summed else 0
        else:
            self._meet_within_nodes()
            pieces = pieces_within(tensors, *self.own, compression.unit)
            if not is_empty:
                self._two_shots = TwoShots(self.group, compression, pieces)
            # Where a node's ranks share the work, each sends about as much as this one.
            shares = self._within.group.size if self._within else 1
            self.nbytes = shares * self._two_shots.nbytes if self._two_shots else 0
        self.nbytes += self._packed.nbytes

    def _meet_within_nodes(self) -> None:
        """Where nodes hold several ranks each, sum within them first: each rank then sends its part of that sum."""
        group = self.group
        across = group.across() if 1 < group.nodes < group.size else None
        if across is None:
            return
        local = group.local()
        kind = "window" if shared_rows(self.buffer) is not None else "native"
        self._within = COLLECTIVES.get(kind)(local)
        lo, hi = self._within.owned(len(self.buffer))
        self.group, self.own = across, (self.own[0] + lo, self.own[0] + hi)

    @property
    def weight(self) -> float:
        """The sum of the examples' weights over all ranks; of the slice that has the tail, once it is summed."""
        return float(self._packed[WEIGHT - TAIL])

    def pack_and_sum(self) -> None:
        """Sum what is not encoded."""
        if len(self._packed):
            pack(self._all, self._as_it_is, self._packed)
            self._collective.all_reduce(self._packed)

    def unpack(self) -> None:
        """Put back what is not encoded."""
        unpack(self._packed, self._as_it_is, self._all)

    def reduce(self, source: Source) -> None:
        """Sum what is encoded."""
        if self.summed is not None:
            for number, payload in enumerate(self.summed.payloads):
                self.summed.fill(number, source)
                self._collective.all_reduce(payload)
            self.summed.finish(source, source.values)
        elif self._two_shots is not None:
            if self._within is not None:
                self._within.reduce_scatter(self.buffer)
            # Each rank draws for itself: were the errors of all ranks alike, they would add up rather than cancel.
            self._two_shots.reduce(source, partial(_drawn, source.key, self._collective.group.rank))
            if self._within is not None:
                self._within.all_gather(self.buffer)


def _drawn(key: int, rank: int, shot: int, part: int) -> int:
    """Return the key of a payload's random numbers, 32 bits."""
    return chained(key, rank, shot, part) & 0xFFFFFFFF


def _megabytes(count: int) -> str:
    """Return bytes in MB or KB, with three digits."""
    unit, size = ("MB", 1e6) if count >= 1e6 else ("KB", 1e3)
    digits = max(0, 2 - int(math.log10(max(count / size, 1))))
    return f"{count / size:.{digits}f} {unit}"
