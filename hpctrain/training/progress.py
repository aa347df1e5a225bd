"""`Progress`: how far a run has come and what it has summed up; all of it goes into a checkpoint."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.optim.plateau import PlateauState


@dataclass
class Progress:
    """Position in the data, this rank's float64 sums over the current epoch, and the results of the last one.

    step, epoch, step_in_epoch   finished updates; finished epochs; finished updates of the current epoch
    loss_sum, weight_sum, rows   sums over this rank's examples of the current epoch (after a resume rank 0 holds the
                                 sums of all ranks so far)
    train_loss                   weighted mean loss over all ranks' examples of the last epoch (or its part, at the end)
    examples                     number of examples over all ranks of the last whole epoch; 0 before there was one
    best, epochs_since_best      for early stopping
    plateau_...                  what the schedule that follows the validation results remembers
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    loss_sum: float = 0.0
    weight_sum: float = 0.0
    rows: int = 0
    train_loss: float = math.nan
    examples: int = 0
    best: float = math.nan
    epochs_since_best: int = 0
    plateau_factor: float = 1.0
    plateau_best: float = math.nan
    plateau_epochs: int = 0
    plateau_cooldown: int = 0

    @property
    def plateau(self) -> PlateauState:
        """The state of `optim.plateau`; can be set."""
        return PlateauState(self.plateau_factor, self.plateau_best, self.plateau_epochs, self.plateau_cooldown)

    @plateau.setter
    def plateau(self, state: PlateauState) -> None:
        """Set the state."""
        self.plateau_factor, self.plateau_best = state.factor, state.best
        self.plateau_epochs, self.plateau_cooldown = state.epochs, state.cooldown

    def add(self, loss_sum: float, weight_sum: float, rows: int) -> None:
        """Count one finished step of this rank."""
        self.step += 1
        self.step_in_epoch += 1
        self.loss_sum += loss_sum
        self.weight_sum += weight_sum
        self.rows += rows

    def totals(self, group: Group) -> tuple[float, float, int]:
        """Return loss sum, weight sum and rows of the current epoch over all ranks.  Collective."""
        sums = np.array([self.loss_sum, self.weight_sum, self.rows], np.float64)
        group.all_reduce(sums)
        return float(sums[0]), float(sums[1]), int(sums[2])

    def set_sums(self, loss_sum: float, weight_sum: float, rows: int) -> None:
        """Set the sums over the current epoch."""
        self.loss_sum, self.weight_sum, self.rows = loss_sum, weight_sum, rows

    def as_position(self, totals: tuple[float, float, int]) -> dict[str, int | float]:
        """Return the numbers for a checkpoint, with the sums of all ranks in place of this rank's."""
        return {**asdict(self), **dict(zip(("loss_sum", "weight_sum", "rows"), totals, strict=True))}

    @classmethod
    def from_position(cls, position: dict[str, int | float], holds_sums: bool) -> Progress:
        """Rebuild from a checkpoint; one rank (`holds_sums`) takes the sums so far, the others start from zero."""
        kinds = {field.name: int if field.type == "int" else float for field in fields(cls)}
        progress = cls(**{name: kinds[name](value) for name, value in position.items() if name in kinds})
        if not holds_sums:
            progress.set_sums(0.0, 0.0, 0)
        return progress
