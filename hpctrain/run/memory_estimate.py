"""What a job will need of memory on a rank, worked out before it starts; compiles nothing and makes no large array.

Everything that a run makes once is counted from shapes.  What cannot be counted is the program itself: the imports are
measured in the process that asks, and what loaded machine code takes is a number found by measurement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.load import PARTS
from hpctrain.data.loader import exchange_bytes
from hpctrain.data.needs import all_needs
from hpctrain.data.prepare.fit import fitting_bytes
from hpctrain.data.scatter import loading_bytes
from hpctrain.data.sharding import Split, row_range
from hpctrain.data.ways import MAPPED, MEMORY, STREAMED, Needs, choose, share_of_available
from hpctrain.job import Job
from hpctrain.kernels.jit import cache_dir
from hpctrain.memory import taken_bytes
from hpctrain.nn import flat
from hpctrain.nn.compose import Composer, compile_plan
from hpctrain.nn.compose_lanes import LaneComposer
from hpctrain.nn.fixed_point import FixedPoint
from hpctrain.nn.graph import Graph, build_graph
from hpctrain.nn.plan import Plan, Value, make_plan
from hpctrain.run.handing_out import demand_of
from hpctrain.run.lanes import lanes_of
from hpctrain.run.lanes import rows_a_pass as lane_rows
from hpctrain.run.master import Prepared
from hpctrain.run.network import network
from hpctrain.training.blocks import block_rows
from hpctrain.training.evaluate import rows_a_pass

# Measured on x86-64: the compiler's library with the kernels that every run needs, and what each kernel of the
# network's module adds to that.
_ENGINE_BYTES = 11 << 20
_KERNEL_BYTES = 450 << 10
# Of a stream: its own machine code, the reading thread's stack and heap, what HDF5 keeps of open files.
_STREAMING_BYTES = 6 << 20
# What a compilation leaves behind grows with the kernels; give or take a third.
_COMPILE_BYTES, _COMPILE_KERNEL_BYTES = 40 << 20, 10 << 20


@dataclass(frozen=True)
class Part:
    """One purpose, and its bytes on rank 0 and on each other rank."""

    name: str
    first: int
    other: int


@dataclass(frozen=True)
class MemoryEstimate:
    """What a job needs: `parts` add up to the peak.

    ranks      how many ranks share the work
    compiling  what one rank a node needs beside that where the kernels are not in the cache yet; 0 where they are
    """

    ranks: int
    parts: tuple[Part, ...]
    compiling: int

    @property
    def first(self) -> int:
        """Bytes of rank 0."""
        return sum(part.first for part in self.parts)

    @property
    def other(self) -> int:
        """Bytes of each other rank."""
        return sum(part.other for part in self.parts)

    @property
    def total(self) -> int:
        """Bytes of all ranks together."""
        return self.first + (self.ranks - 1) * self.other


def estimate(prepared: Prepared, ranks: int, base: tuple[int, int], nodes: int = 1) -> MemoryEstimate:
    """Return what a job that fits its data will need on so many ranks; `base` is what the program itself takes.

    That is, of rank 0, which has looked at the data, and of each other rank.
    """
    job, facts = prepared.job, prepared.facts
    graph = build_graph(network(job, facts, job.loss), facts.input_shape or (1,))
    plan = make_plan(graph, by_lane=job.run.reproducible)
    kernels, is_cached, own = _kernels(plan, job, facts.target_kind)
    code = _ENGINE_BYTES + kernels * _KERNEL_BYTES
    sources = {part: source for part in facts.rows if (source := prepared.source(part)) is not None}
    held, passing = zip(*(_data(prepared, sources, ranks, rank) for rank in (0, min(1, ranks - 1))), strict=True)
    exchange = _exchange(prepared, sources, graph, plan, ranks)
    layout, state_layout = graph.layout(), graph.state_layout()
    sizes = layout.size, state_layout.size
    lanes = lanes_of(job)
    slots = FixedPoint.slots(layout, state_layout, lanes.count) if lanes else 0
    summed = sum(sizes) + slots + flat.TAIL
    both = {
        "parameters": taken_bytes(4 * sizes[0]),
        "gradients": taken_bytes(4 * summed),
        "gradients of a lane": taken_bytes(4 * own) if lanes else 0,
        "running statistics": 2 * taken_bytes(4 * sizes[1]),
        **job.strategy.memory_bytes(ranks, layout, summed, job.optimizer, nodes),
        "workspace": workspace_bytes(plan, *_rows(prepared, graph, plan, ranks)),
        "evaluation": _evaluation(prepared, plan, ranks),
        "batches and their exchange": exchange,
    }
    parts = [Part("imports, MPI and the job", *base), Part("compiled code", code, code), Part("data", *held)]
    parts += [Part(name, size, size) for name, size in both.items() if size]
    # Blocks of data are given back before training begins: they count where they need more than all that comes then.
    later = sum(both.values())
    reading = [max(0, size - later) for size in passing]
    if any(reading):
        parts.append(Part("reading the data", *reading))
    compiling = 0 if is_cached else max(0, _COMPILE_BYTES + kernels * _COMPILE_KERNEL_BYTES)
    return MemoryEstimate(ranks, tuple(parts), compiling)


def _kernels(plan: Plan, job: Job, kind: str) -> tuple[int, bool, int]:
    """Return the number of kernels in the network's module, whether their machine code is in the cache.

    And how many floats a layer's sums over a lane take, in a reproducible run.
    """
    composer = LaneComposer if job.run.reproducible else Composer
    compiled = compile_plan(plan, job.loss.kernel_for(kind), job.loss.constants(), composer)  # compiles nothing
    path = compiled.path
    is_cached = any(cache_dir().glob(f"*/{path.stem}.loss_and_grad-*.nbi"))
    return path.read_text().count("\ndef call_"), is_cached, compiled.own_floats


def _data(prepared: Prepared, sources: dict[str, Hdf5Source], ranks: int, rank: int) -> tuple[int, int]:
    """Return what a rank's rows take, and what reading them takes for a while."""
    job = prepared.job
    split = tuple(count / prepared.split.rows for count in prepared.split.counts[1:])
    distribute, needs, ways = _ways(prepared, sources, ranks)
    reads = distribute != "scatter" or rank == 0
    held = prepared.split.nbytes + sum(chain.kept_bytes for _, chain in prepared.preparation.chains())
    passing = streams = 0
    if reads:
        passing = max(
            (fitting_bytes(chain, prepared.split.rows) for _, chain in prepared.preparation.chains()), default=0
        )
    for (part, source), need in zip(sources.items(), needs, strict=True):
        chosen = {ways[own] for own in need.memory}
        if chosen == {MEMORY}:
            lo, hi = row_range(len(source), rank, ranks)
            held += (hi - lo) * source.format.row_bytes
        else:
            held += sum(size for own, size in need.memory.items() if ways[own] == MEMORY)
            held += need.mapped if MAPPED in chosen else 0
            if ways["train"] == STREAMED and "train" in need.memory:
                streams += _STREAMING_BYTES + (need.streamed if reads else need.passed_on)
        if MEMORY in chosen:
            fractions = split if part == "train" else (0.0, 0.0)
            passing = max(passing, loading_bytes(source, ranks, rank, distribute, fractions))
    judged = [
        need.judged if reads else 0
        for need in needs
        if any(own != "train" and ways[own] == STREAMED for own in need.memory)
    ]
    streams += max(judged, default=0)
    if job.loss.weighs and ways["train"] == MEMORY:
        train = sources["train"].format
        held += row_range(prepared.facts.rows["train"], rank, ranks)[1] * 4 * train.positions
    # Streams begin when what is kept has been read.
    return held + streams, max(0, passing - streams)


