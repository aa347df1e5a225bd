"""Rank 0's duties before the data is handed out: read the job, check it against the files, fill in what it leaves open.

The verdict goes to every rank: all raise the same error, or all hold the same resolved job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psutil

from hpctrain.comm.group import Group
from hpctrain.data.facts import DataFacts
from hpctrain.data.fields.categories import Categories
from hpctrain.data.fields.examples import Windows
from hpctrain.data.files import expand, identity
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.splits import RowSplit
from hpctrain.data.values import label_error
from hpctrain.errors import UserError, unknown_name
from hpctrain.job import Job
from hpctrain.kernels.cpu import VARIABLE, wrong_setting
from hpctrain.nn.check import check_outputs, output_shape
from hpctrain.nn.graph import Graph, build_graph
from hpctrain.nn.losses import Loss, default_loss
from hpctrain.nn.metrics import Metric, by_name, default_metrics
from hpctrain.optim.groups import update_table
from hpctrain.optim.table import UpdateTable
from hpctrain.run.lanes import check_lanes, default_lane
from hpctrain.run.learned import Learned, check_turns_back, preparation_of, split_of, with_way_to_split
from hpctrain.run.network import network
from hpctrain.run.notes import length_notes, notes, preparation_notes, split_notes

DEFAULT_MICRO_BATCH = 32  # examples of one set of batch statistics


@dataclass(frozen=True)
class Prepared:
    """A job that fits its data: everything resolved, the same on every rank.

    files   the paths of each part
    split   the part of each row of the training files
    preparation  what is done to inputs and targets; its steps learn when the data is loaded
    tokens  how many tokens the inputs may name, where the network begins with an embedding
    classes  below which class labels have to be, where not all were looked at
    notes   what the run says of its data
    """

    job: Job
    facts: DataFacts
    files: dict[str, list[str]]
    split: RowSplit
    preparation: Preparation
    tokens: int | None = None
    classes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def steps_per_epoch(self) -> int:
        """Number of updates of a pass over the training data."""
        return -(-self.facts.rows["train"] // self.job.run.update_batch)

    @property
    def total_steps(self) -> int:
        """Number of updates of the whole run."""
        return self.job.run.steps or self.job.run.epochs * self.steps_per_epoch

    def source(self, part: str) -> Hdf5Source | None:
        """Open the files of a part ("train", "validation", "test"); None where the part has no files of its own."""
        if part not in self.files:
            return None
        return open_source(
            self.job,
            self.files[part],
            self.facts.target_kind,
            self.tokens,
            self.facts.categories,
            self.preparation,
            self.classes,
        )


def open_source(
    job: Job,
    files: list[str],
    target_kind: str | None,
    tokens: int | None = None,
    categories: Categories | None = None,
    preparation: Preparation | None = None,
    classes: int | None = None,
) -> Hdf5Source:
    """Open data files for the datasets that a job names.

    tokens      what their inputs have to be, see `Prepared`
    categories  of text, as the training files have them; None: these are the training files
    preparation  what is done to the examples, see `Prepared`
    classes     below which class labels have to be, see `Prepared`
    """
    data = job.data
    windows = data.windows
    return Hdf5Source(
        files,
        data.input,
        data.target,
        target_kind,
        weight=data.weight,
        mask=data.mask,
        ignore_label=data.ignore_label,
        channels_first=data.channels_first,
        tokens=tokens,
        classes=classes,
        bounds=job.loss.bounds if job.loss is not None else None,
        examples=data.examples,
        group=data.group,
        combine=data.combine,
        one_hot=data.target_encoding == "one_hot",
        windows=windows and Windows(windows.length, windows.horizon, windows.stride, windows.run),
        missing=data.missing,
        categories=categories,
        preparation=preparation,
    )


def prepare(group: Group, load_job: Callable[[], Job]) -> Prepared:
    """Read and check the job on rank 0 and return what came of it on every rank.  Collective."""
    prepared = None
    with group.agreed():
        if group.rank == 0:
            prepared = resolve(load_job(), group.size)
    return group.broadcast_object(prepared, patient=True)


def resolve(job: Job, workers: int = 1, learned: Learned | None = None) -> Prepared:
    """Check a job against its files and fill in the loss, the metrics and the network where it leaves them open.

    workers  how many there are, for a schedule that counts them
    learned  what a network that is trained already has learned of its data; None: that is learned now
    """
    if (setting := wrong_setting()) is not None:
        raise UserError(f"unknown value of the environment variable {VARIABLE}", found=setting, allowed="on or off")
    data = job.data
    files = {"train": expand_files(job, data.files)}
    for part in ("validation", "test"):
        if (own := getattr(data, f"{part}_files")) is not None:
            files[part] = expand_files(job, own)
    _check_parts_are_apart(files)
    wanted = _target_kind(job.loss)
    train = open_source(job, files["train"], wanted, categories=learned and learned.categories)
    others = {part: paths for part, paths in files.items() if part != "train"}
    sources = {"train": train} | {
        part: open_source(job, paths, wanted, categories=train.categories) for part, paths in others.items()
    }
    job = with_way_to_split(job, train)
    split = split_of(job, train)
    preparation = preparation_of(job, train, split, learned)
    for source in sources.values():
        source.prepare(preparation)
    few = job.model.layers is not None  # the network does not follow from the labels
    facts = DataFacts.collect(train, sources.get("validation"), sources.get("test"), split, few)
    if (shared := train.shared_numbers()) is not None:
        raise UserError(
            "data.input and data.target have a dataset in common, so that the network would be told the answer",
            found=f"{shared!r} is in both: data.input = {data.input!r}, data.target = {data.target!r}",
            allowed="two datasets, or other columns of one",
        )
    # Of the job as it is written.
    said = (*notes(job, facts), *split_notes(job, split), *preparation_notes(preparation))
    loss = job.loss or default_loss(facts.target_kind)
    check_turns_back(preparation, loss)
    metrics = default_metrics(facts.target_kind) if job.metrics.names is None else job.metrics.names
    layers = network(job, facts, loss)
    graph = build_graph(layers, facts.input_shape or (1,))
    _check_meets(job, graph)
    check_lanes(job, graph)
    job = job.model_copy(update={"data": job.data.with_order(job.data.shuffle)})
    job = job.resolved(
        layers=None if job.model.python else layers,
        loss=loss,
        metrics=metrics,
        schedule=job.schedule.with_workers(workers),
        micro_batch=_micro_batch(job, graph),
    )
    out_shape = output_shape(layers, facts.input_shape)
    classes = _check_labels(out_shape[-1], loss, facts)
    check_outputs(layers, out_shape, loss, facts.target_kind, facts.classes, facts.target_shape)
    width = loss.judged_width(facts.target_kind, out_shape, sources["train"].format.positions)
    _check_metrics(job, width, metrics, facts)
    _check_memory(graph)
    update_table_of(job, graph)  # finds groups that fit no tensor
    prepared = Prepared(job, facts, files, split, preparation, graph.tokens, classes, said)
    too_short = length_notes(job, prepared.steps_per_epoch, prepared.total_steps)
    return replace(prepared, notes=(*said, *too_short))


def _check_memory(graph: Graph) -> None:
    """Refuse a network whose parameters and gradients alone are larger than the machine's memory."""
    needed, there = 2 * 4 * graph.layout().size, psutil.virtual_memory().total
    if needed > there:
        raise UserError(
            "the network is larger than the memory of this machine",
            found=f"{graph.layout().size:,} parameters: {needed / 1e9:.0f} GB with their gradients on each rank",
            allowed=f"less than {there / 1e9:.0f} GB",
            hint="make its layers smaller",
        )


