"""The composer: a plan becomes one Python module of kernel calls on flat buffers, which numba compiles.

The module is plain source in the kernel cache's folder, so that it can be read and that numba can cache it.  It is
named by a hash of its text and of the sources of every kernel it calls, so that a kernel edited in a user's file is
noticed too (those of hpctrain name the cache folder itself).

The training pass is cut into segments where ranks meet to add something up (synchronised batch norm); the caller does
that between them.  What a segment hands on to the next lies in the workspace.

A pass is a list of calls whose arguments are offsets and sizes; the function between (`call_...`) makes the arrays, and
is compiled once for all layers of a kind.  Whole numbers stand in a table, because numba would compile a function
anew for each value of a literal argument.  Sizes in the module are a row's sizes; the number of rows that the workspace
holds (`capacity`) is an argument.  So the same compiled code serves every batch size and world size.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from hpctrain.kernels.elementwise import copy_array, zero_unless
from hpctrain.kernels.jit import cache_dir, kernel
from hpctrain.kernels.views import keep_apart, view
from hpctrain.nn.layers.base import Shape
from hpctrain.nn.plan import Plan, Step, Value

_TRAIN = "params, grads, state, stats, workspace, capacity, beta, inputs, targets, weight, ids, seed, step"
_PREDICT = "params, state, workspace, capacity, inputs, outputs"
_PASSED = {"ids", "seed", "step", "rows", "beta"}  # names that a pass hands on as they are


@dataclass(frozen=True)
class CompiledPlan:
    """The functions of a generated module, and its file.

    loss_and_grad(segment, params, grads, state, stats, workspace, capacity, beta, inputs, targets, weight, ids, seed,
        step) -> float64: runs a segment of the training pass; what all of them return adds up to the sum of the losses
    meets: what the ranks add up between a segment and the next; without any the pass is one segment
    predict(params, state, workspace, capacity, inputs, outputs)
    """

    loss_and_grad: Callable
    meets: tuple[Meet, ...]
    predict: Callable
    path: Path


@dataclass(frozen=True)
class Meet:
    """`count` float64 numbers in the workspace, `offset` floats behind all rows."""

    offset: int
    count: int


def compile_plan(plan: Plan, loss_kernel: Callable, loss_constants: tuple[float, ...]) -> CompiledPlan:
    """Write the module of a plan and a loss, and load it; numba compiles each function when it is first called."""
    writer = _Writer(plan)
    text = writer.module(loss_kernel, loss_constants)
    path = _store(text, writer.kernels)
    module = _load(path, writer.kernels)
    return CompiledPlan(module.loss_and_grad, tuple(writer.meets), module.predict, path)


class _Writer:
    """Writes the source of one plan; collects the kernels that it names."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernels: dict[str, Callable] = {}
        self.meets: list[Meet] = []  # between segments of the training pass
        self._layout = plan.graph.layout()
        self._state_layout = plan.graph.state_layout()
        self._numbers: dict[int, int] = {}  # a whole number -> its place in the module's table
        self._callers: dict[tuple[str, tuple[int | str, ...]], str] = {}
        self._caller_lines: list[str] = []

    def module(self, loss_kernel: Callable, loss_constants: tuple[float, ...]) -> str:
        """Return the text of the module."""
        train, predict = self._train_pass(loss_kernel, loss_constants), self._predict_pass()
        title = '"""Generated: one network as a sequence of kernel calls."""'
        table = f"N = np.array([{', '.join(map(str, self._numbers))}], np.int64)"
        return "\n".join([title, "", table, "", "", *self._caller_lines, *train, *predict])

    def _train_pass(self, loss_kernel: Callable, loss_constants: tuple[float, ...]) -> list[str]:
        plan = self.plan
        body: list[str | Meet] = []
        if self._state_layout.size:
            body.append(self._line(zero_unless, ["beta", _Flat("stats", 0, self._state_layout.size)]))
        body += [item for step in plan.forward for item in self._train_step(step)]
        width = plan.output.shape[-1:]
        views = [self._value(plan.output, width), "targets", "weight", self._value(plan.d_output, width)]
        body.append("    loss = " + self._line(loss_kernel, [*views, *loss_constants]).strip())
        for step in plan.backward:
            if step.zeroes:
                body.append(self._zero_gradients(step))
            body += self._train_step(step)
        head = ["@kernel", f"def loss_and_grad(segment, {_TRAIN}):", "    rows = inputs.shape[0]"]
        return [*head, *self._cut(body), "    return loss", "", ""]

    def _train_step(self, step: Step) -> Iterator[str | Meet]:
        for call, line in zip(step.calls, self._step(step), strict=True):
            yield line
            if call.meet is not None:
                buffer = step.values[call.meet]
                yield Meet(buffer.root.offset, buffer.size // 2)

    def _cut(self, body: list[str | Meet]) -> list[str]:
        """Return the training pass's lines, as one function whose argument `segment` says what runs between two meets.

        One, and not one for each segment: kernels that several segments call are then compiled into it once.
        """
        is_cut = any(isinstance(item, Meet) for item in body)
        lines = ["    loss = 0.0", "    if segment == 0:"] if is_cut else []
        for item in body:
            if isinstance(item, Meet):
                self.meets.append(item)
                lines.append(f"    elif segment == {len(self.meets)}:")
            else:
                lines.append(f"    {item}" if is_cut else item)
        return lines

    def _predict_pass(self) -> list[str]:
        lines = ["@kernel", f"def predict({_PREDICT}):", "    rows = inputs.shape[0]"]
        for step in self.plan.predict:
            if any(call.meet for call in step.calls):
                raise ValueError(
                    f"{step.node.name}: ranks cannot meet in an evaluation; it needs a `predict` of its own"
                )
            lines += self._step(step)
        source = self._value(self.plan.prediction, ())
        lines.append(self._line(copy_array, [source, _View("outputs", "0", f"rows * {self.plan.prediction.size}", ())]))
        return [*lines, ""]

    def _step(self, step: Step) -> list[str]:
        return [self._line(call.kernel, [self._argument(step, arg) for arg in call.args]) for call in step.calls]

    def _zero_gradients(self, step: Step) -> str:
        slots = [self._layout[f"{step.node.name}.{spec.name}"] for spec in step.built.params]
        # A layer's parameters follow one another; the padding between them is zero anyway.
        return self._line(zero_unless, ["beta", _Flat("grads", slots[0].offset, slots[-1].stop - slots[0].offset)])

    def _argument(self, step: Step, arg: str | int | float) -> _View | str | int | float:
        if not isinstance(arg, str):
            return arg
        if arg == "layer":
            return step.node.index
        if arg in _PASSED:
            return arg
        if arg in step.values:
            return self._value(step.values[arg], step.built.views.get(arg))
        return self._parameter(step, arg)

    def _parameter(self, step: Step, arg: str) -> _View:
        short = arg.removeprefix("d_")
        if short in {spec.name for spec in step.built.state}:
            buffer, layout = ("stats" if arg.startswith("d_") else "state"), self._state_layout
        else:
            buffer, layout = ("grads" if arg.startswith("d_") else "params"), self._layout
        slot = layout[f"{step.node.name}.{short}"]
        return _View(buffer, str(slot.offset), str(slot.shape[0] if slot.shape else 1), slot.shape[1:])

    def _value(self, value: Value, trailing: Shape | None) -> _View:
        shape = value.shape if trailing is None else trailing
        root, count = value.root, math.prod(shape)
        if not value.root.per_example:
            offset = f"capacity * {self.plan.row_floats} + {root.offset}"
            full = value.shape if trailing is None else (value.size // count, *trailing)
            return _View("workspace", offset, str(full[0] if full else 1), full[1:])
        leading = "rows" if value.size == count else f"rows * {value.size // count}"
        if root.external:
            return _View("inputs", "0", leading, shape)
        return _View("workspace", f"capacity * {root.offset}", leading, shape)

    def _line(self, function: Callable, args: list[_View | str | int | float]) -> str:
        """Return the line that calls a kernel, by way of a function that makes its arrays."""
        name = self._use(function)
        pattern = tuple(len(arg.trailing) + 1 if isinstance(arg, _View) else "value" for arg in args)
        caller = self._callers.get((name, pattern)) or self._add_caller(name, pattern)
        words: list[str] = []
        for arg in args:
            words += arg.words if isinstance(arg, _View) else [arg if isinstance(arg, str) else repr(arg)]
        words = [re.sub(r"\b\d+\b(?!\.)", self._number, word) if _is_whole(word) else word for word in words]
        return f"    {caller}({', '.join(words)})"

    def _add_caller(self, name: str, pattern: tuple[int | str, ...]) -> str:
        caller = f"call_{name}" + (f"_{len(self._callers)}" if any(key[0] == name for key in self._callers) else "")
        parameters, arrays = [], []
        for index, axes in enumerate(pattern):
            if axes == "value":
                parameters.append(f"a{index}")
                arrays.append(f"a{index}")
                continue
            sizes = [f"n{index}_{axis}" for axis in range(axes)]
            parameters += [f"b{index}", f"o{index}", *sizes]
            arrays.append(f"view(b{index}, o{index}, ({', '.join(sizes)},))")
        self._caller_lines += [
            "@kernel(cache=False)",
            f"def {caller}({', '.join(parameters)}):",
            "    keep_apart()",
            f"    return {name}({', '.join(arrays)})",
            "",
            "",
        ]
        self._callers[name, pattern] = caller
        return caller

    def _number(self, match: re.Match[str]) -> str:
        return f"N[{self._numbers.setdefault(int(match[0]), len(self._numbers))}]"

    def _use(self, function: Callable) -> str:
        base = getattr(function, "__name__", "kernel")
        name, number = base, 2
        while self.kernels.setdefault(name, function) is not function:
            name, number = f"{base}_{number}", number + 1
        return name


def _is_whole(word: str) -> bool:
    """Whether an argument is made of names and whole numbers ("capacity * 64"), and is no floating point number."""
    return not re.search(r"\d\.|\.\d|\de", word)


@dataclass(frozen=True)
class _View:
    """An array argument in words of the generated code: buffer, offset, length of the leading axis, the other axes."""

    buffer: str
    offset: str
    leading: str
    trailing: Shape

    @property
    def words(self) -> list[str]:
        return [self.buffer, self.offset, self.leading, *map(str, self.trailing)]


def _Flat(buffer: str, offset: int, size: int) -> _View:  # noqa: N802 (a constructor)
    return _View(buffer, str(offset), str(size), ())


def _store(text: str, kernels: dict[str, Callable]) -> Path:
    """Write the module's file, unless it is there, and return its path."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(kernels):
        function = getattr(kernels[name], "py_func", kernels[name])
        source = Path(inspect.getsourcefile(function) or "")
        digest.update(name.encode() + (source.read_bytes() if source.is_file() else b""))
    folder = cache_dir() / "generated"
    folder.mkdir(exist_ok=True)
    path = folder / f"model_{digest.hexdigest()[:20]}.py"
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(text)
        # The cached machine code is tied to this file's time stamp: the first writer's file must stay.
        try:
            os.link(temporary, path)
        except OSError:
            if not path.exists():
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def _load(path: Path, kernels: dict[str, Callable]) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hpctrain_generated_{path.stem}", path)
    if spec.name in sys.modules:
        return sys.modules[spec.name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # numba finds the function's module by name when it loads the cached code
    module.__dict__.update(kernels, np=np, kernel=kernel, view=view, keep_apart=keep_apart)
    spec.loader.exec_module(module)
    return module