def _ways(prepared: Prepared, sources: dict[str, Hdf5Source], ranks: int) -> tuple[str, list[Needs], dict[str, str]]:
    """Return how the data will be handed out, what each source needs, and the way of each part, on this machine."""
    data = prepared.job.data
    distribute = "shared" if data.distribute == "auto" else data.distribute
    limit = data.memory_bytes or share_of_available(ranks)
    codes = {part: code for code, part in enumerate(PARTS) if prepared.split.counts[code]}
    described = [
        (source, prepared.split, codes) if part == "train" else (source, Split(len(source), 0), {part: 0})
        for part, source in sources.items()
    ]
    demand = demand_of(prepared)
    needs = all_needs(described, distribute, demand, ranks, limit)
    return distribute, needs, choose(needs, limit, demand.shuffle, demand.may_change, ranks).of


def _exchange(prepared: Prepared, sources: dict[str, Hdf5Source], graph: Graph, plan: Plan, ranks: int) -> int:
    """Return what batches and their exchange take, where that is not counted with the data."""
    if _ways(prepared, sources, ranks)[2]["train"] != MEMORY:
        return 0
    job = prepared.job
    unit = job.run.micro_batch if graph.by_micro_batch or job.run.reproducible else 1
    rows = prepared.facts.rows["train"]
    form = sources["train"].format
    size = exchange_bytes(form, rows, job.run.update_batch, ranks, job.data.shuffle, unit)
    for part in ("validation", "test") if job.run.reproducible else ():  # judged in blocks, for which rows travel
        if rows := prepared.facts.rows.get(part):
            unit = block_rows(rows, rows_a_pass(plan.row_floats))
            size += exchange_bytes(sources.get(part, sources["train"]).format, rows, unit * ranks, ranks, unit=unit)
    return size


