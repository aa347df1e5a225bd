"""The composer of passes over several lanes: sums over rows end within a lane, and are rounded to fixed point there.

What treats each row by itself runs over all rows at once, as in `compose`.  A call that sums over rows (of gradients,
of running statistics) runs once for each lane, on the lane's rows; its sums go to a piece of memory of their own and
are rounded from there.  A kernel that knows about lanes (`Call.by_lane`) does that itself.  The program says so: two
kinds of entries begin lanes, and go on with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpctrain.kernels.elementwise import zero_unless
from hpctrain.kernels.fixed_point import round_lane
from hpctrain.nn.compose import Argument, Composer, Kind, Pass, View
from hpctrain.nn.flat import Slot
from hpctrain.nn.layers.base import Call, Shape
from hpctrain.nn.plan import Step, Value

BEGIN, NEXT = -1, -2  # kinds of entries of a program, beside those of calls
_BY_ROW = ("targets", "weight", "ids")  # arrays of the batch
_FIXED = {"sum": "sums", "scale": "scales", "largest": "largest"}
_TRAIN = f"""\
@kernel
def loss_and_grad(
    first, last, program, table, reals, params, own, state, sums, scales, largest, losses, workspace, capacity, beta,
    inputs, targets, weight, ids, seed, step, lane,
):
    total = inputs.shape[0]
    row, rows, i, loss = 0, total, first, 0.0
    while i < last:
        kind, at = program[i, 0], program[i, 1]
        i += 1
        if kind == {BEGIN}:
            rows = min(lane, total)
        elif kind == {NEXT}:
            row += rows
            rows = min(lane, total - row)
            if rows > 0:
                i = at
            else:
                row, rows = 0, total"""


@dataclass(frozen=True)
class _RowView(View):
    """A view that moves on by `stride` elements from row to row."""

    stride: int = 0

    @property
    def numbers(self) -> list[int]:
        which, by_capacity, offset, *sizes = super().numbers
        return [which, by_capacity, offset, self.stride, *sizes]


class LaneComposer(Composer):
    """Turns a plan that is made for lanes into programs.

    loss_and_grad is given, in place of `grads` and `stats`: `own` (a layer's sums over one lane), `sums` (int32),
    `scales` and `largest` of all tensors (see `fixed_point`), `losses` of the lanes (float64) and `lane`, the rows of
    one.
    """

    def _compose_train(self, loss_kernel: Callable, loss_constants: tuple[float, ...]) -> None:
        plan = self.plan
        self.own_floats = 1
        slots = [*self._layout, *self._state_layout]
        self._numbers = {slot.name: number for number, slot in enumerate(slots)}
        for step in plan.forward:
            self._add_step(step)
        width = plan.output.shape[-1:]
        views = [self._value(plan.output, width), "targets", "weight", self._value(plan.d_output, width)]
        with self._each_lane():
            self._loss = self._call(self.train, loss_kernel, [*views, *loss_constants])
        for step in plan.backward:
            self._add_step(step)

    def _add_step(self, step: Step) -> None:
        """Add a step's calls, those that sum over rows lane by lane.

        All of them go lane by lane where they hand something on that is no row's own, or add to each other's sums.
        """
        apart = [call.together or bool(_summed(step, call)) for call in step.calls]
        named = {arg for call in step.calls for arg in call.args if isinstance(arg, str)}
        hands_on = any(not step.values[name].per_example for name in named & step.values.keys())
        summed = [name for call in step.calls for name in _summed(step, call)]
        if any(apart) and (hands_on or len(summed) > len(set(summed))):
            self._add_by_lane(step, step.calls)
            return
        for call, is_apart in zip(step.calls, apart, strict=True):
            if call.by_lane is not None:
                self._add_call(step, call.by_lane)
            elif is_apart:
                self._add_by_lane(step, (call,))
            else:
                self._add_call(step, call)

    def _add_call(self, step: Step, call: Call) -> None:
        self._call(self.train, call.kernel, [self._argument(step, arg) for arg in call.args])

    def _add_by_lane(self, step: Step, calls: tuple[Call, ...]) -> None:
        """Add calls that run once for each lane, and the rounding of what they sum."""
        summed = list(dict.fromkeys(name for call in calls for name in _summed(step, call)))
        with self._each_lane():
            if summed and not any("beta" in call.args for call in calls):
                stop = max(self._place_of(step, name) + self._slot(step, name).size for name in summed)
                self._call(self.train, zero_unless, [0.0, View("own", 0, 0, 0, stop, ())])
            for call in calls:
                args = [0.0 if arg == "beta" else self._argument(step, arg) for arg in call.args]
                self._call(self.train, call.kernel, args)
            for name in summed:
                size = self._slot(step, name).size
                values = View("own", 0, self._place_of(step, name), 0, size, ())
                sums = View("sums", 0, self._offset(step, name), 0, size, ())
                scale, largest = (self._fixed(step, f"{kind}_{name}") for kind in ("scale", "largest"))
                self._call(self.train, round_lane, [values, scale, sums, largest, "beta", "row"])

    @contextmanager
    def _each_lane(self) -> Iterator[None]:
        """Have what is added inside the `with` run for one lane after another."""
        calls = self.train.calls
        calls.append((BEGIN, 0))
        first = len(calls)
        yield
        calls.append((NEXT, first))

    def _argument(self, step: Step, arg: str | int | float) -> Argument:
        if arg == "lane" or not isinstance(arg, str) or arg in step.values:
            return arg if arg == "lane" else super()._argument(step, arg)
        kind, _, name = arg.partition("_")
        return self._fixed(step, arg) if kind in _FIXED and name else super()._argument(step, arg)

    def _parameter(self, step: Step, arg: str) -> View:
        if not arg.startswith("d_"):
            return super()._parameter(step, arg)
        name = arg.removeprefix("d_")
        slot, place = self._slot(step, name), self._place_of(step, name)
        self.own_floats = max(self.own_floats, place + slot.size)
        return View("own", 0, place, 0, slot.shape[0] if slot.shape else 1, slot.shape[1:])

    def _slot(self, step: Step, name: str) -> Slot:
        full = f"{step.node.name}.{name}"
        return self._layout[full] if name in _names(step.built.params) else self._state_layout[full]

    def _place_of(self, step: Step, name: str) -> int:
        """Return where in `own` a tensor's sums stand: as the layer's tensors lie in the flat buffers."""
        params = _names(step.built.params)
        first = params[0] if name in params else _names(step.built.state)[0]
        return self._slot(step, name).offset - self._slot(step, first).offset

    def _offset(self, step: Step, name: str) -> int:
        slot = self._slot(step, name)
        return slot.offset if name in _names(step.built.params) else self._layout.size + slot.offset

    def _fixed(self, step: Step, arg: str) -> View:
        kind, _, name = arg.partition("_")
        slot = self._slot(step, name)
        if kind != "sum":
            return View(_FIXED[kind], 0, self._numbers[slot.name], 0, 1, ())
        return View("sums", 0, self._offset(step, name), 0, slot.shape[0] if slot.shape else 1, slot.shape[1:])

    def _value(self, value: Value, trailing: Shape | None) -> View:
        if value.by_lane:
            return _RowView("workspace", value.root.offset, 0, 0, value.shape[0], value.shape[1:], stride=value.size)
        view = super()._value(value, trailing)
        stride = value.size if value.root.per_example else 0
        return _RowView(*(view.__dict__[name] for name in View.__dataclass_fields__), stride=stride)

    def _train_loop(self, names: dict[Kind, str]) -> list[str]:
        lines = _TRAIN.split("\n")
        for kind, number in self.train.kinds.items():
            call = f"{names[kind]}({self._parameters(kind)})"
            lines.append(f"        elif kind == {number}:")
            if kind == self._loss:
                lines += [f"            losses[row // lane] = {call}", "            loss += losses[row // lane]"]
            else:
                lines.append(f"            {call}")
        return [*lines, "    return loss", "", ""]

    def _loop(self, name: str, parameters: str, program: Pass, names: dict[Kind, str]) -> list[str]:
        lines = super()._loop(name, parameters, program, names)
        return [line.replace("    loss = 0.0", "    loss, row = 0.0, 0") for line in lines]

    def _parameters(self, kind: Kind) -> str:
        words = super()._parameters(kind).split(", ")
        more = ["inputs"] if any(word in _BY_ROW for word in words) else []
        return ", ".join(dict.fromkeys([*words, "row", *more]))

    def _word(self, word: str) -> str:
        return f"rows_of({word}, row, rows, inputs.shape[0])" if word in _BY_ROW else word

    def _place(self, number: Callable[[], str]) -> str:
        return f"{super()._place(number)} + row * {number()}"


def _names(specs: tuple) -> list[str]:
    return [spec.name for spec in specs]


def _summed(step: Step, call: Call) -> list[str]:
    """Return the parameters and running statistics whose sums over rows a call makes."""
    own = {*_names(step.built.params), *_names(step.built.state)}
    names = [arg.removeprefix("d_") for arg in call.args if isinstance(arg, str) and arg.startswith("d_")]
    return [name for name in names if name in own]
