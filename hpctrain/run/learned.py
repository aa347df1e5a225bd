"""What a run learns of its data beside the weights: its split, its preparation, and how a trained network has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.data.fields.categories import Categories
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.prepare.elements import column_names
from hpctrain.data.prepare.fit import find_sizes
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.data.series import default_way
from hpctrain.data.splits import RowSplit, split_rows
from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.nn.losses import Loss
from hpctrain.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class Learned:
    """What a trained network knows of its training data.

    categories   of text; None: there was none
    preparation  what its steps have learned, see `Preparation.tensors`
    """

    categories: Categories | None
    preparation: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Learned:
        """Take it from a checkpoint or a model."""
        return cls(checkpoint.interface.get("categories"), checkpoint.preparation)


def with_way_to_split(job: Job, source: Hdf5Source) -> Job:
    """Return the job with `data.split.by` filled in where it leaves that to the data."""
    split = job.data.split
    if split is None or split.by is not None:
        return job
    chosen = split.model_copy(update={"by": default_way(source, split.validation, split.test)})
    return job.model_copy(update={"data": job.data.model_copy(update={"split": chosen})})


def split_of(job: Job, source: Hdf5Source) -> RowSplit:
    """Return the part of each row of the training files; `UserError` where they cannot be split as the job says."""
    options = job.data.split.model_dump(exclude_none=True) if job.data.split else {}
    return split_rows(source, job.run.seed, **options)


def preparation_of(job: Job, train: Hdf5Source, split: RowSplit, learned: Learned | None) -> Preparation:
    """Bind the job's preparation to its data, so that the shape of prepared examples is known.

    With `learned` all is known of it; without, its steps learn when the data is loaded, but for the sizes of one-hot
    columns, on which the network depends: one pass over the training part.
    """
    data, form = job.data, train.stored_format
    if data.prepare_target and form.target_kind != "real":
        raise UserError(
            "data.prepare_target is for real targets, but the targets are class labels",
            hint='leave it out, or choose a loss for real targets, such as "mse"',
        )
    names = column_names(train.columns, form.input_shape)
    preparation = Preparation.of(data.prepare, data.prepare_target, form.input_shape, form.target_shape, names)
    if learned is not None:
        preparation.put_back(learned.preparation)
    elif preparation.inputs and not preparation.inputs.has_shape:
        texts = train.categories.get("input", {})
        known = {column: len(texts[name]) for column, name in enumerate(names or []) if name in texts}
        find_sizes(train, split, preparation.inputs, known)
    return preparation


def trained_preparation(job: Job, interface: Mapping[str, Any], learned: Learned) -> Preparation:
    """Return the preparation of a trained network, which needs no data."""
    data, shape = job.data, stored_shape(interface)
    names = column_names(interface.get("columns", {}), shape)
    target_shape = tuple(interface.get("target_shape", ()))
    preparation = Preparation.of(data.prepare, data.prepare_target, shape, target_shape, names)
    preparation.put_back(learned.preparation)
    return preparation


def stored_shape(interface: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of one example before preparation that a trained network's interface tells of."""
    return tuple(interface.get("stored_shape", interface["input_shape"]))


def check_turns_back(preparation: Preparation, loss: Loss) -> None:
    """Refuse prepared targets where outputs are no numbers of the targets' own."""
    if not preparation.targets:
        return
    values = np.array([[0.25]], np.float32)
    if not (loss.outputs_saying(values) == values).all():
        raise UserError(
            f"data.prepare_target does not go with the loss {loss.name}, which makes something of the outputs itself",
            allowed="mse, mae, huber, quantile",
            hint="leave data.prepare_target out",
        )
