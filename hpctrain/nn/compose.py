"""The composer: a plan becomes a program, a list of kernel calls on flat buffers, and a compiled function that runs it.

A program is data: for each call the number of what is called, and where its offsets and sizes stand in a table.  What
is compiled is a module with one function for each kind of call (`call_...`), which makes the arrays and calls the
kernel, and a loop that goes through the program.  Nothing in the module depends on sizes or on how many layers there
are: compiling does not grow with depth, and networks of the same kinds of layers, batches of any size and any number of
ranks share the code.  Sizes in the table are a row's sizes; how many rows there are, and how many the workspace holds
(`capacity`), are arguments.

The training pass is cut into segments where ranks meet to add something up (synchronised batch norm); the caller does
that between them.  What a segment hands on to the next lies in the workspace.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpctrain.kernels.elementwise import copy_array, zero_unless
from hpctrain.nn.generated import load, store
from hpctrain.nn.layers.base import Shape
from hpctrain.nn.plan import Plan, Step, Value

_PROGRAM = "first, last, program, table, reals"
_TRAIN = "params, grads, state, stats, workspace, capacity, beta, inputs, targets, weight, ids, seed, step"
_PREDICT = "params, state, workspace, capacity, inputs, outputs"
_PASSED = {"ids", "seed", "step", "rows", "beta"}  # names that a pass hands on as they are


@dataclass(frozen=True)
class Meet:
    """`count` float64 numbers in the workspace, `offset` floats behind all rows."""

    offset: int
    count: int


class CompiledPlan:
    """The passes of a plan, compiled when they are first called.

    loss_and_grad(first, last, train_program, *numbers, params, grads, state, stats, workspace, capacity, beta, inputs,
        targets, weight, ids, seed, step) -> float64: runs the calls `first` to `last` of the training pass; what all of
        them return adds up to the sum of the losses
    predict(first, last, predict_program, *numbers, params, state, workspace, capacity, inputs, outputs)
    segments  first and last of what runs without a meet; without meets the training pass is one segment
    meets     what the ranks add up between a segment and the next
    ready     (calls, lo): after so many calls of the training pass, `grads[lo:]` stays as it is; lo descends to 0
    path      the generated module's file
    own_floats  of passes by lanes: what one layer's sums over a lane take (see `compose_lanes`)
    """

    def __init__(self, path: Path, kernels: dict[str, Callable], composer: Composer) -> None:
        module = load(path, kernels)
        self.path = path
        self.loss_and_grad, self.predict = module.loss_and_grad, module.predict
        self.numbers = np.array(composer.table, np.int64), np.array(composer.reals, np.float64)
        self.train_program = np.array(composer.train.calls, np.int64)
        self.predict_program = np.array(composer.predict.calls, np.int64)
        cuts = [0, *composer.train.cuts, len(self.train_program)]
        self.segments = tuple(zip(cuts, cuts[1:], strict=False))
        self.meets = tuple(composer.train.meets)
        self.ready = composer.ready()
        self.own_floats = composer.own_floats


def compile_plan(
    plan: Plan, loss_kernel: Callable, loss_constants: tuple[float, ...], kind: type[Composer] | None = None
) -> CompiledPlan:
    """Write the module of a plan and a loss, and load it; numba compiles each function when it is first called.

    kind  `compose_lanes.LaneComposer` for a plan that is made for lanes
    """
    composer = (kind or Composer)(plan, loss_kernel, loss_constants)
    return CompiledPlan(store(composer.text(), composer.kernels), composer.kernels, composer)


@dataclass(frozen=True)
class View:
    """An array argument: a buffer, where in it (capacity * by_capacity + offset), and the array's axes.

    The leading axis has rows * by_rows + leading elements.  `is_input`: the buffer is the batch's inputs in place of
    the workspace, a matter of data and not of kind, so that the first layer shares what is compiled.
    """

    buffer: str
    by_capacity: int
    offset: int
    by_rows: int
    leading: int
    trailing: Shape
    is_input: bool = False

    @property
    def kind(self) -> tuple[str, int]:
        """What a call's function is compiled for: the buffer, and the number of axes."""
        return self.buffer, 1 + len(self.trailing)

    @property
    def numbers(self) -> list[int]:
        """What the call's function reads in the table, in order."""
        offset = [self.offset]
        if self.buffer == "workspace":
            offset = [int(self.is_input), self.by_capacity, self.offset]
        return [*offset, self.by_rows, self.leading, *self.trailing]


def _flat(buffer: str, offset: int, size: int) -> View:
    return View(buffer, 0, offset, 0, size, ())


Argument = View | str | int | float
# A kernel's name, and what each argument is: see `Composer._call`.
Kind = tuple[str, tuple[str | tuple[str, int], ...]]