def _micro_batch(job: Job, graph: Graph) -> int | None:
    """Return the micro-batch of a job that names none although its sums or statistics are taken over micro-batches."""
    if job.run.micro_batch is None and graph.by_micro_batch:
        return min(job.run.global_batch, DEFAULT_MICRO_BATCH)
    return default_lane(job)


def _check_meets(job: Job, graph: Graph) -> None:
    """Refuse what would cut a batch into several passes where layers take statistics over all of it."""
    meeting = [node.name for node in graph.nodes if node.built.meets]
    if not meeting:
        return
    run, whole = job.run, "synchronised batch norm takes its statistics over the whole global batch"
    if job.data.shuffle == "local":
        raise UserError(
            f'{whole}, of which data.shuffle = "local" makes no even shares',
            allowed='data.shuffle = "global", "chunks" or "none"',
            hint="leave data.shuffle out, or take batch norm without sync",
        )
    if alone := [node.name for node in graph.nodes if node.built.state and not node.built.meets]:
        raise UserError(
            "some batch norms are synchronised (over the global batch), others are not (over micro-batches)",
            found=f"sync = true in {', '.join(meeting)}; not in {', '.join(alone)}",
            allowed="sync = true in all of them, or in none",
        )
    if run.accumulate > 1:
        raise UserError(
            f"{whole}, which run.accumulate takes in several passes",
            found=f"run.accumulate = {run.accumulate}",
            allowed="1",
            hint=f"set run.global_batch = {run.update_batch}, or take batch norm without sync",
        )
    if run.micro_batch is not None and run.micro_batch < run.global_batch:
        raise UserError(
            f"{whole}, which run.micro_batch takes in several passes",
            found=f"run.micro_batch = {run.micro_batch}, run.global_batch = {run.global_batch}",
            allowed=f"no run.micro_batch, or at least {run.global_batch}",
            hint="leave run.micro_batch out: each rank takes its part of the batch in one pass; more ranks need less "
            "memory each",
        )


