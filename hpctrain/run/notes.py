"""What a run says of its data and its length as it starts, where that is not plain to see."""

from __future__ import annotations

from hpctrain.data.facts import DataFacts
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.splits import RowSplit
from hpctrain.duration import Duration
from hpctrain.job import Job, Split

_LISTED = 12  # categories in a line, lines of one kind
_FAR = 0.25  # of the fraction that was asked for


def notes(job: Job, facts: DataFacts) -> list[str]:
    """Return lines about the data for the person who started the run."""
    data, lines = job.data, []
    if data.channels_first:
        stored = tuple(facts.fingerprint["train"]["input_shape"])
        lines.append(f"inputs are stored channels first, {stored}: turned to channels last, {facts.stored_shape}")
    for role, names in facts.categories.items():
        for name, categories in names.items():
            shown = [f"{text!r} = {code}" for code, text in enumerate(categories[:_LISTED])]
            more = [f"... ({len(categories):,} in all)"] if len(categories) > _LISTED else []
            lines.append(f"{role} {name!r} is text, read as numbers: {', '.join(shown + more)}")
    lines += facts.unwritten[:_LISTED]
    if len(facts.unwritten) > _LISTED:
        lines.append(f"... and so {len(facts.unwritten) - _LISTED:,} more datasets")
    if facts.whole_targets and (job.loss is None or job.loss.bounds is None or "class" in job.loss.accepts):
        lines.append(
            "targets are floating point numbers, but small whole ones: they are regressed; store them as integers to "
            "classify"
        )
    return lines


def split_notes(job: Job, split: RowSplit) -> list[str]:
    """Return lines about how the examples are split, where that is not plain to see."""
    options, lines = job.data.split, []
    if options is None:
        return lines
    if options.by == "time":
        lines.append(
            "windows overlap, so they are split in time: the first of each run (or file) train, then some validate, "
            "and the last ones test"
        )
    elif options.by == "run":
        lines.append("windows overlap, so whole runs (or files) are drawn for each part, by run.seed")
    if split.unused:
        left_out = f"{split.unused:,} of {split.rows:,} {'windows' if job.data.windows else 'rows'}"
        lines.append(
            f"{left_out} are left out: they share rows with windows of other parts"
            if options.by == "time"
            else f"{left_out} are left out: their rows are of several groups"
            if options.by == "group"
            else f"{left_out} are in no part of the data, and are not used"
        )
    if options.by in ("group", "file", "run"):
        lines += _far_from_wanted(options, split)
    return lines


def _far_from_wanted(options: Split, split: RowSplit) -> list[str]:
    """Return a line for each part that has far fewer or more of the examples than it was to have."""
    found = zip(("validation", "test"), (options.validation, options.test), split.counts[1:], strict=True)
    used = split.rows - split.unused
    return [
        f"the {part} part has {rows / used:.1%} of the examples, not {wanted:.1%}: each {options.by} stays whole"
        for part, wanted, rows in found
        if abs(rows / used - wanted) > _FAR * wanted
    ]


def preparation_notes(preparation: Preparation) -> list[str]:
    """Return a line about what is done to the examples."""
    return [f"the data is prepared as it is read: {preparation.describe()}"] if preparation else []


def length_notes(job: Job, steps_per_epoch: int, total_steps: int) -> list[str]:
    """Return lines about what a run of so many updates is too short for."""
    lines = []
    rise = Duration.parse(job.schedule.warmup, "schedule.warmup").in_steps(steps_per_epoch)
    if rise > total_steps:
        lines.append(
            f"the learning rate still rises when the run ends: schedule.warmup is {rise:,} updates, "
            f"the run has {total_steps:,}"
        )
    compression = getattr(job.strategy, "compression", None)
    if compression is not None and compression.warm_up_steps >= total_steps:
        lines.append(
            "gradients are never compressed: strategy.compression.warm_up_steps is "
            f"{compression.warm_up_steps:,}, the run has {total_steps:,} updates"
        )
    return lines
