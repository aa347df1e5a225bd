"""What a run says of its data as it starts: how it is read, where that is not plain to see."""

from __future__ import annotations

from hpctrain.data.facts import DataFacts
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.splits import RowSplit
from hpctrain.job import Job

_LISTED = 12  # categories in a line, lines of one kind


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
    if facts.whole_targets and (job.loss is None or "class" in job.loss.accepts):
        lines.append(
            "targets are floating point numbers, but whole: they are regressed; store them as integers to classify"
        )
    return lines


def preparation_notes(split: RowSplit, preparation: Preparation) -> list[str]:
    """Return lines about rows that are left out, and about what is done to the others."""
    lines = []
    if split.unused:
        lines.append(f"{split.unused:,} of {split.rows:,} rows are in no part of the data, and are not used")
    if preparation:
        lines.append(f"the data is prepared as it is read: {preparation.describe()}")
    return lines
