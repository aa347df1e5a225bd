"""`AllReduce`: every rank sums everybody's gradients and makes the same update of its own copy of the weights."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.collectives.choice import AUTO, allocate, likely
from hpctrain.comm.group import Group
from hpctrain.compress import COMPRESSIONS
from hpctrain.compress.base import Compression
from hpctrain.errors import UserError
from hpctrain.memory import parse_bytes, taken_bytes
from hpctrain.nn.flat import CHECKPOINT, LOSS, ROWS, STOP, TAIL, WEIGHT
from hpctrain.optim.averaging import SLOT, WeightAverage
from hpctrain.options import Bytes, part_from, spec_of
from hpctrain.strategies.base import FlatModel, StepOutcome, Strategy, StrategyRun, check_lengths
from hpctrain.strategies.choosing import NATIVE, Choice, choose, ranks_text
from hpctrain.strategies.collective_option import CollectiveName
from hpctrain.strategies.reducers.base import Reducer
from hpctrain.strategies.reducers.compressed import Compressed
from hpctrain.strategies.reducers.exact import FixedPointSum
from hpctrain.strategies.reducers.overlapped import Overlapped, choose_cuts
from hpctrain.strategies.reducers.whole import WholeBuffer
from hpctrain.strategies.tuning import USUAL_BYTES, Pass, bucket_sizes, tuned_bucket


def _compression(spec: Any) -> Any:
    if spec in (False, "none"):  # what takes the job's own away: `--set strategy.compression=none`
        return None
    return part_from(COMPRESSIONS, spec, "strategy.compression", "type") if spec is not None else None


CompressionOptions = Annotated[
    Compression | None,
    pydantic.BeforeValidator(_compression),
    pydantic.PlainSerializer(lambda part: None if part is None else spec_of(COMPRESSIONS, part, "type")),
]


class AllReduce(Strategy):
    """Synchronous data parallelism by one all-reduce a step; `collective` names how, see `comm.collectives`.

    "auto": in a node in memory that its ranks share ("window"), between nodes what is quickest, see `choosing`; what it
    came to is `chosen`.
    With `overlap` gradients leave in buckets of at least `bucket` bytes while the backward pass goes on; "auto": where
    there are several nodes.  Within a node it is the cores that sum: there is nothing to hide.  A `bucket` of "auto" is
    measured, see `tuning`; with compression, which keeps something for each bucket, it is the usual one.
    `compression` (see `compress`) encodes gradients, for networks that are slower than the computing.
    """

    collective: CollectiveName = AUTO
    chosen: Choice | None = None
    overlap: bool | Literal["auto"] = "auto"
    bucket: Literal["auto"] | Bytes = "auto"
    compression: CompressionOptions = None

    @pydantic.field_validator("overlap", mode="before")
    @classmethod
    def _yes_no_or_auto(cls, value: Any) -> Any:
        if not (isinstance(value, bool) or value == AUTO):  # the union's own finding would speak of 1 and 0
            raise ValueError(f'must be true, false or "{AUTO}"')
        return value

    def allocate_gradients(self, group: Group, count: int) -> np.ndarray:
        """Return the gradients' array, in shared memory where the collective works there."""
        return allocate(self.collective, group, count)

    def bind(self, group: Group, model: FlatModel, optimizer: Any, clip: Any | None) -> AllReduceRun:
        """Make the run-time object and the optimizer's state."""
        buffer, cuts = model.grad_buffer, None
        # Sums in fixed point leave when all of them are known to fit.
        overlaps, threads_said = self._overlaps(group) if getattr(model, "fixed", None) is None else (False, [])
        ranks = ranks_text(group.all_gather_objects(group.node))
        if overlaps:
            cuts = choose_cuts(model.ready_offsets, len(buffer), self._bucket_bytes(ranks) // buffer.itemsize)
        said, taken = [], self
        if self.collective != AUTO or group.size == 1:
            choice = Choice(collective=NATIVE if self.collective == AUTO else self.collective, ranks=ranks)
        else:
            choice, said = choose(group, buffer, len(buffer) // (1 + len(cuts or ())), self.chosen)
            taken = self.model_copy(update={"chosen": choice})
        collective = choice.collective, choice.made(group if cuts is None else group.apart())
        run = AllReduceRun(group, self._reducer(*collective, model, cuts), model, optimizer, clip)
        run.taken, run.said = taken, (*threads_said, *said)
        if self.bucket == AUTO and not self._known_bucket(ranks):
            run.choice = choice
        return run

    def _overlaps(self, group: Group) -> tuple[bool, list[str]]:
        """Return whether gradients leave during the backward pass, and what to say where they cannot."""
        wanted = group.nodes > 1 if self.overlap == "auto" else self.overlap and group.size > 1
        if wanted and not all(group.all_gather_objects(group.has_threads)):
            return False, [
                f"{group.library} lets one thread call it at a time: gradients leave after the backward pass"
            ]
        return wanted, []

    def _known_bucket(self, ranks: str) -> int:
        """Return the bytes of a bucket that were measured when the run began, with ranks where they are now; else 0."""
        chosen = self.chosen
        fits = chosen is not None and chosen.ranks == ranks and self.collective in (AUTO, chosen.collective)
        return chosen.bucket if fits else 0

    def _bucket_bytes(self, ranks: str) -> int:
        return parse_bytes(self.bucket) if self.bucket != AUTO else self._known_bucket(ranks) or USUAL_BYTES

    def _reducer(self, name: str, collective: Collective, model: FlatModel, cuts: tuple[int, ...] | None) -> Reducer:
        if (fixed := getattr(model, "fixed", None)) is not None:
            return FixedPointSum(name, collective, fixed)
        if self.compression is not None:
            return Compressed(name, collective, model, self.compression, cuts)
        if cuts is not None:
            return Overlapped(name, collective, model.grad_buffer, cuts)
        return WholeBuffer(name, collective, model.grad_buffer)

    def goes_on_from(self, before: Strategy) -> Strategy:
        """Take over what "auto" came to when the run began."""
        if isinstance(before, AllReduce) and self.chosen is None:
            return self.model_copy(update={"chosen": before.chosen})
        return self

    def memory_bytes(self, size: int, layout: Any, summed: int, optimizer: Any, nodes: int = 1) -> dict[str, int]:
        """Return the bytes of the optimizer's state, the weights' average, the collective's scratch and compression."""
        buffer = taken_bytes(4 * layout.size)
        compression, encoding = self.compression, 0
        if compression:
            encoding = compression.memory_bytes([slot for slot in layout if compression.encodes(slot)])
            encoding += buffer if compression.error_feedback else 0
        return {
            "optimizer": len(optimizer.slots) * buffer,
            "moving average of the weights": 0 if optimizer.ema is None else buffer,
            "combining gradients": COLLECTIVES.get(likely(self.collective, size)).scratch_bytes(summed, size, nodes),
            "compressing gradients": encoding,
        }


class AllReduceRun(StrategyRun):
    """w <- optimizer(w, sum over ranks of the gradient sums / sum over ranks of the weights).

    choice  what was chosen so far, where the size of buckets is still to be measured
    """

    choice: Choice | None = None

    def __init__(self, group: Group, reducer: Reducer, model: FlatModel, optimizer: Any, clip: Any | None) -> None:
        self._group = group
        self._reducer = reducer
        self._model = model
        self._optimizer = optimizer
        self._clip = clip
        self._tail = model.grad_buffer[-TAIL:]
        self._table, self._update = None, None  # see `step`
        allocate, size = group.allocate, len(model.params)
        self._slots = {name: allocate(size) for name in optimizer.slots}
        self._average = None if optimizer.ema is None else WeightAverage(model.params, allocate(size), optimizer.ema)

    def step(self, step: int, lr: float) -> StepOutcome | None:
        """Make one update; see `StrategyRun.step`."""
        model = self._model
        started = time.perf_counter()
        self._reducer.reduce(step)
        waited_s = time.perf_counter() - started
        if self._reducer.again:
            return None
        weight = float(self._tail[WEIGHT])
        loss, grad_norm = 0.0, None
        if weight != 0:  # NaN included: it must reach the weights, where it is seen, rather than be skipped over
            # The one division of the step: everything up to here is a sum.
            scale = 1.0 / weight
            loss = float(self._tail[LOSS]) * scale
            factor = 1.0
            if self._clip is not None:
                factor, grad_norm = self._clip.factor(model.grads, scale, model.table)
            if self._update is None or model.table is not self._table:
                self._table = model.table
                self._update = self._optimizer.bound(model.params, model.grads, self._slots, model.table)
            self._update(lr, step, scale * factor)
        if self._average is not None:
            self._average.add(step)
        model.update_state(float(self._tail[ROWS]))
        stop, checkpoint = bool(self._tail[STOP] > 0), bool(self._tail[CHECKPOINT] > 0)
        return StepOutcome(weight, loss, grad_norm, stop, checkpoint, waited_s, self._reducer.totals)

    def tune(self, a_pass: Pass) -> bool:
        """Measure how large buckets should be, where that is still to be done."""
        model, reducer = self._model, self._reducer
        sizes = bucket_sizes(model.ready_offsets, len(model.grad_buffer))
        if self.choice is None or not isinstance(reducer, Overlapped) or len(sizes) == 1:
            return False
        bucket, words = tuned_bucket(self._group, reducer, sizes, a_pass)
        model.grad_buffer[:] = 0
        self.taken = self.taken.model_copy(update={"chosen": self.choice.model_copy(update={"bucket": bucket})})
        self.said = (words,)
        return True

    @property
    def cuts(self) -> tuple[int, ...]:
        """Where the reducer's buckets begin."""
        return self._reducer.cuts

    def ready(self, lo: int, step: int) -> None:
        """Let the reducer know what is final."""
        self._reducer.ready(lo, step)

    def describe(self) -> str:
        """Return "all_reduce (COLLECTIVE)", the one that is at work."""
        return f"all_reduce ({self._reducer.describe()})"

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the optimizer's state buffers by slot name, the average, and what the reducer keeps.

        Each is as long as the parameters.
        """
        average = {} if self._average is None else {SLOT: self._average.values}
        return {**self._slots, **average, **self._reducer.state_dict()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Copy the optimizer's state in; `UserError` for other slots or lengths than this job's."""
        own = self.state_dict()
        expected = {name: len(values) for name, values in own.items()}
        check_lengths(state, expected)
        for name, values in state.items():
            own[name][:] = values
        self._reducer.restored()

    def settle(self) -> None:
        """Bring together what the reducer keeps on each rank."""
        self._reducer.settle()

    def records(self) -> dict[str, np.ndarray]:
        """Return what the reducer keeps."""
        return self._reducer.records()

    def load_records(self, records: dict[str, np.ndarray]) -> None:
        """Take over what `records` returned; `UserError` where something is missing."""
        if missing := [name for name in self.records() if name not in records]:
            raise UserError(f"the checkpoint lacks {', '.join(missing)} of the strategy", found=list(records) or "none")
        self._reducer.load_records(records)

    def swap_average(self) -> None:
        """Exchange the weights with their moving average; see `StrategyRun.swap_average`."""
        if self._average is not None:
            self._average.swap()

    def warm_up(self) -> None:
        """Compile the kernels of the collective, of clipping and of the update, or load them from the cache."""
        self._reducer.warm_up()
        self._optimizer.warm_up()
        if self._clip is not None:
            self._clip.warm_up()
        if self._average is not None:
            self._average.warm_up()

    def close(self) -> None:
        """Give back what the reducer holds."""
        self._reducer.close()