def _rows(prepared: Prepared, graph: Graph, plan: Plan, ranks: int) -> tuple[int, int]:
    """Return the rows of a pass of training and of evaluation (0: none) on a rank."""
    run, rows = prepared.job.run, prepared.facts.rows
    train = run.micro_batch if graph.by_micro_batch else run.rows_a_pass(ranks)
    train = lane_rows(prepared.job, ranks) if run.reproducible else train
    judged = [row_range(rows[part], 0, ranks)[1] for part in ("validation", "test") if part in rows]
    return train, min(rows_a_pass(plan.row_floats), max(judged, default=0))


def workspace_bytes(plan: Plan, train: int, judged: int) -> int:
    """Return what passes over so many rows take of a workspace that is large enough for both of them."""
    capacity = -(-max(train, judged) // flat.ALIGN) * flat.ALIGN
    touched: set[tuple[int, int]] = set()
    for values, rows in ((_training_values(plan), train), (_prediction_values(plan), max(1, judged))):
        for root in {id(value.root): value.root for value in values}.values():
            if root.external or root.offset < 0:
                continue
            start = capacity * (root.offset if root.per_example else plan.row_floats)
            start += 0 if root.per_example else root.offset
            touched.add((4 * start, 4 * (start + root.size * (rows if root.per_example else 1))))
    return taken_bytes(4 * plan.workspace_floats(capacity), touched)


def _training_values(plan: Plan) -> Iterable[Value]:
    yield from (plan.output, plan.d_output)
    for step in (*plan.forward, *plan.backward):
        yield from (*step.reads, *step.writes)


def _prediction_values(plan: Plan) -> Iterable[Value]:
    yield plan.prediction
    for step in plan.predict:
        yield from (*step.reads, *step.writes)


def _evaluation(prepared: Prepared, plan: Plan, ranks: int) -> int:
    """Return what evaluation takes beside the workspace: outputs, the loss's scratch, a copy, and the metrics."""
    job, rows = prepared.job, prepared.facts.rows
    judged = max((rows[part] for part in ("validation", "test") if part in rows), default=0)
    if not judged:
        return 0
    width = plan.prediction.shape[-1]
    positions = plan.prediction.size // width
    kept = sum(metric.kept_bytes(width, judged * positions) for metric in job.metrics.names)
    a_pass = min(rows_a_pass(plan.row_floats), row_range(judged, 0, ranks)[1])
    return 3 * 4 * a_pass * plan.prediction.size + kept * min(ranks, 2)
