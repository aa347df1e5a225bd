"""The plan of a network: the order of the passes, and where every value lives in the workspace.

The training pass and the evaluation pass are lists of steps.  A value (an activation, a gradient, a buffer) is given
memory from its first use to its last, and memory is used again; an elementwise layer works in place where nobody reads
the old values any more.  Everything is arithmetic on a row's sizes: the workspace holds `capacity` rows of the
per-example values, and behind them what a forward call needs once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpctrain.kernels.elementwise import add_arrays
from hpctrain.nn.flat import ALIGN
from hpctrain.nn.graph import INPUT, Graph, Node
from hpctrain.nn.layers.base import Buffer, BuiltLayer, Call, Shape, calls_of


@dataclass(eq=False)
class Value:
    """A piece of memory: its shape, and its offset in floats (of a row, or of the part behind all rows).

    `home` is the value whose memory it shares (a reshaped input, a result in place), itself in the end.
    """

    shape: Shape
    per_example: bool = True
    external: bool = False  # the batch's own memory: never written to
    home: Value | None = None
    offset: int = -1
    first: int = -1
    last: int = -1
    by_lane: bool = False  # one for each lane, in the memory of the lane's first row

    @property
    def size(self) -> int:
        """Floats, for a row or once."""
        return math.prod(self.shape)

    @property
    def root(self) -> Value:
        """The value that owns the memory."""
        return self.home.root if self.home else self


@dataclass
class Step:
    """Calls of one layer in one pass; `values` binds the names in their arguments, `node` knows the rest."""

    node: Node
    built: BuiltLayer
    calls: tuple[Call, ...]
    values: dict[str, Value]
    reads: list[Value] = field(default_factory=list)
    writes: list[Value] = field(default_factory=list)
    takes: list[tuple[Value, Value]] = field(default_factory=list)  # a result, and whose memory it may take: see Buffer
    zeroes: bool = False  # a backward pass whose kernels only add: the gradients are zeroed before it where need be


@dataclass(frozen=True)
class Plan:
    """A network laid out; see the module's text.

    forward, backward, predict   steps of the passes
    output, d_output             the result of training's forward pass and its gradient
    prediction                   the result of evaluation
    row_floats, fixed_floats     workspace for each row, and once
    """

    graph: Graph
    forward: list[Step]
    backward: list[Step]
    predict: list[Step]
    inputs: Value
    output: Value
    d_output: Value
    prediction: Value
    row_floats: int
    fixed_floats: int

    def workspace_floats(self, rows: int) -> int:
        """Return the size of the workspace for batches of `rows` rows."""
        return rows * self.row_floats + self.fixed_floats


def make_plan(graph: Graph, by_lane: bool = False) -> Plan:
    """Order the passes of a graph and give every value its place.

    by_lane  passes go over several lanes: what a layer keeps of a forward call, it keeps of each lane
    """
    nodes = fuse(graph)
    train = _Pass(graph, nodes, by_lane)
    forward = [step for node, built in nodes if (step := train.forward(node, built, predict=False))]
    output = train.value(graph.output)
    backward, d_output = train.backward(output)
    evaluation = _Pass(graph, nodes)
    predict = [step for node, built in nodes if (step := evaluation.forward(node, built, predict=True))]
    prediction = evaluation.value(graph.output)
    loss = Step(graph.nodes[-1], graph.nodes[-1].built, (), {}, [output], [d_output])
    sizes = [
        _allocate([*forward, loss, *backward], keep=[]),
        _allocate(predict, keep=[prediction]),
    ]
    rows, fixed = (max(pair) for pair in zip(*sizes, strict=True))
    # All passes read the same inputs.
    return Plan(graph, forward, backward, predict, train.value(INPUT), output, d_output, prediction, rows, fixed)


def fuse(graph: Graph) -> list[tuple[Node, BuiltLayer]]:
    """Return the nodes with what they built; a layer and the activation behind it become one where it knows how."""
    readers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    result: list[tuple[Node, BuiltLayer]] = []
    taken: set[int] = set()
    for node in graph.nodes:
        if node.index in taken:
            continue
        after = readers.get(node.output, [])
        if len(after) == 1 and node.output != graph.output and after[0].kind in node.built.fused:
            follower = after[0]
            taken.add(follower.index)
            fused = node.built.fused[follower.kind]
            result.append((Node(node.index, node.name, node.kind, fused, node.inputs, follower.output), fused))
        else:
            result.append((node, node.built))
    return result


class _Pass:
    """The values and steps of one pass over the graph."""

    def __init__(self, graph: Graph, nodes: list[tuple[Node, BuiltLayer]], by_lane: bool = False) -> None:
        self._by_lane = by_lane
        self._graph = graph
        self._nodes = nodes
        self._values: dict[int, Value] = {INPUT: Value(graph.shapes[INPUT], external=True)}
        self._kept: dict[int, dict[str, Value]] = {}
        self._learns = self._values_that_learn()

    def value(self, number: int) -> Value:
        """Return the memory of a value of the graph."""
        return self._values[number]

    def _values_that_learn(self) -> set[int]:
        """Return the values that depend on a parameter: their gradients are needed."""
        learns: set[int] = set()
        for node, built in self._nodes:
            if built.params or any(value in learns for value in node.inputs):
                learns.add(node.output)
        return learns

    def forward(self, node: Node, built: BuiltLayer, predict: bool) -> Step | None:
        """Add a node's forward step; None where it moves no data."""
        inputs = [self._values[value] for value in node.inputs]
        calls = calls_of(built.predict if predict and built.predict is not None else built.forward)
        y = Value(built.out_shape)
        self._values[node.output] = y
        if not calls:
            y.home = inputs[0]
            return None
        values = {**_numbered("x", inputs), "y": y}
        buffers = {name: self._buffer(spec) for name, spec in built.buffers.items()}
        values |= buffers
        self._kept[node.index] = {name: value for name, value in buffers.items() if built.buffers[name].kept}
        used = _used(calls, values)
        takes = [(y, x) for x in inputs] if built.in_place else []
        return Step(node, built, calls, values, used, [y], takes)

    def backward(self, output: Value) -> tuple[list[Step], Value]:
        """Return the backward steps and the gradient of the output, where the loss writes."""
        d_output = Value(output.shape)
        parts: dict[int, list[Value]] = {self._graph.output: [d_output]}
        steps: list[Step] = []
        for node, built in reversed(self._nodes):
            if node.output not in self._learns or node.output not in parts:
                continue
            dy = self._sum(node, parts.pop(node.output), steps)
            needed = [value in self._learns for value in node.inputs]
            if built.backward is None:
                for value, is_needed in zip(node.inputs, needed, strict=True):
                    if is_needed:
                        parts.setdefault(value, []).append(Value(self._graph.shapes[value], home=dy))
                continue
            calls = calls_of(built.backward if any(needed) else built.backward_params)
            if not calls:
                continue
            gradients = [Value(self._graph.shapes[value]) for value in node.inputs]
            values = {**_numbered("x", [self._values[value] for value in node.inputs]), "y": self._values[node.output]}
            values |= {"dy": dy, **_numbered("dx", gradients), **self._kept[node.index]}
            values |= {name: self._buffer(spec) for name, spec in built.buffers.items() if not spec.kept}
            used = _used(calls, values)
            written = [value for value in gradients if value in used]
            takes = [(gradient, dy) for gradient in written] if built.in_place else []
            takes += [(values[name], values[spec.over]) for name, spec in built.buffers.items() if spec.over]
            adds = built.params and not any("beta" in call.args for call in calls)
            steps.append(Step(node, built, calls, values, used, written, takes, zeroes=bool(adds)))
            for value, gradient, is_needed in zip(node.inputs, gradients, needed, strict=True):
                if is_needed:
                    parts.setdefault(value, []).append(gradient)
        return steps, d_output

    def _buffer(self, spec: Buffer) -> Value:
        by_lane = self._by_lane and spec.kept and not spec.per_example
        return Value(spec.shape, per_example=spec.per_example or by_lane, by_lane=by_lane)

    def _sum(self, node: Node, parts: list[Value], steps: list[Step]) -> Value:
        """Add the gradients that reach a value on several ways."""
        total = parts[0]
        for part in parts[1:]:
            result = Value(total.shape)
            call = Call(add_arrays, ("a", "b", "out"))
            names = {"a": total, "b": part, "out": result}
            takes = [(result, total), (result, part)]
            built = BuiltLayer(total.shape, None, None, views={"a": (), "b": (), "out": ()})
            steps.append(Step(node, built, (call,), names, [total, part, result], [result], takes))
            total = result
        return total


