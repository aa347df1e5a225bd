"""`Reducer`: the contract of what makes a rank's gradients the sum over all ranks, for strategies that need the sum."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class Reducer(ABC):
    """Sums a model's `grad_buffer` over the ranks, step after step; the result has the same bits on every rank.

    Every rank calls the same methods in the same order, except `ready` and `warm_up`.
    """

    @abstractmethod
    def reduce(self, step: int) -> None:
        """Make the whole buffer the sum over all ranks; `step` is the number of the update, counted from 0."""

    @property
    def again(self) -> bool:
        """Whether the last `reduce` could not be done: the gradients have to be summed once more, for another one."""
        return False

    @property
    def totals(self) -> tuple[float, float, int] | None:
        """Loss, weight and rows of the last step over all ranks, where they are known to the last bit of a float64."""
        return None

    def ready(self, lo: int, step: int) -> None:  # noqa: B027 - one that sends nothing ahead has no use for it
        """Take notice that `grad_buffer[lo:]`, in floats, will not change before `reduce(step)`."""

    @property
    def cuts(self) -> tuple[int, ...]:
        """Where a backward pass should call `ready`: descending offsets in floats; nowhere by default."""
        return ()

    @abstractmethod
    def describe(self) -> str:
        """Return one phrase for people: "ring"."""

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint must hold: flat arrays by name, the live ones, not copies."""
        return {}

    def records(self) -> dict[str, np.ndarray]:
        """Return what else a checkpoint must hold: arrays by name, of lengths of their own."""
        return {}

    def load_records(self, records: dict[str, np.ndarray]) -> None:  # noqa: B027 - most keep none
        """Take over what `records` returned."""

    def settle(self) -> None:  # noqa: B027 - one whose state is the same on every rank has nothing to do
        """Make what `state_dict` returns the same on every rank: for a checkpoint that one of them writes."""

    def restored(self) -> None:  # noqa: B027 - as above
        """Go on from what has been written into the arrays of `state_dict`, as from `settle`."""

    def warm_up(self) -> None:  # noqa: B027 - one without kernels of its own has nothing to do
        """Compile the kernels, or load them from the cache; changes nothing and does not communicate."""

    def close(self) -> None:  # noqa: B027 - one that holds nothing has nothing to do
        """Give back what is held (threads)."""
