"""`Model`: a network's flat buffers and its compiled passes over a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.batch import Batch
from hpctrain.kernels.elementwise import blend
from hpctrain.memory import aligned_zeros
from hpctrain.nn import flat
from hpctrain.nn.compose import Composer, compile_plan
from hpctrain.nn.compose_lanes import LaneComposer
from hpctrain.nn.fixed_point import FixedPoint, Lanes
from hpctrain.nn.graph import build_graph
from hpctrain.nn.initializers import fill_initial
from hpctrain.nn.layers.base import Layer, Shape
from hpctrain.nn.plan import make_plan

_ROW_STEP = 16  # the workspace's rows are a multiple of this, so that every value in it starts on a cache line


class Sequential:
    """Layers one after another: what a `build` function in Python returns (a plain list does as well)."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)


class Model:
    """A network of layers with a loss, laid out and compiled.

    params       (layout.size,) float32: all trainable numbers; `layout` names the tensors
    state        (state_layout.size,) float32: running statistics; `state_layout` names them
    grad_buffer  float32: `grads`, `stats`, slots of `fixed`, and `tail`, summed over the ranks as one
    grads        (layout.size,) view: *sums* of gradients over examples, never means
    stats        (state_layout.size,) view: sums over examples of what the running statistics follow
    tail         (TAIL,) view: see nn/flat.py
    table        the optimizer's factors for ranges of `params`; set by who binds an optimizer to the model

    fixed        where the sums are taken by `lanes`, in fixed point: `FixedPoint`

    Within a pass gradients become final, from the buffer's end to its start: `ready_offsets`.  At those that `cut_at`
    chooses `loss_and_grad` tells its caller.

    `reduce` adds a float64 array up over the ranks, in place, for layers whose ranks meet within a pass (synchronised
    batch norm); None: there is one rank.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        input_shape: Shape,
        loss: Any,
        target_kind: str,
        *,
        seed: int = 0,
        allocate: Callable[..., np.ndarray] = aligned_zeros,
        allocate_gradients: Callable[[int], np.ndarray] | None = None,
        reduce: Callable[[np.ndarray], None] | None = None,
        dtype: Any = np.float32,
        lanes: Lanes | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.input_shape = tuple(input_shape) or (1,)
        self.loss = loss
        self.target_kind = target_kind
        self.seed = np.uint64(seed)
        self.dtype = np.dtype(dtype)
        self.graph = build_graph(self.layers, self.input_shape)
        self.plan = make_plan(self.graph, by_lane=lanes is not None)
        self.layout = self.graph.layout()
        self.state_layout = self.graph.state_layout()
        self.out_shape = self.graph.output_shape
        self.params = allocate(self.layout.size, dtype)
        self.state = allocate(self.state_layout.size, dtype)
        sizes = self.layout.size, self.state_layout.size
        slots = FixedPoint.slots(self.layout, self.state_layout, lanes.count) if lanes else 0
        summed = sum(sizes) + slots + flat.TAIL
        self.grad_buffer = allocate(summed, dtype) if allocate_gradients is None else allocate_gradients(summed)
        self.grads, self.stats = np.split(self.grad_buffer[: sum(sizes)], [sizes[0]])
        self.tail = self.grad_buffer[-flat.TAIL :]
        self.fixed = FixedPoint(self.layout, self.state_layout, lanes, self.grad_buffer) if lanes else None
        self.table: Any = None
        self._momentum = np.ones(self.state_layout.size, dtype)
        self._allocate = allocate
        self._predicting = threading.Lock()
        self._reduce = reduce or _alone
        composer = Composer if lanes is None else LaneComposer
        self._compiled = compile_plan(self.plan, loss.kernel_for(target_kind), loss.constants(), composer)
        self._own = allocate(self._compiled.own_floats, dtype)  # one layer's sums over a lane
        self._cuts: tuple[int, ...] = ()
        self._make_workspace(0)
        self._set_state()

    @property
    def ready_offsets(self) -> tuple[int, ...]:
        """Where `grads` is final from, in floats, as a backward pass goes on: descending, 0 at the end."""
        return tuple(lo for _, lo in self._compiled.ready)

    def cut_at(self, offsets: Sequence[int]) -> None:
        """Choose the `ready_offsets` of which `loss_and_grad` tells."""
        self._cuts = tuple(offsets)
        self._stops = self._stops_of_a_pass(self._cuts)

    @property
    def parameters(self) -> int:
        """Number of trainable numbers, without the padding."""
        return sum(slot.size for slot in self.layout)

    @property
    def sha256(self) -> str:
        """Hash of the weights: parameters, then state, as little-endian float32 in layout order."""
        return flat.weights_sha256((self.layout, self.params), (self.state_layout, self.state))

    @property
    def meets(self) -> bool:
        """Whether ranks meet within a pass: all of them must then make the same passes, also one without rows."""
        return bool(self._compiled.meets)

    def initialize(self) -> None:
        """Set the initial weights, a function of the seed and the layers alone, and the initial state."""
        index = 0
        for node in self.graph.nodes:
            for spec in node.built.params:
                view = self.layout.view(self.params, f"{node.name}.{spec.name}")
                fill_initial(view, spec.initializer, spec.fan_in, spec.fan_out, int(self.seed), index)
                index += 1
        self._set_state()

    def reserve(self, rows: int) -> None:
        """Make the workspace large enough for batches of `rows` examples; keeps it where it is large enough already."""
        if rows > self._capacity:
            self._make_workspace(-(-rows // _ROW_STEP) * _ROW_STEP)

    def loss_and_grad(
        self, batch: Batch, beta: float = 1.0, ready: Callable[[int, float], None] | None = None
    ) -> float:
        """Return the *sum* of the weighted losses over the rows (float64), and give its gradient.

        beta 1: the gradient is added to `grads` (and the statistics to `stats`); 0: it is stored, whatever they held.
        Where sums go by lanes, they go to `fixed`, in which the batch's lanes note their losses.
        Collective where `meets`: the gradient is then that of the losses of all ranks' rows by what this rank computed.
        ready(lo, loss): called at the cuts, when `grads[lo:]` and `stats` are final, with the sum of the losses.
        """
        return self._pass_over(batch, beta, self._reduce, ready)

    def _pass_over(
        self,
        batch: Batch,
        beta: float,
        reduce: Callable[[np.ndarray], None],
        ready: Callable[[int, float], None] | None = None,
    ) -> float:
        self.reserve(batch.rows)
        targets, weight = batch.targets, batch.weight
        if targets.ndim > 1 and self.target_kind == "class":
            targets = targets.reshape(-1)
        if weight.ndim > 1:
            weight = weight.reshape(-1)
        rest = (*self._room, beta, batch.inputs, targets, weight, batch.ids, self.seed, batch.step)
        run, head = self._compiled.loss_and_grad, self._buffers
        if (fixed := self.fixed) is not None:
            lane = batch.first // fixed.rows
            head = (*head, self._own, self.state, fixed.sums, fixed.scales, fixed.largest[lane], fixed.losses[lane:])
            rest = (*rest, fixed.rows)
        loss = 0.0
        for first, last, numbers, lo in self._meetings if ready is None else self._stops:
            loss += run(first, last, *head, *rest)
            if numbers is not None:
                reduce(numbers)
            elif lo is not None:
                ready(lo, loss)
        return loss

    def _stops_of_a_pass(self, cuts: Sequence[int]) -> tuple[tuple[int, int, np.ndarray | None, int | None], ...]:
        """Return the segments: first and last call, and what follows: numbers to reduce, an offset to tell of, none."""
        compiled = self._compiled
        stops = [(last, 0, numbers, None) for (_, last), numbers in zip(compiled.segments, self._meeting, strict=False)]
        stops += [(calls, 1, None, lo) for calls, lo in compiled.ready if lo in cuts]
        stops.sort(key=lambda stop: stop[:2])
        if not stops or stops[-1][0] < len(compiled.train_program):
            stops.append((len(compiled.train_program), 2, None, None))
        firsts = [0, *(stop[0] for stop in stops)]
        return tuple((first, last, numbers, lo) for first, (last, _, numbers, lo) in zip(firsts, stops, strict=False))

    def predict(self, inputs: np.ndarray, outputs: np.ndarray) -> None:
        """Compute the network's outputs (rows, *out_shape) for inputs (rows, *input_shape), without dropout.

        Threads may call it at the same time: one after the other has the workspace.
        """
        with self._predicting:
            self.reserve(len(inputs))
            compiled = self._compiled
            whole = (0, len(compiled.predict_program), compiled.predict_program, *compiled.numbers)
            compiled.predict(*whole, self.params, self.state, self._workspace, self._capacity, inputs, outputs)

    def update_state(self, rows: float) -> None:
        """Move the running statistics by `stats`, the sums over `rows` examples of all ranks."""
        if self.state_layout.size and rows > 0:
            blend(self.state, self.stats, self._momentum, 1.0 / rows)

    def warm_up(self) -> None:
        """Run both passes once on a dummy row: compiles them, or loads them from the cache; leaves gradients zero.

        Nobody is met: ranks may call it at different times.
        """
        batch = self.dummy_batch(1)
        self._pass_over(batch, 1.0, _alone)
        self.predict(batch.inputs, np.zeros((1, *self.out_shape), self.dtype))
        if self.state_layout.size:
            blend(self.state.copy(), self.stats, self._momentum, 1.0)
        self.grad_buffer[:] = 0
        if self.fixed is not None:
            self.fixed.warm_up()

    def dummy_batch(self, rows: int) -> Batch:
        """Return so many rows of zeros that a pass takes as long over as over others."""
        targets, weight = (
            np.tile(of_a_row, (rows, *[1] * (of_a_row.ndim - 1)))
            for of_a_row in self.loss.dummy_rows(self.target_kind, self.out_shape)
        )
        inputs = np.zeros((rows, *self.input_shape), self.dtype)
        return Batch(inputs, targets, weight, np.arange(rows, dtype=np.int64), 0, 0)

    def _make_workspace(self, capacity: int) -> None:
        self._capacity = capacity
        self._workspace = self._allocate(self.plan.workspace_floats(capacity), self.dtype)
        compiled = self._compiled
        # What every pass is given: put together once, because a small network feels it.
        self._buffers = (compiled.train_program, *compiled.numbers, self.params)
        self._buffers += () if self.fixed is not None else (self.grads, self.state, self.stats)
        self._room = (self._workspace, capacity)
        fixed = self._workspace[capacity * self.plan.row_floats :]
        self._meeting = [fixed[meet.offset :].view(np.float64)[: meet.count] for meet in compiled.meets]
        self._meetings, self._stops = self._stops_of_a_pass(()), self._stops_of_a_pass(self._cuts)

    def _set_state(self) -> None:
        for node in self.graph.nodes:
            for spec in node.built.state:
                slot = self.state_layout[f"{node.name}.{spec.name}"]
                self.state[slot.offset : slot.stop] = spec.initial
                self._momentum[slot.offset : slot.stop] = spec.momentum


def _alone(numbers: np.ndarray) -> None:
    """Leave the numbers as they are: the sum over one rank."""