def _numbered(name: str, values: list[Value]) -> dict[str, Value]:
    """Bind x (the first) and x0, x1, ..."""
    return {name: values[0], **{f"{name}{index}": value for index, value in enumerate(values)}}


def _used(calls: tuple[Call, ...], values: dict[str, Value]) -> list[Value]:
    """Return the values that the calls name."""
    names = dict.fromkeys(arg for call in calls for arg in call.args if isinstance(arg, str))
    return [values[name] for name in names if name in values]


def _allocate(steps: list[Step], keep: list[Value]) -> tuple[int, int]:
    """Give every value of the steps an offset; return the floats for each row and the fixed ones."""
    for time, step in enumerate(steps):
        for value in _touched(step):
            root = value.root
            root.first = time if root.first < 0 else root.first
            root.last = time
    for value in keep:
        value.root.last = len(steps)
    areas = {True: _Area(1), False: _Area(ALIGN)}
    for time, step in enumerate(steps):
        for value, donor in ((value, donor.root) for value, donor in step.takes):
            # The result may take an operand's memory when this is the last that is read of it.
            fits = donor.per_example and not donor.external and donor.size == value.size
            if fits and donor.last == time and value.root is value and value.first == time:
                donor.last = value.last
                value.home = donor
        starting = {id(value.root): value.root for value in _touched(step) if value.root.first == time}
        for root in starting.values():
            if not root.external and root.offset < 0:
                root.offset = areas[root.per_example].take(root.size)
        for root in {id(value.root): value.root for value in _touched(step)}.values():
            if root.last == time and not root.external:
                areas[root.per_example].give_back(root.offset, root.size)
    return areas[True].size, areas[False].size


def _touched(step: Step) -> Iterator[Value]:
    yield from step.reads
    yield from step.writes


class _Area:
    """A stretch of memory of which parts are taken and given back: first fit, grown at the end."""

    def __init__(self, align: int) -> None:
        self.size = 0
        self._align = align
        self._free: list[tuple[int, int]] = []  # (offset, floats), in order

    def take(self, floats: int) -> int:
        floats = self._rounded(floats)
        for index, (offset, room) in enumerate(self._free):
            if room >= floats:
                self._free[index : index + 1] = [(offset + floats, room - floats)] if room > floats else []
                return offset
        offset = self.size
        if self._free and sum(self._free[-1]) == self.size:
            offset = self._free.pop()[0]
        self.size = offset + floats
        return offset

    def give_back(self, offset: int, floats: int) -> None:
        self._free.append((offset, self._rounded(floats)))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for start, room in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self._free = merged

    def _rounded(self, floats: int) -> int:
        return -(-max(floats, 1) // self._align) * self._align
