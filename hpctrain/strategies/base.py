"""`Strategy`: the contract of the ways to turn gradients into new weights.

A `Strategy` is options out of a job file; bound to a group, a model and an optimizer it is a `StrategyRun`, which makes
the updates.  It is all that a training loop knows of other ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.errors import UserError
from hpctrain.options import Part


class FlatModel(Protocol):
    """What a strategy needs of a model: flat float32 buffers.

    `grad_buffer` is `grads`, sums of running statistics, and the tail of `nn.flat.TAIL` floats; `grads` is a view into
    it.  `table` (an `optim` UpdateTable) gives the learning-rate and decay factors of ranges of `params`;
    `ready_offsets` says where `grads` is final from, descending, as a backward pass goes on.
    Compression looks at `layout`, the places of the tensors, and `seed`.
    """

    params: np.ndarray
    grads: np.ndarray
    grad_buffer: np.ndarray
    table: Any
    ready_offsets: tuple[int, ...]
    fixed: Any  # None, or the `nn.fixed_point.FixedPoint` of sums that do not depend on their order
    layout: Any
    seed: Any

    def update_state(self, rows: float) -> None:
        """Move the running statistics by the sums over all ranks' `rows` examples that stand behind `grads`."""


@dataclass(slots=True)
class StepOutcome:
    """What one step came to over all ranks; the same on every rank.

    weight       sum of the example weights of the global batch; 0 means that nothing was updated
    loss         weighted mean over the global batch, from float32 sums: for display (0 where weight is 0)
    grad_norm    2-norm of the mean gradient before clipping; None without clipping
    stop         some rank was told to stop
    checkpoint   rank 0 wants a checkpoint after this step
    reduce_s     time on this rank until the sums were there: the others' lateness and the transfer, as far as it was
                 not hidden behind the backward pass
    totals       sum of the losses, weight and rows over all ranks to the last bit; None where they are not known so
    """

    weight: float
    loss: float
    grad_norm: float | None
    stop: bool
    checkpoint: bool
    reduce_s: float = 0.0
    totals: tuple[float, float, int] | None = None


class Strategy(Part, ABC):
    """How gradients become weights: the options of the job's `[strategy]`."""

    shards_optimizer: ClassVar[bool] = False
    """Whether each rank updates a part of the weights, so that norms of whole tensors are summed over ranks."""

    @abstractmethod
    def bind(self, group: Group, model: FlatModel, optimizer: Any, clip: Any | None) -> StrategyRun:
        """Make the run-time object, its optimizer state and its wire buffers.  Every rank calls it.

        `optimizer` is an `optim` Optimizer; `clip` is None or has `factor(grads, scale, table) -> (factor, norm)`.
        """

    def allocate_gradients(self, group: Group, count: int) -> np.ndarray:
        """Return a zeroed float32 array for the model's gradients, of the kind that the strategy combines best.

        Every rank calls it.
        """
        return group.allocate(count)

    def goes_on_from(self, before: Strategy) -> Strategy:
        """Return this strategy with what was measured and chosen when the run began that it goes on with."""
        return self

    @abstractmethod
    def memory_bytes(self, size: int, layout: Any, summed: int, optimizer: Any, nodes: int = 1) -> dict[str, int]:
        """Return what the run-time object will take on a rank of `size` on so many nodes, by what it is for.

        layout  of the model's parameters
        summed  length of `model.grad_buffer`
        """


class StrategyRun(ABC):
    """A strategy at work.  Every rank calls the same methods in the same order, except `warm_up`.

    taken  the strategy with what was measured and chosen written into it, for the resolved job; None: as it was
    said   lines for people about what was chosen
    """

    taken: Strategy | None = None
    said: tuple[str, ...] = ()

    @abstractmethod
    def step(self, step: int, lr: float) -> StepOutcome | None:
        """Make one update of `model.params`; `step` is counted from 0, `lr` is the learning rate of this step.

        None, on every rank: nothing was done, and the gradients have to be summed once more (see `nn.fixed_point`).

        Takes `model.grad_buffer` with this rank's sums: the gradients of its rows, and in the tail their weight and
        loss and its wishes (`nn.flat`).  The content afterwards is undefined; the caller zeroes it for the next sums.
        """

    def tune(self, a_pass: Callable[[Sequence[int], Callable[[int, float], None]], None]) -> bool:
        """Try out what only whole steps can tell; whether there is something new in `taken` and `said`.

        a_pass(cuts, ready)  makes a backward pass over rows that stand for others, and calls ready(lo, loss) at cuts

        Called once on all ranks, before the first step, when every kernel is there.  The gradients are zeroed.
        """
        return False

    @property
    def cuts(self) -> tuple[int, ...]:
        """Return where a backward pass should call `ready`: descending offsets in floats; nowhere by default."""
        return ()

    def ready(self, lo: int, step: int) -> None:  # noqa: B027 - one that sends nothing ahead has no use for it
        """Take notice that `grad_buffer[lo:]`, the tail included, will not change before `step(step, ...)`."""

    @abstractmethod
    def describe(self) -> str:
        """Return one phrase for people: "all_reduce (ring)"."""

    @abstractmethod
    def state_dict(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint must hold (optimizer state): flat arrays by name, the live ones, not copies.

        A moving average of the weights is among them, as `optim.averaging.SLOT`.
        """

    def settle(self) -> None:  # noqa: B027 - one whose state is the same on every rank has nothing to do
        """Make what `state_dict` returns on rank 0 the whole state; before a checkpoint, on all ranks."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Take over what `state_dict` returned; `UserError` where names or lengths do not fit this job."""

    def records(self) -> dict[str, np.ndarray]:
        """Return what else a checkpoint must hold: arrays by name, of lengths of their own."""
        return {}

    def load_records(self, records: dict[str, np.ndarray]) -> None:  # noqa: B027 - most keep none
        """Take over what `records` returned."""

    def swap_average(self) -> None:  # noqa: B027 - one that keeps no average has nothing to do
        """Exchange `model.params` with their moving average (`optimizer.ema`); nothing happens where there is none."""

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within, `model.params` is the moving average of the weights, where one is kept; no step may happen then."""
        self.swap_average()
        try:
            yield
        finally:
            self.swap_average()

    def warm_up(self) -> None:  # noqa: B027 - one without kernels of its own has nothing to do
        """Compile every kernel of a step, or load it from the cache; changes nothing and does not communicate."""

    def close(self) -> None:  # noqa: B027 - one that holds nothing has nothing to do
        """Give back what the strategy holds; called once, at the end of a run that did not fail."""


def check_lengths(state: dict[str, np.ndarray], expected: dict[str, int]) -> None:
    """Raise a `UserError` where a checkpoint's state buffers have other names or lengths than this job's."""
    found = {name: len(values) for name, values in state.items()}
    if found != expected:
        raise UserError(
            "the optimizer state of the checkpoint does not fit this job's optimizer and model",
            found=_lengths_text(found),
            allowed=_lengths_text(expected),
            hint="resume with the job that wrote the checkpoint, or start a new run",
        )


def _lengths_text(slots: dict[str, int]) -> str:
    return ", ".join(f"{name} ({length} numbers)" for name, length in sorted(slots.items())) or "no state"
