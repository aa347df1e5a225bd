"""`TrainResult`: what a run came to, for a program to read."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from hpctrain.data.fields.categories import TextInputs
from hpctrain.data.prepare.preparation import Preparation
from hpctrain.job import Job
from hpctrain.monitor.history import History
from hpctrain.nn.model import Model
from hpctrain.run.trained import predict

if TYPE_CHECKING:
    from hpctrain.run.session import Session


@dataclass
class TrainResult:
    """What a run came to; the same on every rank.

    summary     what summary.json says; empty when the run was stopped by a signal
    run_dir     the run's folder
    job         the resolved job
    history     one dict an epoch of this process: "epoch" (from 1), "step", "train_loss", and "validation", its metrics
    stopped_by  the signal that stopped the run before its end, else None
    model       the trained network
    preparation  what is done to its inputs, and turned back of its outputs
    texts       which of its inputs are text
    rank        this process's rank: print on rank 0 only
    """

    summary: dict[str, Any]
    run_dir: Path
    job: Job
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    stopped_by: str | None = None
    model: Model = field(default=None, repr=False)
    preparation: Preparation = field(default=None, repr=False)
    texts: TextInputs = field(default=None, repr=False)
    rank: int = 0

    @classmethod
    def of(
        cls, session: Session, summary: dict[str, Any] | None, history: History, stopped_by: str | None
    ) -> TrainResult:
        """Collect a session's result: rank 0's word is broadcast.  Collective."""
        stopped_by = (stopped_by or "another rank's signal") if summary is None else None
        path = session.folder.path if session.folder is not None else None
        told = session.group.broadcast_object((path, history.epochs, stopped_by))
        model, prepared = session.model, session.prepared
        texts = TextInputs(prepared.facts.categories.get("input", {}), prepared.facts.input_parts)
        end = (model, prepared.preparation, texts, session.group.rank)
        return cls(summary or {}, told[0], session.job, told[1], told[2], *end)

    @property
    def exit_code(self) -> int:
        """Exit code for the command line: 0, or 128 + the number of the signal that stopped the run."""
        if self.stopped_by is None:
            return 0
        number = getattr(signal, self.stopped_by, signal.SIGTERM)
        return 128 + int(number)

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The parameters by name ("dense1.weight"), float32 views of the network's buffer."""
        return self.model.layout.views(self.model.params)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The running statistics of normalisation layers by name, likewise; empty where there are none."""
        return self.model.state_layout.views(self.model.state)

    def predict(self, inputs: np.ndarray | h5py.Dataset) -> np.ndarray:
        """Return what `TrainedModel.predict` does."""
        data = self.job.data
        options = (data.channels_first, self.preparation, self.texts, data.missing, data.input)
        return predict(self.model, inputs, *options)
