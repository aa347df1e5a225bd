"""`ReduceOnPlateau`: the schedule that follows the results on the validation part."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import Field

from hpctrain.optim.schedules import Schedule


@dataclass(frozen=True)
class PlateauState:
    """What the schedule remembers between validations: it goes into checkpoints, and is the same on every rank.

    factor    what the learning rate is multiplied by now
    best      best value so far; NaN before the first
    epochs    validations without a better value, since the best, the last reduction or the end of the pause after it
    cooldown  validations of that pause that are left
    """

    factor: float = 1.0
    best: float = math.nan
    epochs: int = 0
    cooldown: int = 0


class ReduceOnPlateau(Schedule):
    """Multiplies the learning rate by `factor` when validation has not given a better value for `patience` epochs.

    metric      "loss" or a metric of the job, on the validation part, at the end of each whole epoch
    factor      in (0, 1)
    patience    epochs without a value better by more than `min_delta`, counted as in run.early_stop
    cooldown    epochs after a reduction that are not counted
    min_factor  the learning rate is never multiplied by less than this
    min_delta   0 or more
    """

    metric: str = "loss"
    factor: float = Field(0.1, gt=0, lt=1)
    patience: int = Field(10, ge=1)
    cooldown: int = Field(0, ge=0)
    min_factor: float = Field(0.0, ge=0, le=1)
    min_delta: float = Field(0.0, ge=0)

    def shape(self, step: int, warmup: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return 1: the state's factor comes on top."""
        return 1.0

    def judge(self, state: PlateauState, value: float, higher_is_better: bool) -> PlateauState:
        """Return the state after a validation that gave `value`."""
        gain = value - state.best if higher_is_better else state.best - value
        is_better = gain > self.min_delta or (math.isnan(state.best) and not math.isnan(value))
        best = value if is_better else state.best
        if state.cooldown:
            return PlateauState(state.factor, best, 0, state.cooldown - 1)
        epochs = 0 if is_better else state.epochs + 1
        if epochs < self.patience:
            return PlateauState(state.factor, best, epochs)
        return PlateauState(max(self.min_factor, state.factor * self.factor), best, 0, self.cooldown)
