"""`fit`: what the steps of a preparation learn from the training part, the same bits at every world size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import h5py
import numpy as np

from hpctrain.comm.group import Group
from hpctrain.data.fields.expression import parse
from hpctrain.data.files import check_file, open_file
from hpctrain.data.prepare.base import Fitted, Moments
from hpctrain.data.prepare.chain import BoundStep, Chain
from hpctrain.data.prepare.moments import ROWS, Tree, finished, moments_of
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.sharding import TRAIN, row_range
from hpctrain.errors import UserError
from hpctrain.kernels.statistics import COUNT, MAXIMUM, MINIMUM

BLOCK_ROWS = 4096
_MOST_KINDS = 4096  # of a one-hot column whose size nobody has given
_BLOCK_BYTES = 32 << 20  # of float64: fewer rows, a power of two, where examples are large
_HEADER, _NODE = 111, 112  # message tags
_LEVELS = 64  # nodes in a message, at most: more than there are levels above 2^63 blocks
_PAUSE_S = 0.001

Progress = Callable[[float], None]


class Rows(Protocol):
    """What is needed of a source of rows."""

    def __len__(self) -> int: ...

    def stored(self, role: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows lo..hi of "inputs" or "targets" before preparation: (rows, *shape), real numbers."""

    def counting(self, role: str, lo: int, hi: int, stored: np.ndarray) -> np.ndarray | None:
        """Return which of these numbers count, bool (rows, n): in n equal parts of each row; None: all do."""

    def place_of(self, role: str, row: int) -> str:
        """Return words for where "inputs" or "targets" of a row are stored."""

    def check_files(self) -> None:
        """Raise a `UserError` where a file has changed while it was read."""


class Parts(Protocol):
    """What is needed of a split."""

    def part_of(self, lo: int, hi: int) -> np.ndarray:
        """Return the parts of the rows lo..hi."""


