"""`load`: opens the way of the rows, from the HDF5 files to the ranks.

A part whose rows fit is read into memory, each rank its even share of them; `ways` says which parts do, and how the
others go.  A source's rows are cut evenly over the ranks, and each row's part (training, validation, test) is
arithmetic, so every rank knows beforehand how many rows of which part it gets.  "scatter": rank 0 reads and sends
blocks, and no other rank needs to see the files; "shared": each rank reads its own rows.  Both give the same arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.data import scatter
from hpctrain.data.buffers import large_arrays
from hpctrain.data.format import Arrays, RowFormat
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.local import Holders
from hpctrain.data.mapped import FileMaps, MappedShard
from hpctrain.data.mapping import MappedRows
from hpctrain.data.needs import Demand, Described, all_needs
from hpctrain.data.parts import PartRows, cut_parts
from hpctrain.data.shard import Dataset, MemoryShard, Pieces, Shard
from hpctrain.data.sharding import Split, row_range
from hpctrain.data.splits import RowSplit
from hpctrain.data.stream import StreamedShard
from hpctrain.data.ways import MAPPED, MEMORY, STREAMED, Ways, budget, choose
from hpctrain.errors import UserError
from hpctrain.kernels.rows import first_nonfinite_row
from hpctrain.memory import private_peak

PARTS = ("train", "validation", "test")  # in the order of sharding's codes
_LOOK_S = 0.05  # how often memory is looked at meanwhile
_PARTS_BLOCK = 1 << 20  # rows whose parts are worked out at a time

Progress = Callable[[float], None]


@dataclass(frozen=True)
class _Plan:
    """What every rank must know of one source: rank 0 tells it, since others may not see the files.

    parts   name -> code of the parts that come from this source
    bounds  rows at which its chunks begin, see `Access.pieces`, where anybody wants chunks
    places  where its inputs stand in the files, where a part is mapped
    holders which ranks read which files, with "local"
    """

    format: RowFormat
    split: RowSplit
    fingerprint: dict[str, object]
    parts: dict[str, int]
    bounds: np.ndarray | None = None
    places: list[MappedRows] | None = None
    holders: Holders | None = None

    @property
    def rows(self) -> int:
        """Rows of the source."""
        return self.split.rows


def load(
    group: Group,
    train: Hdf5Source | None,
    validation: Hdf5Source | None = None,
    test: Hdf5Source | None = None,
    split: tuple[float, float] | RowSplit = (0.0, 0.0),
    distribute: str = "scatter",
    seed: int = 0,
    progress: Progress | None = None,
    *,
    memory: int | None = None,
    demand: Demand | None = None,
    holders: Holders | None = None,
) -> Dataset:
    """Return this rank's way to the rows of all parts; collective.

    train, validation, test  the files of each part; with "scatter" only rank 0's are used, others may pass None
    split                    which rows of the training files become the validation and the test part: a split, or
                             fractions of the rows, drawn by the seed; rank 0's counts
    distribute               "scatter", "shared", or "local": each rank reads what `holders` says of the training files
    progress                 called on rank 0 with the fraction of the rows that are done
    memory                   bytes that data may take on a rank; None: see `ways.budget`
    demand                   what training asks of the rows

    While it reads into memory, rank 0 never holds more than 256 MB above its own rows (but for rows or chunks that are
    larger themselves).  A bad value (NaN, infinity, negative label), wherever it stands, raises the same agreed
    `UserError` on every rank.
    """
    if distribute not in ("scatter", "shared", "local"):
        raise UserError("unknown data.distribute", found=repr(distribute), allowed='"scatter", "shared", "local"')
    sources, demand = dict(zip(PARTS, (train, validation, test), strict=True)), demand or Demand()
    limit = budget(group, memory)
    plans: list[_Plan | None] = []
    ways = Ways({}, demand.shuffle, ())
    with group.agreed():
        if group.rank == 0:
            plans = _plans(sources, split, seed)
            described = [
                (sources[name], plan.split, plan.parts) for name, plan in zip(PARTS, plans, strict=True) if plan
            ]
            ways = choose_ways(described, distribute, demand, limit, group.size)
            plans = [plan and _detailed(plan, sources[name], ways) for name, plan in zip(PARTS, plans, strict=True)]
    plans, ways = group.broadcast_object((plans, ways))
    if holders is not None:
        plans[0] = replace(plans[0], holders=holders)
    if distribute != "scatter":
        with group.agreed():
            _check_same_files(sources, plans)
    _compile_once(group)
    reading = _Reading(group, distribute, progress, [plan for plan in plans if plan and _kept(plan, ways)])
    shards: dict[str, Shard] = {}
    for name, plan in zip(PARTS, plans, strict=True):
        if plan is not None:
            # Other files than the training shards are seen by all.
            how = "shared" if distribute == "local" and plan.holders is None else distribute
            shards |= _shards(group, sources[name], plan, ways, how, reading)
    return Dataset(**shards, ways=ways)


def _plans(
    sources: dict[str, Hdf5Source | None], split: tuple[float, float] | RowSplit, seed: int
) -> list[_Plan | None]:
    plans: list[_Plan | None] = []
    taken = split if isinstance(split, tuple) else split.counts[1:]
    for name, share in zip(PARTS, (0, *taken), strict=True):
        source = sources[name]
        if source is not None and share > 0:
            raise ValueError(f"the {name} part comes from files of its own and from a split")
        if source is None:
            plans.append(None)
            continue
        rows = Split(len(source), seed)
        if name == "train":
            rows = Split(len(source), seed, *split) if isinstance(split, tuple) else split
        parts = {part: code for code, part in enumerate(PARTS) if rows.counts[code]} if name == "train" else {name: 0}
        plans.append(_Plan(source.format, rows, source.fingerprint(), parts))
    return plans


def choose_ways(described: list[Described], distribute: str, demand: Demand, limit: int, size: int) -> Ways:
    """Choose the ways of all parts; what takes a look into the files is asked only where it matters."""
    needs = all_needs(described, distribute, demand, size, limit)
    return choose(needs, limit, demand.shuffle, demand.may_change, size)


def _detailed(plan: _Plan, source: Hdf5Source, ways: Ways) -> _Plan:
    """Return a plan with the tables that the chosen ways need."""
    chosen = {ways.of[part] for part in plan.parts}
    if STREAMED in chosen or (ways.shuffle == "chunks" and "train" in plan.parts):
        plan = replace(plan, bounds=source.pieces())
    return replace(plan, places=source.mapped_rows()) if MAPPED in chosen else plan


def _check_same_files(sources: dict[str, Hdf5Source | None], plans: list[_Plan | None]) -> None:
    """Compare what this rank sees with what rank 0 saw: a stale or another file would give wrong rows."""
    for name, plan in zip(PARTS, plans, strict=True):
        mine = sources[name].fingerprint() if sources[name] is not None else None
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


def _kept(plan: _Plan, ways: Ways) -> dict[str, int]:
    """Return the parts of a source that are kept in memory."""
    return {part: code for part, code in plan.parts.items() if ways.of[part] == MEMORY}


def _shards(
    group: Group, source: Hdf5Source | None, plan: _Plan, ways: Ways, distribute: str, reading: _Reading
) -> dict[str, Shard]:
    """Return this rank's shards of one source's parts."""
    shards: dict[str, Shard] = {}
    cuts = cut_parts(group, plan.split, plan.bounds, list(plan.parts.values())) if plan.bounds is not None else {}
    if kept := _kept(plan, ways):
        ranges = [row_range(plan.rows, group.rank, group.size)]
        if distribute == "local":
            ranges = plan.holders.ranges(group.rank)
        filler = _Filler(plan, ranges, list(kept.values()))
        reading.fill(source, filler)
        made = filler.shards(group)
        shards |= {part: replace(made[code], cuts=cuts.get(code)) for part, code in kept.items()}
    streamed = {part: code for part, code in plan.parts.items() if ways.of[part] == STREAMED}
    readers = _readers(plan, distribute, group.size) if streamed else None
    for part, code in streamed.items():
        reads = group.rank == 0 or distribute != "scatter"
        table = (plan.bounds, cuts[code], plan.split, code, readers)
        shards[part] = StreamedShard(group, plan.format, source if reads else None, *table)
    mapped = {part: code for part, code in plan.parts.items() if ways.of[part] == MAPPED}
    if mapped:
        with group.agreed():
            maps = FileMaps(plan.places, plan.format.input_size, source.stamps)
            targets, stored = _read_targets(source)
        for part, code in mapped.items():
            rows, count = PartRows.of(plan.split, code), plan.split.counts[code]
            shards[part] = MappedShard(group, plan.format, source, rows, count, maps, targets, stored)
    return shards


def _readers(plan: _Plan, distribute: str, size: int) -> np.ndarray:
    """Return which ranks may read each chunk, see `StreamedShard`."""
    if distribute == "local":
        return np.ascontiguousarray(plan.holders.of_rows(plan.bounds[:-1]))
    return np.full((len(plan.bounds) - 1, 2), (0, 1 if distribute == "scatter" else size))


def _read_targets(source: Hdf5Source) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and stored weights of all rows of a source, checked."""
    form, rows = source.format, len(source)
    blank = replace(form, input_shape=(0,))
    _, targets, stored = blank.empty(rows)
    for lo, hi in source.blocks(0, rows, scatter.BLOCK_BYTES):
        source.read_into(lo, None, targets[lo:hi], stored[lo:hi])
        source.check_targets(targets[lo:hi], stored[lo:hi], lo)
    source.finish()
    return targets, stored


