"""`Optimizer`: how gradients change parameters, on any contiguous slice of the flat buffers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from hpctrain.optim.groups import ParameterGroup
from hpctrain.optim.table import UpdateTable
from hpctrain.options import Part

RANGES = ("starts", "stops", "lr_factor", "decay_factor")
_NORMS = ("tensors", "norms")


class FusedCall(NamedTuple):
    """An update as one call of a kernel, for a step that is compiled as a whole.

    kernel  the update: kernel(params, grads, *slots, starts, stops, lr_factor, decay_factor, *scalars); where there is
            `norms`, `tensors` and the array of norms (tensors, 2) float64 stand between the factors and the scalars
    args    the names of its arguments in order: "params", "grads", names of slots, fields of the table, scalars
    norms   None, or the kernel that fills the array of norms; it is called before `kernel`, with the same arguments
    """

    kernel: Callable
    args: tuple[str, ...]
    norms: Callable | None = None


class Optimizer(Part):
    """Base of all optimizers.  It holds options alone: the state lives in buffers that the caller makes and keeps.

    lr         learning rate, above 0; what a step uses is given to `update`, after the schedule
    groups     other factors for tensors by name, see `optim.groups`
    decay_all  weight decay applies to biases and normalisation scales too
    ema        decay of the weights' moving average, in (0, 1), such as 0.999: evaluation and the final model take the
               average; default: none is kept

    A subclass has its options and `slots`, and says which kernel it is: `kernel`, `scalar_names`, `scalars`.
    """

    norms_kernel: ClassVar[Callable | None] = None
    """Where steps depend on norms of whole tensors: the kernel that sums their squares over a slice."""

    lr: float = Field(0.01, gt=0)
    groups: tuple[ParameterGroup, ...] = ()
    decay_all: bool = False
    ema: float | None = Field(None, gt=0, le=0.9999999)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state buffers, each as long as the parameters and zero before the first step."""
        return ()

    @property
    @abstractmethod
    def kernel(self) -> Callable:
        """The kernel that makes the update (`kernels/optimizers.py`)."""

    @property
    @abstractmethod
    def scalar_names(self) -> tuple[str, ...]:
        """Names of the kernel's scalars, in its order."""

    @abstractmethod
    def scalars(self, lr: float, step: int, scale: float, real: Any = np.float32) -> tuple[Any, ...]:
        """Return the kernel's scalars for one step, all of the type `real`; see `update` for the arguments."""

    def fused_call(self) -> FusedCall:
        """Return the update as a kernel and the names of its arguments; `scalars` gives the numbers of each step."""
        norms = type(self).norms_kernel
        between = _NORMS if norms else ()
        args = ("params", "grads", *self.slots, *RANGES, *between, *self.scalar_names)
        return FusedCall(self.kernel, args, norms)

    def norms(
        self,
        params: np.ndarray,
        grads: np.ndarray,
        slots: Mapping[str, np.ndarray],
        table: UpdateTable,
        lr: float,
        step: int,
        scale: float,
    ) -> np.ndarray | None:
        """Return what `update` needs to know of whole tensors, as sums of squares over this slice; changes nothing.

        float64 (table.tensor_count, 2), to be added up over the owners of the slices, in a fixed order; None where
        steps need no norms.  Arguments as in `update`.
        """
        kernel = type(self).norms_kernel
        if kernel is None:
            return None
        sums = np.zeros((table.tensor_count, 2))
        kernel(*self._arguments(params, grads, slots, table, sums), *self.scalars(lr, step, scale, params.dtype.type))
        return sums

    def update(
        self,
        params: np.ndarray,
        grads: np.ndarray,
        slots: Mapping[str, np.ndarray],
        table: UpdateTable,
        lr: float,
        step: int,
        scale: float,
        norms: np.ndarray | None = None,
    ) -> None:
        """Update `params` and the state in place; allocates nothing that grows with the slice.

        params, grads  (n,) contiguous float32 (or float64): the same slice of the flat buffers, which may cut tensors.
                       `grads` is only read
        slots          name -> (n,) array of that type, for each name in `self.slots`: the same slice of the state
        table          the slice's ranges and factors; elements outside of all ranges are left alone
        lr             learning rate of this step
        step           number of updates before this one, from 0
        scale          multiplies the gradients first: 1 / (sum of weights) times the factor of clipping
        norms          of the whole tensors: the sum of all slices' `norms`; default: this slice's, which is right where
                       it cuts no tensor

        Elements are updated each by itself: a slice cut anywhere gives the same bits as the whole (given its norms).
        """
        if norms is None and type(self).norms_kernel is not None:
            norms = self.norms(params, grads, slots, table, lr, step, scale)
        self.kernel(
            *self._arguments(params, grads, slots, table, norms), *self.scalars(lr, step, scale, params.dtype.type)
        )

    def bound(
        self, params: np.ndarray, grads: np.ndarray, slots: Mapping[str, np.ndarray], table: UpdateTable
    ) -> Callable[[float, int, float], None]:
        """Return `update` as a function of (lr, step, scale), for buffers that stay: a small network feels the rest."""
        if type(self).norms_kernel is not None:
            return lambda lr, step, scale: self.update(params, grads, slots, table, lr, step, scale)
        kernel, scalars, real = self.kernel, self.scalars, params.dtype.type
        arguments = self._arguments(params, grads, slots, table, None)

        def update(lr: float, step: int, scale: float) -> None:
            kernel(*arguments, *scalars(lr, step, scale, real))

        return update

    def _arguments(
        self,
        params: np.ndarray,
        grads: np.ndarray,
        slots: Mapping[str, np.ndarray],
        table: UpdateTable,
        norms: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        """Return the arrays that a kernel takes, in order."""
        ranges = (table.starts, table.stops, table.lr_factor, table.decay_factor)
        if norms is not None:
            ranges = (*ranges, table.tensors, norms)
        return (params, grads, *(slots[name] for name in self.slots), *ranges)

    def warm_up(self) -> None:
        """Compile the kernels (or load them from the cache) by an update of tiny float32 arrays."""
        params, grads = np.zeros(1, np.float32), np.zeros(1, np.float32)
        slots = {name: np.zeros(1, np.float32) for name in self.slots}
        factor = np.ones(1, np.float32)
        table = UpdateTable(np.zeros(1, np.int64), np.ones(1, np.int64), factor, factor)
        self.update(params, grads, slots, table, self.lr, 0, 1.0)