def block_rows(size: int) -> int:
    """Return the rows of a block of examples of so many numbers: a power of two, 4,096 but for large examples."""
    most = max(1, _BLOCK_BYTES // (8 * size))
    return min(BLOCK_ROWS, 1 << (most.bit_length() - 1))


def fitting_bytes(chain: Chain, rows: int) -> int:
    """Return the memory that fitting takes on a rank that reads, for a while: two blocks, and the tree of moments."""
    counts = [bound.elements.count for bound in chain.steps if bound.fitted is None and not bound.step.stored]
    block = block_rows(chain.size)
    levels = (-(-rows // block)).bit_length() + 1
    return 2 * 8 * min(block, rows) * chain.size + 8 * ROWS * levels * max(counts) if counts else 0


def fit(
    group: Group,
    source: Rows | None,
    split: Parts,
    preparation: Preparation,
    shared: bool,
    progress: Progress | None = None,
) -> None:
    """Let the steps learn what they have not learned yet; collective.  Every rank then holds the same bits.

    source    the training files without preparation; None on ranks that do not read
    split     which rows train
    shared    every rank reads blocks of its own; else rank 0 reads all
    progress  called on rank 0 with the fraction of its rows that a pass has done

    A step learns from the numbers as the steps before it leave them, so each that learns takes a pass over the data.
    What does not count in training (rows and positions of weight 0, rows that are dropped) does not count here.  Raises
    the same `UserError` on every rank.
    """
    _compile_once(group, preparation)
    for role, chain in preparation.chains():
        for number, bound in enumerate(chain.steps):
            if bound.fitted is not None:
                continue
            if bound.step.stored:
                _read(group, bound)
                continue
            moments = _moments(group, source, split, role, chain, number, shared, progress)
            with group.agreed():
                _check(bound, moments)
                learned = bound.step.learn(moments)
                _check_held(bound, moments, learned)
            bound.fit(learned)


def _compile_once(group: Group, preparation: Preparation) -> None:
    """Let one rank a node compile what preparing needs, before all the others ask the cache for it."""
    if not preparation:
        return
    if group.local_rank == 0:
        moments_of(np.zeros((2, 1)))
        for _, chain in preparation.chains():
            chain.warm_up()
    group.barrier(patient=True)


def find_sizes(source: Rows, split: Parts, chain: Chain, known: Mapping[int, int]) -> None:
    """Find how many numbers the one-hot columns have, where their steps do not say so.

    known  column -> its number of kinds, where it is text; of the others it is the training part's largest number + 1

    One pass of the process that calls it, where need be: the shape of the network depends on it.
    """
    for number, bound in enumerate(chain.steps):
        if bound.fitted is not None or not any(bound is other for other in chain.one_hot()):
            continue
        if all(column in known for column in bound.elements.columns):
            bound.fit({"size": np.array([known[column] for column in bound.elements.columns])})
            continue
        # What is not fitted yet works on other columns.
        before = [other for other in chain.steps[:number] if other.fitted is not None]
        # Of all rows: those of weight 0 are prepared too.
        tree = _tree(source, split, "inputs", chain, before, bound, (0, len(source)), None, every=True)
        moments = finished(tree.total())
        _check(bound, moments)
        if (low := moments.minimum.min()) < 0:
            column = bound.elements.name(int(moments.minimum.argmin()))
            row = _first_below_zero(source, split, chain, before, bound)
            raise UserError(
                f"{bound.where} (one_hot): {column} has a number below 0",
                found=f"{low:.10g}; the first row with one: {source.place_of('inputs', row)}",
                allowed="whole numbers from 0 on, one for each kind",
            )
        sizes = np.floor(moments.maximum) + 1
        if (most := sizes.max()) > _MOST_KINDS:
            column = bound.elements.name(int(sizes.argmax()))
            raise UserError(
                f"{bound.title}: {column} has too many numbers to become columns of 0 and 1",
                found=f"{most - 1:.10g} is the largest",
                allowed=f"0 to {_MOST_KINDS - 1:,}",
                hint=f"number its kinds from 0 without gaps; {bound.where}.size overrides this",
            )
        bound.fit({"size": [known.get(column, sizes[at]) for at, column in enumerate(bound.elements.columns)]})


def _first_below_zero(source: Rows, split: Parts, chain: Chain, before: Sequence[BoundStep], bound: BoundStep) -> int:
    """Return the first row of the training part that gives a step a number below 0; there is one."""
    rows = block_rows(chain.size)
    for lo in range(0, len(source), rows):
        hi = min(lo + rows, len(source))
        trains = np.flatnonzero(split.part_of(lo, hi) == TRAIN)
        block = np.ascontiguousarray(source.stored("inputs", lo, hi)[trains], np.float64)
        block = block.reshape(len(trains), chain.size)
        chain.run(block, before)
        columns = block.reshape(len(trains), -1, chain.shape[-1])[:, :, list(bound.elements.columns)]
        if (found := np.flatnonzero((columns < 0).any(axis=(1, 2)))).size:
            return lo + int(trains[found[0]])
    raise AssertionError("no number is below 0")


def _moments(
    group: Group,
    source: Rows | None,
    split: Parts,
    role: str,
    chain: Chain,
    number: int,
    shared: bool,
    progress: Progress | None,
) -> Moments:
    """Return the statistics that a step of a chain learns from.  Collective."""
    bound, readers = chain.steps[number], group.size if shared else 1
    tree = Tree()
    with group.agreed(patient=True):
        if group.rank < readers and source is not None:
            rows = block_rows(chain.size)
            first, last = row_range(-(-len(source) // rows), group.rank, readers)
            bounds = min(first * rows, len(source)), min(last * rows, len(source))
            told = progress if group.rank == 0 else None
            tree = _tree(source, split, role, chain, chain.steps[:number], bound, bounds, told)
    tree = _chain_up(group, tree, readers, bound.elements.count)
    total = tree.total() if group.rank == readers - 1 else np.empty((ROWS, bound.elements.count))
    group.broadcast(total, root=readers - 1)
    return finished(total)


def _tree(
    source: Rows,
    split: Parts,
    role: str,
    chain: Chain,
    before: Sequence[BoundStep],
    bound: BoundStep,
    bounds: tuple[int, int],
    progress: Progress | None,
    every: bool = False,
) -> Tree:
    """Return the moments of the training rows among some rows, which begin where a block begins.

    Of their numbers that count, or with `every` of all.
    """
    tree, rows = Tree(), block_rows(chain.size)
    for lo in range(*bounds, rows):
        hi = min(lo + rows, bounds[1])
        trains = np.flatnonzero(split.part_of(lo, hi) == TRAIN)
        stored = source.stored(role, lo, hi)
        counting = None if every else source.counting(role, lo, hi, stored)
        block = np.ascontiguousarray(stored if len(trains) == len(stored) else stored[trains], np.float64)
        del stored
        block = block.reshape(len(trains), chain.size)
        chain.run(block, before)
        if counting is not None:  # NaN is left out of the moments; not before: a step may put a number in its place
            parts = counting.shape[1]
            block.reshape(len(trains), parts, chain.size // parts)[~counting[trains]] = np.nan
        moments = moments_of(bound.elements.values(block))
        held = moments[:, moments[COUNT] > 0]
        if np.isinf(held[[MINIMUM, MAXIMUM]]).any():
            source.check_files()
            raise _infinite(source, role, chain, bound, block, lo + trains)
        del block  # before there is room for the next one
        tree.add(0, lo // rows, moments)
        if progress:
            progress((hi - bounds[0]) / (bounds[1] - bounds[0]))
    return tree


def _infinite(
    source: Rows, role: str, chain: Chain, bound: BoundStep, block: np.ndarray, rows: np.ndarray
) -> UserError:
    """Return the error for the first infinite number among those that a step learns from; `rows` are the block's."""
    numbers = block.reshape(len(block), -1, chain.shape[-1])[:, :, list(bound.elements.columns)]
    row = int(rows[np.argmax(np.isinf(numbers).any(axis=(1, 2)))])
    return UserError(
        f"{bound.title} cannot take statistics of an infinite number: {source.place_of(role, row)}",
        found=chain.explain(source.stored(role, row, row + 1)[0]) or "infinite in the file",
        hint="correct the data, or put a step clip in front",
    )


def _check(bound: BoundStep, moments: Moments) -> None:
    empty = np.flatnonzero(moments.count == 0)
    if empty.size:
        raise UserError(
            f"{bound.title} has nothing to take statistics of: {bound.elements.name(int(empty[0]))} is missing (NaN) "
            "in every row of the training part that counts",
            found=f"{empty.size} of {moments.count.size} without a number",
            hint="leave these columns out of the inputs, or put a step fill with a value in front",
        )


def _check_held(bound: BoundStep, moments: Moments, learned: Fitted) -> None:
    """Refuse numbers whose statistics are too large or too small for float64."""
    wrong = np.flatnonzero(sum(~np.isfinite(values) for values in learned.values()))
    if wrong.size:
        at = int(wrong[0])
        raise UserError(
            f"{bound.title}: the statistics of {bound.elements.name(at)} are beyond what float64 holds",
            found=f"numbers from {moments.minimum[at]:g} to {moments.maximum[at]:g}",
            allowed="sizes whose squares are numbers too: 1e-150 to 1e150",
            hint='put {name = "scale", factor = ...} in front, or leave the column out',
        )


def _chain_up(group: Group, tree: Tree, readers: int, count: int) -> Tree:
    """Pass nodes on from reader to reader, each merging its own behind them; the last reader's tree is whole."""
    if readers == 1 or group.rank >= readers:
        return tree
    merged = Tree()
    header = np.zeros((_LEVELS + 1, 2), np.int64)
    if group.rank > 0:
        _wait(group.receive(header, group.rank - 1, _HEADER))
        for level, number in header[1 : 1 + header[0, 0]].tolist():
            moments = np.empty((ROWS, count))
            _wait(group.receive(moments, group.rank - 1, _NODE))
            merged.add(level, number, moments)
    for node in tree.nodes:
        merged.add(*node)
    if group.rank < readers - 1:
        header[0, 0] = len(merged.nodes)
        for place, (level, number, _) in enumerate(merged.nodes):
            header[1 + place] = level, number
        requests = [group.send(header, group.rank + 1, _HEADER)]
        requests += [group.send(moments, group.rank + 1, _NODE) for _, _, moments in merged.nodes]
        for request in requests:
            request.wait()
    return merged


def _wait(request: object) -> None:
    """Wait without spinning: others may still compute on this core."""
    while not request.test():
        time.sleep(_PAUSE_S)


def _read(group: Group, bound: BoundStep) -> None:
    """Take a step's statistics from its file, which rank 0 reads.  Collective."""
    fitted = None
    with group.agreed():
        if group.rank == 0:
            fitted = {name: _dataset(bound, name, path) for name, path in bound.step.stored.items()}
    bound.fit(group.broadcast_object(fitted))


def _dataset(bound: BoundStep, name: str, path: str) -> np.ndarray:
    """Return a dataset of a step's file, or what is taken of it ("stats[:, 2]"), as (count,) float64."""
    file_path, elements, where = bound.step.file, bound.elements, bound.title
    check_file(file_path)
    expression = parse(path, f"{bound.where}.{name}")
    with open_file(file_path) as file:
        dataset = file.get(expression.path)
        if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "biuf" or dataset.shape is None:
            there = [key for key, item in file.items() if isinstance(item, h5py.Dataset)]
            raise UserError(
                f"{where}: {name} = {path!r} is no dataset of numbers in {file_path}",
                allowed=", ".join(there) or "the file has no datasets at its root",
            )
        try:
            values = np.asarray(dataset[expression.axes], np.float64)
        except (IndexError, ValueError) as error:
            raise UserError(
                f"{where}: {name} = {path!r} cannot be taken of {dataset.shape} numbers in {file_path}", found=error
            ) from None
    columns, channels = len(elements.columns), elements.shape[-1]
    if values.size == channels != columns:
        values = values.reshape(-1)[list(elements.columns)]  # of all columns: those that are meant
    if elements.axis == "column" and values.size == elements.size:
        values = values.reshape(elements.positions, channels)[:, list(elements.columns)]
    elif elements.axis == "column" and values.size == columns:
        values = np.tile(values.reshape(-1), elements.positions)
    if values.size not in (1, elements.count):
        raise UserError(
            f"{where}: {name} = {path!r} does not fit the examples, in {file_path}",
            found=f"{values.size} numbers",
            allowed=f"one number, one for each of {columns} columns, or one for each of {elements.size} numbers",
        )
    if not np.isfinite(values).all() or (name == "std" and (values < 0).any()):
        raise UserError(f"{where}: {name} = {path!r} holds numbers that are no {name}, in {file_path}")
    return values.reshape(-1)
