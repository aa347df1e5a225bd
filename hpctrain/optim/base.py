"""`Optimizer`: how gradients change parameters, on any contiguous slice of the flat buffers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from hpctrain.optim.table import UpdateTable
from hpctrain.options import Part


class Optimizer(Part):
    """Base of all optimizers.  It holds options alone: the state lives in buffers that the caller makes and keeps.

    lr  learning rate, above 0; what a step uses is given to `update`, after the schedule
    """

    lr: float = Field(0.01, gt=0)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state buffers, each as long as the parameters and zero before the first step."""
        return ()

    @abstractmethod
    def update(
        self,
        params: np.ndarray,
        grads: np.ndarray,
        slots: Mapping[str, np.ndarray],
        table: UpdateTable,
        lr: float,
        step: int,
        scale: float,
    ) -> None:
        """Update `params` and the state in place; allocates no array.

        params, grads  (n,) contiguous float32 (or float64): the same slice of the flat buffers, which may cut tensors.
                       `grads` is only read
        slots          name -> (n,) array of that type, for each name in `self.slots`: the same slice of the state
        table          the slice's ranges and factors; elements outside of all ranges are left alone
        lr             learning rate of this step
        step           number of updates before this one, from 0
        scale          multiplies the gradients first: 1 / (sum of weights) times the factor of clipping

        Elements are updated each by itself: a slice cut anywhere gives the same bits as the whole.
        """

    def warm_up(self) -> None:
        """Compile the kernels (or load them from the cache) by an update of tiny float32 arrays."""
        params, grads = np.zeros(1, np.float32), np.zeros(1, np.float32)
        slots = {name: np.zeros(1, np.float32) for name in self.slots}
        factor = np.ones(1, np.float32)
        table = UpdateTable(np.zeros(1, np.int64), np.ones(1, np.int64), factor, factor)
        self.update(params, grads, slots, table, self.lr, 0, 1.0)
