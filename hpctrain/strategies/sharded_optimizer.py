"""`ShardedOptimizer`: each rank keeps the optimizer's state of a share of the parameters, and updates that alone."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.collectives.choice import AUTO, allocate, collective_for, likely
from hpctrain.comm.group import Group
from hpctrain.comm.schedule import part_bounds
from hpctrain.errors import UserError
from hpctrain.memory import aligned_zeros, taken_bytes
from hpctrain.nn.flat import CHECKPOINT, LOSS, ROWS, STOP, TAIL, WEIGHT
from hpctrain.optim.averaging import SLOT, WeightAverage
from hpctrain.strategies.base import FlatModel, StepOutcome, Strategy, StrategyRun, check_lengths
from hpctrain.strategies.collective_option import CollectiveName

_BETWEEN = "ring"  # sends the least bytes when it scatters and gathers, for any number of ranks


class ShardedOptimizer(Strategy):
    """Synchronous data parallelism in which rank r of P updates part r of the weights (ZeRO, stage 1).

    The gradients are summed so that each rank gets the sum of its part (reduce-scatter); it updates that part of the
    weights; the weights are handed round (all-gather).  As many bytes as one all-reduce, and the optimizer's state
    takes a P-th of the memory on each rank.  The weights are those of `all_reduce`, but for the rounding of norms.

    Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.

    collective  "auto": in a node memory that its ranks share, between nodes a ring; or a name of `comm.collectives`
    """

    shards_optimizer: ClassVar[bool] = True

    collective: CollectiveName = AUTO

    def allocate_gradients(self, group: Group, count: int) -> np.ndarray:
        """Return the gradients' array, in shared memory where the collective works there."""
        return allocate(self._between(group), group, count)

    def _between(self, group: Group) -> str:
        return _BETWEEN if self.collective == AUTO and group.nodes > 1 else self.collective

    def bind(self, group: Group, model: FlatModel, optimizer: Any, clip: Any | None) -> ShardedOptimizerRun:
        """Make the run-time object and this rank's share of the optimizer's state."""
        name, collective = collective_for(self._between(group), group, model.grad_buffer)
        return ShardedOptimizerRun(group, name, collective, model, optimizer, clip)

    def memory_bytes(self, size: int, layout: Any, summed: int, optimizer: Any, nodes: int = 1) -> dict[str, int]:
        """Return the bytes of the share of the optimizer's state, of all of it on rank 0 at a checkpoint, and so on."""
        buffer, share = taken_bytes(4 * layout.size), taken_bytes(4 * -(-layout.size // size))
        name = _BETWEEN if self.collective == AUTO and nodes > 1 else likely(self.collective, size)
        return {
            "optimizer": len(optimizer.slots) * share,
            "optimizer, gathered for checkpoints on rank 0": len(optimizer.slots) * buffer,
            "moving average of the weights": 0 if optimizer.ema is None else buffer,
            "combining gradients": COLLECTIVES.get(name).scratch_bytes(summed, size, nodes),
        }


class ShardedOptimizerRun(StrategyRun):
    """w[part] <- optimizer(w[part], sum over ranks of the gradient sums[part] / sum over ranks of the weights)."""

    def __init__(
        self, group: Group, name: str, collective: Collective, model: FlatModel, optimizer: Any, clip: Any | None
    ) -> None:
        self._group = group
        self._name = name
        self._collective = collective
        self._model = model
        self._optimizer = optimizer
        self._clip = clip
        self._fixed = getattr(model, "fixed", None)
        size = len(model.params)
        self._bounds = part_bounds(size, group.size)
        self._own = slice(*collective.owned(size))
        # The sums beside the gradients are few, and all ranks want them.
        self._rest, self._tail = model.grad_buffer[size:], model.grad_buffer[-TAIL:]
        self._grads = model.grad_buffer[:size]
        self._own_params, self._own_grads = model.params[self._own], self._grads[self._own]
        self._table, self._own_table = None, None
        allocate = group.allocate
        self._slots = {slot: allocate(len(self._own_params)) for slot in optimizer.slots}
        self._whole: dict[str, np.ndarray] = {}  # on rank 0, what was gathered for the last checkpoint
        self._average = None if optimizer.ema is None else WeightAverage(model.params, allocate(size), optimizer.ema)

    def step(self, step: int, lr: float) -> StepOutcome | None:
        """Make one update; see `StrategyRun.step`."""
        model = self._model
        started = time.perf_counter()
        if not self._sum():
            return None
        reduce_s = time.perf_counter() - started
        weight = float(self._tail[WEIGHT])
        loss, grad_norm = 0.0, None
        if weight != 0:  # NaN included: it must reach the weights, where it is seen, rather than be skipped over
            # The one division of the step: everything up to here is a sum.
            scale = 1.0 / weight
            loss = float(self._tail[LOSS]) * scale
            if model.table is not self._table:
                self._table, self._own_table = model.table, model.table.slice(self._own.start, self._own.stop)
            factor = 1.0
            if self._clip is not None:
                factor, grad_norm = self._clipped(scale)
            self._update(lr, step, scale * factor)
            started = time.perf_counter()
            self._hand_round()
            reduce_s += time.perf_counter() - started
        if self._average is not None:
            self._average.add(step)
        model.update_state(float(self._tail[ROWS]))
        stop, checkpoint = bool(self._tail[STOP] > 0), bool(self._tail[CHECKPOINT] > 0)
        totals = None if self._fixed is None else self._fixed.totals
        return StepOutcome(weight, loss, grad_norm, stop, checkpoint, reduce_s, totals)

    def _sum(self) -> bool:
        """Sum the own part of the gradients, and the rest, over all ranks; whether it could be done."""
        if self._fixed is not None:
            # Numbers in fixed point lie beside exponents that all ranks agree on: they are summed as a whole.
            self._fixed.close()
            self._collective.all_reduce(self._fixed.numbers)
            return self._fixed.settle()
        self._collective.reduce_scatter(self._grads)
        self._collective.all_reduce(self._rest)
        return True

    def _clipped(self, scale: float) -> tuple[float, float | None]:
        """Return factor and norm of clipping, for the gradients of all ranks; see `Clip.factor`."""
        if self._fixed is not None:  # every rank has all gradients, and sums their squares in the same order
            return self._clip.factor(self._grads, scale, self._table)
        squares = self._clip.squares(self._own_grads, scale, self._own_table)
        return self._clip.factor_from(self._total(np.array(squares)), scale)

    def _update(self, lr: float, step: int, scale: float) -> None:
        arguments = (self._own_params, self._own_grads, self._slots, self._own_table, lr, step, scale)
        norms = self._optimizer.norms(*arguments)
        self._optimizer.update(*arguments, norms=None if norms is None else self._total(norms))

    def _total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of float64 arrays over all ranks, in rank order."""
        every = np.zeros((self._group.size, values.size))
        every[self._group.rank] = values.ravel()
        self._group.all_gather(every.ravel(), [values.size] * self._group.size)
        total = np.zeros(values.size)
        for one in every:
            total += one
        return total.reshape(values.shape)

    def _hand_round(self) -> None:
        """Give every rank the new weights, by way of the gradients' buffer: its content is not needed any more."""
        self._own_grads[:] = self._own_params
        self._collective.all_gather(self._grads)
        self._model.params[:] = self._grads

    def describe(self) -> str:
        """Return "sharded_optimizer (COLLECTIVE)", the one that is at work."""
        fixed = "" if self._fixed is None else ", in fixed point"
        return f"sharded_optimizer ({self._name}{fixed})"

    def settle(self) -> None:
        """Gather the optimizer's state on rank 0, which writes it down."""
        for slot, own in self._slots.items():
            if self._group.rank:
                if len(own):
                    self._group.send(own, 0).wait()
                continue
            if slot not in self._whole:
                self._whole[slot] = aligned_zeros(len(self._model.params), own.dtype)
            whole, bounds = self._whole[slot], self._bounds
            whole[self._own] = own
            parts = [whole[lo:hi] for lo, hi in zip(bounds[1:-1], bounds[2:], strict=True)]
            asked = [self._group.receive(part, rank) for rank, part in enumerate(parts, 1) if len(part)]
            for request in asked:
                request.wait()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the optimizer's state by slot name, as `settle` left it on rank 0, and the average.

        Each is as long as the parameters.  On other ranks the average alone.
        """
        average = {} if self._average is None else {SLOT: self._average.values}
        return {**self._whole, **average}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Copy the own part of the state in; `UserError` for other slots or lengths than this job's."""
        names = [*self._slots, *([] if self._average is None else [SLOT])]
        expected = dict.fromkeys(names, len(self._model.params))
        check_lengths(state, expected)
        for name, own in self._slots.items():
            own[:] = state[name][self._own]
        if self._average is not None:
            self._average.values[:] = state[SLOT]

    def records(self) -> dict[str, np.ndarray]:
        """Return the exponents of sums in fixed point: on them depends how the next step is rounded."""
        return {} if self._fixed is None else {"exponents": self._fixed.exponents}

    def load_records(self, records: dict[str, np.ndarray]) -> None:
        """Take over what `records` returned; `UserError` where something is missing."""
        if missing := [name for name in self.records() if name not in records]:
            raise UserError(f"the checkpoint lacks {', '.join(missing)} of the strategy", found=list(records) or "none")
        if self._fixed is not None:
            self._fixed.load(records["exponents"])

    def swap_average(self) -> None:
        """Exchange the weights with their moving average; see `StrategyRun.swap_average`."""
        if self._average is not None:
            self._average.swap()

    def warm_up(self) -> None:
        """Compile the kernels of the collective, of clipping and of the update, or load them from the cache."""
        self._collective.warm_up()
        if self._fixed is not None:
            self._collective.warm_up(np.int32)
        self._optimizer.warm_up()
        if self._clip is not None:
            self._clip.warm_up()
        if self._average is not None:
            self._average.warm_up()
