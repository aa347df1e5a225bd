"""How a run gets at its data: what "auto" comes to, the sources opened where they are needed, and the shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import h5py
import numpy as np

from hpctrain.comm.group import Group
from hpctrain.data.alike import check_alike
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.load import PARTS, Progress, load
from hpctrain.data.local import Holders, holders_of, staged_files
from hpctrain.data.needs import Demand
from hpctrain.data.prepare.fit import fit
from hpctrain.data.shard import Dataset
from hpctrain.data.ways import MEMORY, sees_files
from hpctrain.errors import UserError
from hpctrain.monitor.words import counted
from hpctrain.run.master import Prepared

_BLOCK = 1 << 20  # rows that are looked at together


def hand_out(
    group: Group,
    prepared: Prepared,
    say: Callable[[str], None],
    progress: Callable[[str], Progress] = lambda what: None,
) -> Dataset:
    """Return this rank's shards of a job's data; its preparation learns what it has not learned yet.  Collective.

    say       shows people a line
    progress  makes of words for what is done something that is called with the fraction that is done
    """
    job = prepared.job
    distribute = _distribute(group, prepared, say)
    reads = group.rank == 0 or distribute != "scatter"
    _check_alike(group, prepared, distribute)
    placed, holders = _placed(group, prepared, say) if distribute == "local" else (prepared, None)
    with group.agreed():
        sources = {part: placed.source(part) if reads else None for part in PARTS}
    for line in prepared.notes:
        say(line)
    try:
        shared = distribute != "scatter"
        told = progress("statistics of the training part")
        fit(group, sources["train"], prepared.split, prepared.preparation, shared, told)
        dataset = load(
            group,
            *sources.values(),
            split=prepared.split,
            distribute=distribute,
            progress=progress("reading data"),
            memory=job.data.memory_bytes,
            demand=demand_of(prepared),
            holders=holders,
        )
        dataset = replace(dataset, dropped=_dropped(group, prepared, sources, dataset, say))
    finally:
        for source in sources.values():
            if source is not None:
                source.close()
    for line in dataset.ways.said:
        say(line)
    return replace(dataset, train=dataset.train.weighed(job.loss.weigh)) if job.loss.weighs else dataset


def demand_of(prepared: Prepared) -> Demand:
    """Return what a job asks of its rows."""
    data = prepared.job.data
    return Demand(data.shuffle, data.distribute == "auto", prepared.job.run.update_batch, data.buffer_bytes)


def _distribute(group: Group, prepared: Prepared, say: Callable[[str], None]) -> str:
    """Return the way that the rows are handed out; "auto" looks which is possible, and says so."""
    wanted = prepared.job.data.distribute
    if wanted == "mpio":
        with group.agreed():
            _check_mpio()
        return "shared"
    if wanted != "auto":
        return wanted
    if group.size == 1:
        return "shared"
    files = [path for paths in prepared.files.values() for path in paths]
    if sees_files(group, files):
        say('distribute: "shared", every rank reads its own rows: all see the same files')
        return "shared"
    say('distribute: "scatter", rank 0 reads for all: not every rank sees the same files')
    return "scatter"


def _check_alike(group: Group, prepared: Prepared, distribute: str) -> None:
    """Refuse files that ranks which read for themselves do not see, or see others under the same names."""
    wanted = prepared.job.data.distribute
    if group.size == 1 or distribute == "scatter" or wanted == "auto":  # "auto" has looked
        return
    # Copies of shards are compared with their manifest.
    parts = [part for part in prepared.files if distribute != "local" or part != "train"]
    if files := [path for part in parts for path in prepared.files[part]]:
        check_alike(group, files, wanted)


def _check_mpio() -> None:
    """Refuse "mpio" where h5py cannot do it."""
    if not h5py.get_config().mpi:
        raise UserError(
            'data.distribute = "mpio" needs an h5py that is built with MPI',
            found=f"h5py {h5py.__version__} without MPI",
            allowed='"auto", "shared", "scatter", "local"',
            hint='"shared" reads the same rows from the same files, each rank its own; or build h5py with HDF5_MPI=ON',
        )


def _placed(group: Group, prepared: Prepared, say: Callable[[str], None]) -> tuple[Prepared, Holders]:
    """Return the job with this node's copies of the shards as its files, and which ranks read which; says so."""
    with group.agreed():
        files, here, manifest = staged_files(prepared.files["train"], prepared.job.data.staged)
    holders, nowhere = holders_of(group, here, manifest)
    count = len(manifest.shards)
    say(f'distribute: "local", each node reads its own of {counted(count, "shard")}')
    if nowhere:
        is_read = "is on no node: it is" if nowhere == 1 else "are on no node: they are"
        say(f"{nowhere} of {counted(count, 'shard')} {is_read} read from {manifest.folder}")
    return replace(prepared, files={**prepared.files, "train": files}), holders


def _dropped(
    group: Group,
    prepared: Prepared,
    sources: dict[str, Hdf5Source | None],
    dataset: Dataset,
    say: Callable[[str], None],
) -> dict[str, int]:
    """Return how many examples of each part do not count, for something in them is missing; says so.  Collective.

    Nothing where they are not known before training: those that are not in memory are read in every epoch.
    """
    if prepared.job.data.missing != "drop":
        return {}
    if set(dataset.ways.of.values()) != {MEMORY}:
        say('examples in which values are missing will not count (data.missing = "drop"): they are read while training')
        return {}
    found = np.zeros(len(PARTS) + 1, np.int64)
    for number, (part, source) in enumerate(sources.items()):
        for lo in range(0, len(source) if source is not None else 0, _BLOCK):
            rows = source.dropped(lo, min(lo + _BLOCK, len(source)))
            if part == "train":  # the other parts may come out of these files
                found += np.bincount(prepared.split.part_of(lo, lo + len(rows))[rows], minlength=len(found))
            else:
                found[number] += np.count_nonzero(rows)
    found = sum(group.all_gather_objects(found))
    dropped = {part: int(count) for part, count in zip(PARTS, found[:-1], strict=True) if count}
    names = ", ".join(f"{count:,} {'training' if part == 'train' else part}" for part, count in dropped.items())
    say(f'not counted, for values in them are missing (data.missing = "drop"): {names or "no"} examples')
    return dropped