@dataclass
class _Reading:
    """Reading rows into memory, and how far it has come."""

    group: Group
    distribute: str
    progress: Progress | None
    plans: list[_Plan]
    _done: int = 0

    def __post_init__(self) -> None:
        # Progress is rank 0's: of all rows where it reads for all, else of its own (the first share of each source).
        readers = self.group.size if self.distribute != "scatter" else 1
        self._rows = sum(row_range(plan.rows, 0, readers)[1] for plan in self.plans)

    def _report(self, rows: int) -> None:
        private_peak.look(_LOOK_S)
        self._done += rows
        if self.progress and self.group.rank == 0:
            self.progress(min(1.0, self._done / self._rows))  # shares of a node's own files may be larger

    def fill(self, source: Hdf5Source | None, filler: _Filler) -> None:
        """Fill this rank's rows; what one rank finds wrong all raise.  Collective."""
        with self.group.agreed(patient=True):
            if self.distribute != "scatter":
                scatter.read_own(source, filler, self._report)
            elif self.group.rank == 0:
                scatter.scatter(self.group, source, filler, self._report)
            else:
                scatter.take(self.group, filler)


class _Filler:
    """This rank's arrays for some ranges of a source's rows: takes blocks in file order and sorts the rows by part."""

    def __init__(self, plan: _Plan, ranges: list[tuple[int, int]], parts: list[int]) -> None:
        self.format, self.rows, self.ranges = plan.format, plan.rows, ranges
        self._split, self._parts = plan.split, parts
        self._counts = [self._count(lo, hi) for lo, hi in ranges]
        counts = sum(self._counts, np.zeros(256, np.int64))
        self._filled = np.zeros(len(PARTS), np.int64)
        self._arrays = {part: large_arrays(plan.format, int(counts[part])) for part in parts}

    def _count(self, lo: int, hi: int) -> np.ndarray:
        """Return how many of the rows lo..hi are in each part."""
        counts = np.zeros(256, np.int64)
        for at in range(lo, hi, _PARTS_BLOCK):
            counts += np.bincount(self._split.part_of(at, min(at + _PARTS_BLOCK, hi)), minlength=len(counts))
        return counts

    def put(self, first: int, arrays: Arrays) -> None:
        """Store a block of rows that begins with row `first` of the source."""
        parts = self._split.part_of(first, first + len(arrays[0]))
        for part in self._parts:
            chosen = parts == part
            at = self._filled[part]
            self._filled[part] += np.count_nonzero(chosen)
            for block, own in zip(arrays, self._arrays[part], strict=True):
                np.compress(chosen, block, axis=0, out=own[at : self._filled[part]])

    def shards(self, group: Group) -> dict[int, MemoryShard]:
        """Return the finished shards by part; collective, because ranks hold different numbers of each part's rows."""
        mine = [(lo, counts[: len(PARTS)].tolist()) for (lo, _), counts in zip(self.ranges, self._counts, strict=True)]
        held = group.all_gather_objects(mine)
        # In the order of the rows, which need not be that of the ranks.
        order = sorted((lo, rank, piece) for rank, pieces in enumerate(held) for piece, (lo, _) in enumerate(pieces))
        plain = [rank for _, rank, _ in order] == list(range(group.size))
        shards = {}
        for part in self._parts:
            sizes = [held[rank][piece][1][part] for _, rank, piece in order]
            starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            owners = np.array([rank for _, rank, _ in order], np.int64)
            before = [sum(other[1][part] for other in held[rank][:piece]) for _, rank, piece in order]
            own = np.flatnonzero(owners == group.rank)
            ids = [np.arange(starts[piece], starts[piece + 1]) for piece in own]
            pieces = Pieces(owners, np.array(before, np.int64), np.concatenate([np.empty(0, np.int64), *ids]))
            inputs, targets, weight = self._arrays[part]
            first = int(starts[own[0]]) if len(own) else 0
            where = None if plain else pieces
            shards[part] = MemoryShard(self.format, inputs, targets, starts, first, weight, pieces=where)
        return shards
