"""`TrainedModel`: the network of a run's folder, to predict with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np

from hpctrain.data.fields.categories import TextInputs
from hpctrain.data.fields.scaling import NONE, scaling_of
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.kernels.rows import first_nonfinite_row
from hpctrain.nn.model import Model
from hpctrain.run.evaluation import load_weights
from hpctrain.run.learned import Learned, trained_preparation
from hpctrain.run.network import network
from hpctrain.run.restore import put_back


class TrainedModel:
    """A trained network and its job; `load_model(run_dir)` makes one."""

    def __init__(self, job: Job, model: Model, preparation: Preparation, interface: dict[str, Any]) -> None:
        self.job = job
        self.model = model
        self.preparation = preparation
        self._categories = interface.get("categories", {})
        self._texts = TextInputs(self._categories.get("input", {}), interface.get("input_parts", {}))

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes, one for each output, where the targets were text; else None."""
        targets = self._categories.get("target", {})
        return next(iter(targets.values())) if len(targets) == 1 else None

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The parameters by name ("dense1.weight"), float32 views of the network's buffer."""
        return self.model.layout.views(self.model.params)

    def predict(self, inputs: np.ndarray | h5py.Dataset) -> np.ndarray:
        """Return the network's outputs (rows, *out_shape) for inputs in the training data's order of axes.

        float32; with `data.prepare_target` float64, in the target's own units.  Inputs are what `data.prepare` begins
        with: they are prepared here.  An array has the numbers that are meant: where `scale_factor`, `add_offset` or
        `_FillValue` say how a file stores them, those are unpacked, and NaN is missing.  A dataset of an open file
        (`file["x"]`, without brackets behind it) is unpacked as its own attributes say, and refused where `data.input`
        selects columns: give an array of those.  Where `data.missing` is a
        number, it takes the place of NaN.  Inputs that were text in the training data may be so here too (an array of
        text, or of objects where some columns are numbers).
        """
        data = self.job.data
        return predict(self.model, inputs, data.channels_first, self.preparation, self._texts, data.missing, data.input)


def predict(
    model: Model,
    inputs: np.ndarray | h5py.Dataset,
    channels_first: bool = False,
    preparation: Preparation | None = None,
    texts: TextInputs | None = None,
    missing: str | float = "error",
    named: str | tuple[str, ...] = (),
) -> np.ndarray:
    """Return a network's outputs, channels last; `UserError` for inputs that are not numbers or of another shape.

    inputs       (rows, *stored shape), with `channels_first` (rows, channels, ...), as the data that it was trained on;
                 numbers as `TrainedModel.predict` has them
    preparation  what is done to inputs, and turned back of outputs.  Of a number that it cannot take, such as a kind
                 that no training row has, the `UserError` says why.
    texts        what inputs were text, if any were: here they may be so too
    missing      a number takes the place of NaN
    named        what the job reads as inputs: a dataset is taken only where that is whole datasets
    """
    preparation = preparation or Preparation()
    inputs = _unpacked(inputs, named) if isinstance(inputs, h5py.Dataset) else np.asarray(inputs)
    if texts is not None and texts.categories and inputs.dtype.kind in "SUO":
        inputs = texts.numbers(inputs)
    if inputs.dtype.kind not in "biuf":
        raise UserError("inputs must be real numbers", found=f"type {inputs.dtype}")
    shape = preparation.inputs.shape if preparation.inputs else model.input_shape
    if channels_first:
        shape = (*shape[-1:], *shape[:-1])
    if inputs.shape[1:] != shape:
        raise UserError(
            "inputs do not have the shape that the network was trained on",
            found=f"shape {inputs.shape}",
            allowed=f"(rows, {', '.join(map(str, shape))})",
            hint="for one example, add an axis: inputs[None]" if inputs.shape == shape else None,
        )
    if not isinstance(missing, str) and np.isnan(inputs).any():
        inputs = np.where(np.isnan(inputs), missing, inputs)
    if channels_first:
        inputs = np.moveaxis(inputs, 1, -1)
    outputs = np.zeros((len(inputs), *model.out_shape), np.float32)
    model.predict(_prepared(model, inputs, preparation), outputs)
    if not preparation.targets:
        return outputs
    levels = model.loss.outputs_for("real", None, 1)  # of quantiles: the outputs of a column stand side by side
    rows = outputs.reshape(len(outputs), -1, levels)
    turned = [preparation.targets.invert(np.ascontiguousarray(rows[..., level])) for level in range(levels)]
    return np.stack(turned, axis=-1).reshape(outputs.shape)


def _unpacked(dataset: h5py.Dataset, named: str | tuple[str, ...]) -> np.ndarray:
    """Return all of a dataset, its numbers as its attributes mean them."""
    names = (named,) if isinstance(named, str) else tuple(named)
    if len(names) > 1 or any("[" in name and name.strip("/") != dataset.name.strip("/") for name in names):
        raise UserError(
            "predict cannot take a dataset where data.input is made of several, or selects columns or fields",
            found=f"data.input = {', '.join(map(repr, names))}",
            allowed="an array (rows, ...) of what data.input selects, its numbers as they are meant",
            hint='read and put them together: predict(file["x"][:, [1, 0]]), say',
        )
    stored = dataset[()]
    scaling = scaling_of(dataset) if dataset.dtype.kind in "biuf" else NONE
    return scaling.apply(stored) if scaling.is_needed else stored


def _prepared(model: Model, inputs: np.ndarray, preparation: Preparation) -> np.ndarray:
    """Return inputs, channels last, as the network takes them: float32, C-contiguous."""
    if not preparation.inputs:
        return np.ascontiguousarray(inputs, np.float32)
    prepared = np.empty((len(inputs), *model.input_shape), np.float32)
    preparation.inputs.apply(inputs, prepared)
    row = first_nonfinite_row(prepared.reshape(len(inputs), -1).view(np.uint32))
    if row >= 0 and (why := preparation.inputs.explain(inputs[row])):
        raise UserError(f"the preparation makes no finite number of the inputs' row {row}", found=why)
    return prepared


def load_model(run_dir: str | Path) -> TrainedModel:
    """Return the network of a run: its final weights, or those of its latest valid checkpoint while there are none.

    The run's data need not be there.  `UserError` where the folder has no weights.
    """
    checkpoint = load_weights(Path(run_dir))
    job = Job.from_toml(checkpoint.job_toml, f"the job in {checkpoint.path}")
    facts = SimpleNamespace(**checkpoint.interface)
    facts.input_shape = tuple(facts.input_shape)
    model = Model(network(job, facts, job.loss), facts.input_shape, job.loss, facts.target_kind, seed=job.run.seed)
    put_back(checkpoint, model, None)
    preparation = trained_preparation(job, checkpoint.interface, Learned.of(checkpoint))
    return TrainedModel(job, model, preparation, checkpoint.interface)
