"""`load`: hands the rows of the HDF5 files out to the ranks, each into memory.

A source's rows are cut evenly over the ranks, and each row's part (training, validation, test) is arithmetic, so every
rank knows beforehand how many rows of which part it gets.  "scatter": rank 0 reads and sends blocks, and no other rank
needs to see the files; "shared": each rank reads its own rows.  Both give the same arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpctrain.comm.group import Group, Request
from hpctrain.data.format import Arrays, RowFormat
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.shard import Dataset, Shard
from hpctrain.data.sharding import Split, row_range
from hpctrain.errors import UserError
from hpctrain.kernels.rows import first_nonfinite_row

BLOCK_BYTES = 32 << 20
_PARTS = ("train", "validation", "test")  # in the order of sharding's codes
_PARTS_BLOCK = 1 << 20  # rows whose parts are worked out at a time
_STOP = -1  # in a block's header, in place of its number of rows: reading failed
_HEADER, _FIRST_ARRAY = 101, 102  # message tags; inputs, targets and weights have one each
_PAUSE_S = 0.001

Progress = Callable[[float], None]


@dataclass(frozen=True)
class _Plan:
    """What every rank must know of one source: rank 0 tells it, since others may not see the files."""

    rows: int
    format: RowFormat
    split: Split
    fingerprint: dict[str, object]


def load(
    group: Group,
    train: Hdf5Source | None,
    validation: Hdf5Source | None = None,
    test: Hdf5Source | None = None,
    split: tuple[float, float] = (0.0, 0.0),
    distribute: str = "scatter",
    seed: int = 0,
    progress: Progress | None = None,
) -> Dataset:
    """Return this rank's rows of all parts; collective.

    train, validation, test  the files of each part; with "scatter" only rank 0's are used, others may pass None
    split                    fractions of the training files that become the validation and the test part
    distribute               "scatter" or "shared"
    progress                 called on rank 0 with the fraction of the rows that are done

    Rank 0 never holds more than 256 MB above its own shard (but for rows or chunks that are larger themselves).  A bad
    value (NaN, infinity, negative label), wherever it stands, raises the same agreed `UserError` on every rank.
    """
    if distribute not in ("scatter", "shared"):
        raise UserError("unknown data.distribute", found=repr(distribute), allowed='"scatter", "shared"')
    sources = (train, validation, test)
    with group.agreed():
        plans = _plans(sources, split, seed) if group.rank == 0 else []
    plans = group.broadcast_object(plans)
    if distribute == "shared":
        with group.agreed():
            _check_same_files(sources, plans)
    _compile_once(group)

    # Progress is rank 0's: of all rows where it reads for all, else of its own (the first share of each source).
    readers = group.size if distribute == "shared" else 1
    reported_rows = sum(row_range(plan.rows, 0, readers)[1] for plan in plans if plan)
    done = 0

    def report(rows: int) -> None:
        nonlocal done
        done += rows
        if progress and group.rank == 0:
            progress(done / reported_rows)

    shards: dict[str, Shard] = {}
    for name, source, plan in zip(_PARTS, sources, plans, strict=True):
        if plan is None:
            continue
        filler = _Filler(plan, *row_range(plan.rows, group.rank, group.size))
        error: UserError | None = None
        try:
            if distribute == "shared":
                _read_own(source, filler, report)
            elif group.rank == 0:
                _scatter(group, source, filler, report)
            else:
                _take(group, filler)
        except UserError as found:
            error = found
        group.barrier(patient=True)  # ranks that are done leave the cores to those that still read
        with group.agreed():
            if error is not None:
                raise error
        for part, shard in filler.shards(group).items():
            shards[_PARTS[part] if name == "train" else name] = shard
    return Dataset(**shards)


def loading_bytes(source: Hdf5Source, size: int, rank: int, distribute: str, split: tuple[float, float]) -> int:
    """Return the memory that `load` of one source takes on a rank for a while, beside the rows that the rank keeps.

    Its blocks, what HDF5 needs, and a copy of the inputs that go into the largest part.
    """
    reads, sends = rank == 0 or distribute == "shared", distribute == "scatter" and rank == 0
    form = source.format
    pieces = [hi - lo for lo, hi in source.blocks(*row_range(len(source), rank, size), BLOCK_BYTES)]
    if not pieces:
        return 0
    # Two blocks where one is read while the other is on its way.  The last rows come when all others are there.
    blocks = sum(sorted(pieces)[-2:]) if sends else max(pieces)
    last = pieces[-1] if len(pieces) < 3 else pieces[0]
    copy = int(last * 4 * form.input_size * max(1.0 - sum(split), *split))
    keeping = blocks * form.row_bytes + (max(copy, source.reading_bytes(last)) if reads else copy)
    sending = 2 * max(pieces) * form.row_bytes + source.reading_bytes(max(pieces)) if sends and size > 1 else 0
    return max(keeping, sending)


def _plans(sources: tuple[Hdf5Source | None, ...], split: tuple[float, float], seed: int) -> list[_Plan | None]:
    plans: list[_Plan | None] = []
    for name, source, fraction in zip(_PARTS, sources, (0.0, *split), strict=True):
        if source is not None and fraction > 0:
            raise ValueError(f"the {name} part comes from files of its own and from a split")
        if source is None:
            plans.append(None)
            continue
        part = Split(len(source), seed, *(split if name == "train" else (0.0, 0.0)))
        plans.append(_Plan(len(source), source.format, part, source.fingerprint()))
    return plans


def _check_same_files(sources: tuple[Hdf5Source | None, ...], plans: list[_Plan | None]) -> None:
    """Compare what this rank sees with what rank 0 saw: a stale or another file would give wrong rows."""
    for name, source, plan in zip(_PARTS, sources, plans, strict=True):
        mine = source.fingerprint() if source is not None else None
        if mine != (plan.fingerprint if plan else None):
            raise UserError(
                f"the ranks see different {name} files",
                found=f"rank 0: {plan.fingerprint if plan else None}; another rank: {mine}",
                hint='put the files where every node sees the same, or use data.distribute = "scatter"',
            )


def _compile_once(group: Group) -> None:
    """Let one rank a node compile what loading needs, before all the others ask the cache for it."""
    if group.local_rank == 0:
        Split(4, 0, 0.25).part_of(0, 1)
        first_nonfinite_row(np.zeros((1, 1), np.uint32))
    group.barrier(patient=True)


class _Filler:
    """This rank's arrays for the rows lo..hi of one source: takes blocks in file order and sorts the rows by part."""

    def __init__(self, plan: _Plan, lo: int, hi: int) -> None:
        self.plan, self.lo, self.hi = plan, lo, hi
        counts = np.zeros(len(_PARTS), np.int64)
        for at in range(lo, hi, _PARTS_BLOCK):
            counts += np.bincount(plan.split.part_of(at, min(at + _PARTS_BLOCK, hi)), minlength=len(_PARTS))
        self._filled = np.zeros(len(_PARTS), np.int64)
        self._parts = [part for part, total in enumerate(plan.split.counts) if total]
        self._arrays = {part: plan.format.empty(int(counts[part])) for part in self._parts}

    def put(self, first: int, arrays: Arrays) -> None:
        """Store a block of rows that begins with row `first` of the source."""
        parts = self.plan.split.part_of(first, first + len(arrays[0]))
        for part in self._parts:
            chosen = parts == part
            at = self._filled[part]
            self._filled[part] += np.count_nonzero(chosen)
            for block, own in zip(arrays, self._arrays[part], strict=True):
                np.compress(chosen, block, axis=0, out=own[at : self._filled[part]])

    def shards(self, group: Group) -> dict[int, Shard]:
        """Return the finished shards by part; collective, because ranks hold different numbers of each part's rows."""
        held = group.all_gather_objects(self._filled.tolist())
        shards = {}
        for part in self._parts:
            starts = np.concatenate([[0], np.cumsum([counts[part] for counts in held])]).astype(np.int64)
            inputs, targets, weight = self._arrays[part]
            shards[part] = Shard(self.plan.format, inputs, targets, starts, int(starts[group.rank]), weight)
        return shards