def update_table_of(job: Job, graph: Graph) -> UpdateTable:
    """Return the optimizer's factors for each tensor of a network; a group that fits no tensor is a `UserError`."""
    decays = {f"{node.name}.{spec.name}": spec.decays for node in graph.nodes for spec in node.built.params}
    return update_table(graph.layout(), decays, job.optimizer.groups, job.optimizer.decay_all)


def expand_files(job: Job, files: str | Sequence[str]) -> list[str]:
    """Return the paths that an entry of the job's data section names."""
    exclude = job.data.exclude or ()
    exclude = (exclude,) if isinstance(exclude, str) else exclude
    # The job's paths are absolute already: it knows the folder of its file.
    return expand(
        files if isinstance(files, str) else list(files), os.getcwd(), exclude, lazy=job.data.examples == "files"
    )


def _check_parts_are_apart(files: dict[str, list[str]]) -> None:
    """Refuse a file that trains and is tested on, by whatever name."""
    keys = {"train": "data.files", "validation": "data.validation_files", "test": "data.test_files"}
    seen: dict[object, str] = {}
    for part, paths in files.items():
        for path in paths:
            key = identity(path)
            if seen.setdefault(key, part) != part:
                raise UserError(
                    f"one file is in two parts of the data, {keys[seen[key]]} and {keys[part]}",
                    found=path,
                    allowed="different files: what trains must not judge",
                    hint="use data.split to keep rows of one file apart",
                )


def _target_kind(loss: Loss | None) -> str | None:
    """Return the kind of targets that a loss insists on; None where the file's type decides."""
    return "real" if loss is not None and loss.accepts == ("real",) else None


def _check_labels(width: int, loss: Loss, facts: DataFacts) -> int | None:
    """Name a label that has no output, and its row, rather than only the number of classes.

    Returns how many classes there may be, where not all labels were looked at.
    """
    if facts.label_max is None:
        return None
    one_output = loss.outputs_for("class", facts.classes, 1) == 1
    limit = 2 if one_output else width
    limited = width > 1 or one_output
    if limited and facts.label_max.value >= limit:
        hint = f"correct the label, or give the last layer {facts.classes} units"
        hint = 'take loss "softmax_cross_entropy" and an output for each class' if one_output else hint
        raise label_error(facts.label_max.value, limit, facts.label_max.place, hint)
    return limit if limited and not facts.all_labels_seen else None


def _check_metrics(job: Job, width: int, metrics: Sequence[Metric], facts: DataFacts) -> None:
    for metric in metrics:
        metric.check_outputs(width, facts.target_kind)
    named = by_name(metrics)
    early_stop, known = job.run.early_stop, ["loss", *(name for name, metric in named.items() if metric.is_number)]
    if early_stop is not None and early_stop.metric not in known:
        raise unknown_name("metric in run.early_stop", early_stop.metric, known)
    followed = getattr(job.schedule, "metric", "loss")
    if followed not in known:
        raise unknown_name("metric in schedule", followed, known)
