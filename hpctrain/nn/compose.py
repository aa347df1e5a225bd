"""The composer: a list of layers becomes one Python module of kernel calls on flat buffers, which numba compiles.

The plan says where every value lives; the module is plain source in the kernel cache's folder, so that it can be read
and that numba can cache it.  It is named by a hash of its text and of the sources of every kernel it calls, so that a
kernel edited in a user's file is noticed too (those of hpctrain name the cache folder itself).

Sizes in the module are a row's sizes; the number of rows that the workspace holds (`capacity`) is an argument.  So the
same compiled code serves every batch size and world size.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hpctrain.errors import UserError
from hpctrain.kernels.jit import cache_dir, kernel
from hpctrain.nn.flat import Layout
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer, Shape

INPUTS = -1  # storage of the network's inputs: the batch's own memory, never written to


@dataclass(frozen=True)
class Value:
    """One example's array in the network: its shape, and the workspace offset (floats a row) where it lives."""

    offset: int
    shape: Shape

    @property
    def size(self) -> int:
        """Floats in one example's value."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Node:
    """A layer in its place: its number and name, what it built, and where its values live."""

    index: int
    name: str
    built: BuiltLayer
    x: Value
    y: Value
    y_predict: Value
    buffers: dict[str, Value]
    dx: Value | None
    dy: Value


@dataclass(frozen=True)
class Plan:
    """A network laid out: its nodes in order, its parameter layout, and the floats of workspace that a row needs."""

    nodes: tuple[Node, ...]
    layout: Layout
    inputs: Value
    output: Value
    d_output: Value
    row_floats: int
    first_trainable: int  # nodes before this one get no gradients: nothing there learns


def layer_name(layers: Sequence[Layer], index: int) -> str:
    """Return the name of a layer in messages and files: its class and place, "dense1"."""
    return f"{type(layers[index]).__name__.lower()}{index}"


def build_layers(layers: Sequence[Layer], input_shape: Shape) -> list[BuiltLayer]:
    """Build every layer for the shape that the one before gives; a shape that does not fit names the layer."""
    shape, built = input_shape, []
    for index, layer in enumerate(layers):
        try:
            one = layer.build(shape)
        except UserError as error:
            raise UserError(
                f"model.layers.{index} ({layer_name(layers, index)}) "
                f"cannot take inputs of shape {shape}: {error.message}"
            ) from None
        built.append(one)
        shape = one.out_shape
    return built


def make_plan(layers: Sequence[Layer], input_shape: Shape) -> Plan:
    """Lay a chain of layers out: every value's place in the workspace, every parameter's place in the flat buffer.

    An elementwise layer works in place unless the layer before still needs its output for its backward pass.  Gradients
    of values alternate between two areas.
    """
    built = build_layers(layers, input_shape)
    layout = Layout(
        (f"{layer_name(layers, index)}.{spec.name}", spec.shape)
        for index, one in enumerate(built)
        for spec in one.params
    )
    floats = 0
    kept: set[int] = {INPUTS}  # offsets whose contents a backward pass still reads

    def place(shape: Shape) -> Value:
        nonlocal floats
        value = Value(floats, shape)
        floats += max(value.size, 1)
        return value

    x = x_predict = inputs = Value(INPUTS, input_shape)
    forward: list[tuple[Value, Value, Value, dict[str, Value]]] = []
    for one in built:
        if one.forward is None or (one.in_place and x.offset not in kept):
            y = Value(x.offset, one.out_shape)
        else:
            y = place(one.out_shape)
        if one.backward is not None and "y" in one.backward.args:
            kept.add(y.offset)
        passes_through = one.forward is None or one.predict == "alias"
        y_predict = Value(x_predict.offset, one.out_shape) if passes_through else y
        forward.append((x, x_predict, y, {name: place(shape) for name, shape in one.buffers.items()}))
        x, x_predict = y, y_predict
    output = x_predict

    widest = max((math.prod(one.out_shape) for one in built), default=1)
    areas = [place((widest,)), place((widest,))]
    first = next((index for index, one in enumerate(built) if one.params), len(built))
    d_output = Value(areas[0].offset, built[-1].out_shape if built else input_shape)
    dy, gradients = d_output, []
    for index in range(len(built) - 1, -1, -1):
        one, in_shape = built[index], forward[index][0].shape
        if one.forward is None or one.in_place or one.views.get("dx") == ():
            dx = Value(dy.offset, in_shape)
        else:
            dx = Value(areas[1].offset if dy.offset == areas[0].offset else areas[0].offset, in_shape)
        gradients.append((dx if index > first else None, dy))
        dy = dx
    gradients.reverse()
    nodes = []
    for index, one in enumerate(built):
        x, x_predict, y, buffers = forward[index]
        y_predict = forward[index + 1][1] if index + 1 < len(built) else output
        dx, dy = gradients[index]
        nodes.append(Node(index, layer_name(layers, index), one, x, y, y_predict, buffers, dx, dy))
    return Plan(tuple(nodes), layout, inputs, output, d_output, floats, first)


@dataclass(frozen=True)
class CompiledPlan:
    """The functions of a generated module.

    loss_and_grad(params, grads, state, workspace, capacity, inputs, targets, weight, ids, seed, step) -> float64
    predict(params, state, workspace, capacity, inputs, outputs)
    """

    loss_and_grad: Callable
    predict: Callable
    path: Path


def compile_plan(plan: Plan, loss_kernel: Callable, loss_constants: tuple[float, ...]) -> CompiledPlan:
    """Write the module of a plan and a loss, and load it; numba compiles each function when it is first called."""
    writer = _Writer(plan)
    text = writer.module(loss_kernel, loss_constants)
    path = _store(text, writer.kernels)
    module = _load(path, writer.kernels)
    return CompiledPlan(module.loss_and_grad, module.predict, path)


class _Writer:
    """Writes the source of one plan; collects the kernels that it names."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernels: dict[str, Callable] = {}

    def module(self, loss_kernel: Callable, loss_constants: tuple[float, ...]) -> str:
        plan, lines = self.plan, ['"""Generated: one network as a sequence of kernel calls."""', "", ""]
        lines += [
            "@kernel",
            "def loss_and_grad(params, grads, state, workspace, capacity, inputs, targets, weight, ids, seed, step):",
            "    rows = inputs.shape[0]",
        ]
        lines += [self._call(node, node.built.forward) for node in plan.nodes if node.built.forward]
        width = plan.output.shape[-1:]
        # Training passes through dropout, so the loss reads the last layer's training output.
        last = plan.nodes[-1].y if plan.nodes else plan.inputs
        outputs, gradient = self._view(last, width), self._view(plan.d_output, width)
        extra = "".join(f", {constant!r}" for constant in loss_constants)
        lines.append(f"    loss = {self._use(loss_kernel)}({outputs}, targets, weight, {gradient}{extra})")
        for node in reversed(plan.nodes[plan.first_trainable :]):
            call = node.built.backward_params if node.index == plan.first_trainable else node.built.backward
            if call:
                lines.append(self._call(node, call))
        lines += ["    return loss", "", ""]
        lines += [
            "@kernel",
            "def predict(params, state, workspace, capacity, inputs, outputs):",
            "    rows = inputs.shape[0]",
        ]
        x = plan.inputs
        for node in plan.nodes:
            call = node.built.forward if node.built.predict is None else node.built.predict
            if isinstance(call, Call):
                lines.append(self._call(node, call, x=x, y=node.y_predict))
            x = node.y_predict
        lines += ["    result = " + self._view(plan.output, ()), "    flat = outputs.reshape(outputs.size)"]
        lines += ["    for i in range(flat.size):", "        flat[i] = result[i]", ""]
        return "\n".join(lines)

    def _use(self, function: Callable) -> str:
        base = getattr(function, "__name__", "kernel")
        name, number = base, 2
        while self.kernels.setdefault(name, function) is not function:
            name, number = f"{base}_{number}", number + 1
        return name

    def _call(self, node: Node, call: Call, x: Value | None = None, y: Value | None = None) -> str:
        values = {"x": x or node.x, "y": y or node.y, "dx": node.dx, "dy": node.dy, **node.buffers}
        parts = []
        for arg in call.args:
            if not isinstance(arg, str):
                parts.append(repr(arg))
            elif arg == "layer":
                parts.append(str(node.index))
            elif arg in ("ids", "seed", "step"):
                parts.append(arg)
            elif values.get(arg) is not None:
                parts.append(self._view(values[arg], node.built.views.get(arg)))
            else:
                parts.append(self._parameter(node, arg))
        return f"    {self._use(call.kernel)}({', '.join(parts)})"

    def _view(self, value: Value, trailing: Shape | None) -> str:
        shape = value.shape if trailing is None else trailing
        count = math.prod(shape)
        if value.offset == INPUTS:
            flat, whole = "inputs", False
        else:
            flat = f"workspace[capacity * {value.offset} : capacity * {value.offset} + rows * {value.size}]"
            whole = shape == ()
        if whole:
            return flat
        leading = f"rows * {value.size // count}" if value.size != count else "rows"
        dimensions = ", ".join([leading, *map(str, shape)])
        return f"{flat}.reshape({dimensions if not shape else f'({dimensions})'})"

    def _parameter(self, node: Node, arg: str) -> str:
        buffer, short = ("grads", arg[2:]) if arg.startswith("d_") else ("params", arg)
        slot = self.plan.layout[f"{node.name}.{short}"]
        view = f"{buffer}[{slot.offset} : {slot.stop}]"
        return view if len(slot.shape) == 1 else f"{view}.reshape({slot.shape})"


def _store(text: str, kernels: dict[str, Callable]) -> Path:
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
    module.__dict__.update(kernels, kernel=kernel)
    spec.loader.exec_module(module)
    return module