def _read_own(source: Hdf5Source, filler: _Filler, report: Callable[[int], None]) -> None:
    block: _Block | None = None
    for lo, hi in source.blocks(filler.lo, filler.hi, BLOCK_BYTES):
        block = block if block and block.holds(hi - lo) else _Block(filler.plan.format, hi - lo)
        arrays = block.rows(hi - lo)
        source.read_into(lo, *arrays)
        source.check_values(*arrays, lo)
        filler.put(lo, arrays)
        report(hi - lo)
    source.finish()


def _scatter(group: Group, source: Hdf5Source, filler: _Filler, report: Callable[[int], None]) -> None:
    """Rank 0: read all rows in file order, keep the own ones, send each other block while the next one is read."""
    plan = filler.plan
    most = max((hi - lo for lo, hi in source.blocks(0, plan.rows, BLOCK_BYTES)), default=0)
    blocks = [_Block(plan.format, most), _Block(plan.format, most)]
    for rank in range(group.size):
        for lo, hi in source.blocks(*row_range(plan.rows, rank, group.size), BLOCK_BYTES):
            block = blocks[0]
            block.wait()
            arrays = block.rows(hi - lo)
            try:
                source.read_into(lo, *arrays)
                source.check_values(*arrays, lo)
            except UserError:
                _stop(group, plan, max(rank, 1))
                blocks[1].wait()
                raise
            if rank == 0:
                filler.put(lo, arrays)
            else:
                block.send(group, rank, hi - lo)
            blocks.reverse()
            report(hi - lo)
    for block in blocks:
        block.wait()
    source.finish()