class Pass:
    """The program of one pass: calls (number of the kind, place in the table), and where it is cut."""

    def __init__(self) -> None:
        self.kinds: dict[Kind, int] = {}
        self.calls: list[tuple[int, int]] = []
        self.cuts: list[int] = []
        self.meets: list[Meet] = []

    def add(self, kind: Kind, at: int) -> None:
        """Add a call of a kind whose numbers begin at a place of the table."""
        self.calls.append((self.kinds.setdefault(kind, len(self.kinds)), at))


class Composer:
    """Turns one plan into programs, their numbers, and the text of the module that runs them."""

    own_floats = 0

    def __init__(self, plan: Plan, loss_kernel: Callable, loss_constants: tuple[float, ...]) -> None:
        self.plan = plan
        self.kernels: dict[str, Callable] = {}
        self.table: list[int] = []
        self.reals: list[float] = [0.0]
        self.train, self.predict = Pass(), Pass()
        self._written: dict[str, int] = {}  # a node's name -> calls of the training pass until its gradients are there
        self._layout = plan.graph.layout()
        self._state_layout = plan.graph.state_layout()
        self._compose_train(loss_kernel, loss_constants)
        self._compose_predict()

    def _compose_train(self, loss_kernel: Callable, loss_constants: tuple[float, ...]) -> None:
        plan = self.plan
        if self._state_layout.size:
            self._call(self.train, zero_unless, ["beta", _flat("stats", 0, self._state_layout.size)])
        for step in plan.forward:
            self._add_step(step)
        width = plan.output.shape[-1:]
        views = [self._value(plan.output, width), "targets", "weight", self._value(plan.d_output, width)]
        self._loss = self._call(self.train, loss_kernel, [*views, *loss_constants])
        for step in plan.backward:
            if step.zeroes:
                self._zero_gradients(step)
            self._add_step(step)

    def _add_step(self, step: Step) -> None:
        program = self.train
        for call in step.calls:
            arguments = [self._argument(step, arg) for arg in call.args]
            self._call(program, call.kernel, arguments)
            if any(isinstance(arg, View) and arg.buffer == "grads" for arg in arguments):
                self._written[step.node.name] = len(program.calls)
            if call.meet is not None:
                buffer = step.values[call.meet]
                program.meets.append(Meet(buffer.root.offset, buffer.size // 2))
                program.cuts.append(len(program.calls))

    def _compose_predict(self) -> None:
        for step in self.plan.predict:
            for call in step.calls:
                if call.meet:
                    raise ValueError(
                        f"{step.node.name}: ranks cannot meet in an evaluation; it needs a `predict` of its own"
                    )
                self._call(self.predict, call.kernel, [self._argument(step, arg) for arg in call.args])
        outputs = View("outputs", 0, 0, self.plan.prediction.size, 0, ())
        self._call(self.predict, copy_array, [self._value(self.plan.prediction, ()), outputs])

    def _zero_gradients(self, step: Step) -> None:
        slots = [self._layout[f"{step.node.name}.{spec.name}"] for spec in step.built.params]
        # A layer's parameters follow one another; the padding between them is zero anyway.
        view = _flat("grads", slots[0].offset, slots[-1].stop - slots[0].offset)
        self._call(self.train, zero_unless, ["beta", view])

    def ready(self) -> tuple[tuple[int, int], ...]:
        """Return after how many calls which end of the gradients is final: see `CompiledPlan.ready`."""
        params = {node.name: node.built.params for node in self.plan.graph.nodes if node.built.params}
        stops = {name: self._layout[f"{name}.{specs[-1].name}"].stop for name, specs in params.items()}
        found: list[tuple[int, int]] = []
        for calls in sorted(set(self._written.values())):
            lo = max((stops[name] for name, last in self._written.items() if last > calls), default=0)
            if lo < (found[-1][1] if found else self._layout.size):
                found.append((calls, lo))
        return tuple(found)

    def _argument(self, step: Step, arg: str | int | float) -> Argument:
        if not isinstance(arg, str):
            return arg
        if arg == "layer":
            return step.node.index
        if arg in _PASSED:
            return arg
        if arg in step.values:
            return self._value(step.values[arg], step.built.views.get(arg))
        return self._parameter(step, arg)

    def _parameter(self, step: Step, arg: str) -> View:
        short = arg.removeprefix("d_")
        if short in {spec.name for spec in step.built.state}:
            buffer, layout = ("stats" if arg.startswith("d_") else "state"), self._state_layout
        else:
            buffer, layout = ("grads" if arg.startswith("d_") else "params"), self._layout
        slot = layout[f"{step.node.name}.{short}"]
        return View(buffer, 0, slot.offset, 0, slot.shape[0] if slot.shape else 1, slot.shape[1:])

    def _value(self, value: Value, trailing: Shape | None) -> View:
        shape = value.shape if trailing is None else trailing
        root, count = value.root, math.prod(shape)
        if not root.per_example:
            full = value.shape if trailing is None else (value.size // count, *trailing)
            return View("workspace", self.plan.row_floats, root.offset, 0, full[0] if full else 1, full[1:])
        if root.external:
            return View("workspace", 0, 0, value.size // count, 0, shape, is_input=True)
        return View("workspace", root.offset, 0, value.size // count, 0, shape)

    def _call(self, program: Pass, function: Callable, args: list[Argument]) -> Kind:
        """Add a call to a pass; its numbers go to the tables.  Return its kind.

        An argument's kind: of an array, its buffer and number of axes; "whole" or "real" for numbers, "reals" and
        how many for a tuple of them; a name itself.
        """
        at, kinds = len(self.table), []
        for arg in args:
            if isinstance(arg, View):
                kinds.append(arg.kind)
                self.table += arg.numbers
            elif isinstance(arg, int):
                kinds.append("whole")
                self.table.append(int(arg))
            elif isinstance(arg, float):
                kinds.append("real")
                self.table.append(len(self.reals))
                self.reals.append(arg)
            elif isinstance(arg, tuple):
                kinds.append(("reals", len(arg)))
                self.table += range(len(self.reals), len(self.reals) + len(arg))
                self.reals += arg
            else:
                kinds.append(arg)
        kind = (self._use(function), tuple(kinds))
        program.add(kind, at)
        return kind

    def _use(self, function: Callable) -> str:
        base = getattr(function, "__name__", "kernel")
        name, number = base, 2
        while self.kernels.setdefault(name, function) is not function:
            name, number = f"{base}_{number}", number + 1
        return name

    def text(self) -> str:
        """Return the text of the module."""
        kinds = dict.fromkeys([*self.train.kinds, *self.predict.kinds])
        names = {kind: f"call_{number}_{kind[0]}" for number, kind in enumerate(kinds)}
        lines = ['"""Generated: kinds of kernel calls, and the loops that run programs of them."""', "", ""]
        for kind, name in names.items():
            lines += self._caller(name, kind)
        lines += self._train_loop(names)
        return "\n".join([*lines, *self._loop("predict", _PREDICT, self.predict, names)])

    def _train_loop(self, names: dict[Kind, str]) -> list[str]:
        return self._loop("loss_and_grad", _TRAIN, self.train, names)

    def _loop(self, name: str, parameters: str, program: Pass, names: dict[Kind, str]) -> list[str]:
        lines = [
            "@kernel",
            f"def {name}({_PROGRAM}, {parameters}):",
            "    rows = inputs.shape[0]",
            "    loss = 0.0",
            "    for i in range(first, last):",
            "        kind, at = program[i, 0], program[i, 1]",
        ]
        for kind, number in program.kinds.items():
            lines.append(f"        {'elif' if number else 'if'} kind == {number}:")
            result = "loss += " if kind == self._loss else ""
            lines.append(f"            {result}{names[kind]}({self._parameters(kind)})")
        return [*lines, "    return loss", "", ""]

    def _parameters(self, kind: Kind) -> str:
        """Return the parameters of the function for a kind of call."""
        named = dict.fromkeys(word if isinstance(word, str) else word[0] for word in kind[1])
        if "workspace" in named:
            named |= {"inputs": None, "capacity": None}
        words = [word for word in named if word not in ("whole", "real", "reals", "rows")]
        return ", ".join(["table", "reals", "at", "rows", *words])

    def _caller(self, name: str, kind: Kind) -> list[str]:
        """Return the function for a kind of call: it makes the arrays, and calls the kernel."""
        places = itertools.count()

        def number() -> str:
            return f"table[at + {next(places)}]"

        def argument(word: str | tuple[str, int]) -> str:
            if word == "whole":
                return number()
            if word == "real":
                return f"reals[{number()}]"
            if isinstance(word, str):
                return self._word(word)
            buffer, axes = word
            if buffer == "reals":
                return f"({', '.join(f'reals[{number()}]' for _ in range(axes))},)"
            if buffer == "workspace":
                start = f"view_of_either(workspace, inputs, {number()}, {self._place(number)}"
            else:
                start = f"view({buffer}, {number()}"
            sizes = [f"rows * {number()} + {number()}", *(number() for _ in range(axes - 1))]
            return f"{start}, ({', '.join(sizes)},))"

        return [
            "@kernel(cache=False, no_cpython_wrapper=True)",  # nobody calls it but the loop
            f"def {name}({self._parameters(kind)}):",
            "    keep_apart()",
            f"    return {kind[0]}({', '.join(map(argument, kind[1]))})",
            "",
            "",
        ]

    def _word(self, word: str) -> str:
        """Return the text of an argument that a pass hands on."""
        return word

    def _place(self, number: Callable[[], str]) -> str:
        """Return the text of where in the workspace an array is."""
        return f"capacity * {number()} + {number()}"