def _stop(group: Group, plan: _Plan, first: int) -> None:
    """Tell the ranks from `first` on, which still wait for rows, that none will come."""
    header = np.array([_STOP], np.int64)
    waiting = [rank for rank in range(first, group.size) if row_range(plan.rows, rank, group.size)[0] < plan.rows]
    for request in [group.send(header, rank, _HEADER) for rank in waiting]:
        request.wait()


def _take(group: Group, filler: _Filler) -> None:
    """Receive this rank's rows from rank 0; returns early when it says stop (the error follows through `agreed`)."""
    block: _Block | None = None
    header = np.empty(1, np.int64)
    at = filler.lo
    while at < filler.hi:
        _wait_patiently(group.receive(header, 0, _HEADER))
        rows = int(header[0])
        if rows == _STOP:
            return
        block = block if block and block.holds(rows) else _Block(filler.plan.format, rows)
        arrays = block.rows(rows)
        for request in [group.receive(array, 0, tag) for tag, array in _messages(arrays)]:
            request.wait()
        filler.put(at, arrays)
        at += rows


class _Block:
    """Room for a block of rows, and the transfers that use it."""

    def __init__(self, form: RowFormat, rows: int) -> None:
        self._arrays = form.empty(rows)
        self._header = np.empty(1, np.int64)
        self._requests: list[Request] = []

    def holds(self, rows: int) -> bool:
        """Whether there is room for so many rows."""
        return rows <= len(self._arrays[0])

    def rows(self, rows: int) -> Arrays:
        """Return inputs, targets and weights for the block's first rows."""
        inputs, targets, weight = self._arrays
        return inputs[:rows], targets[:rows], weight[:rows]

    def send(self, group: Group, rank: int, rows: int) -> None:
        """Start to send the first rows to a rank."""
        self._header[0] = rows
        self._requests = [group.send(self._header, rank, _HEADER)]
        self._requests += [group.send(array, rank, tag) for tag, array in _messages(self.rows(rows))]

    def wait(self) -> None:
        """Return when the block may be filled again."""
        for request in self._requests:
            request.wait()
        self._requests = []


def _messages(arrays: Arrays) -> list[tuple[int, np.ndarray]]:
    """Return the arrays that travel, with their tags: all that have something in them."""
    return [(_FIRST_ARRAY + i, array) for i, array in enumerate(arrays) if array.size]


def _wait_patiently(request: Request) -> None:
    """Wait without spinning: while rank 0 reads, the other ranks must not take its core away."""
    while not request.test():
        time.sleep(_PAUSE_S)
