"""The training loop: for each batch, sum the gradients, let the strategy turn them into new weights, tell the monitors.

Everything it works with is given to it (`run/launch.py` puts the parts together); it knows neither files nor job keys.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from hpctrain.batch import Batch
from hpctrain.comm.group import Group
from hpctrain.data.loader import BatchLoader
from hpctrain.duration import Duration
from hpctrain.errors import UserError, at_step
from hpctrain.monitor.base import EpochReport, EvaluationReport, Monitor, StepReport
from hpctrain.nn import flat
from hpctrain.nn.model import Model
from hpctrain.optim.plateau import ReduceOnPlateau
from hpctrain.strategies.base import StepOutcome, StrategyRun
from hpctrain.training.progress import Progress
from hpctrain.training.stop import StopSignal


@dataclass(frozen=True)
class EarlyStopRule:
    """End the run when `metric` of the validation part is not better by `min_delta` for `patience` epochs."""

    metric: str
    patience: int
    min_delta: float
    higher_is_better: bool


@dataclass(frozen=True)
class PlateauRule:
    """Lower the learning rate when the schedule's metric does not become better; see `optim.plateau`."""

    schedule: ReduceOnPlateau
    higher_is_better: bool


@dataclass
class Trainer:
    """One run's loop.  Every rank makes one with the same settings and calls `run`.

    learning_rate       step -> learning rate, before what `plateau` makes of it
    total_steps         number of updates of the whole run
    micro_batch         rows of one forward and backward pass at most; None: all of a rank's rows
    checkpoint_every    None: only at the end, or when stopped
    save                writes a checkpoint of the progress given to it (rank 0), given sums over all ranks; collective
    validate            evaluates the validation part after each epoch; collective; None: there is none
    """

    group: Group
    model: Model
    strategy: StrategyRun
    loader: BatchLoader
    learning_rate: Callable[[int], float]
    total_steps: int
    save: Callable[[Progress, tuple[float, float, int]], None]
    stop: StopSignal
    monitors: Sequence[Monitor] = ()
    micro_batch: int | None = None
    checkpoint_every: Duration | None = None
    validate: Callable[[Progress], EvaluationReport] | None = None
    early_stop: EarlyStopRule | None = None
    plateau: PlateauRule | None = None
    progress: Progress = field(default_factory=Progress)
    stopped: bool = False  # a signal ended the run before its planned end
    ended_early: bool = False  # early stopping did
    train_s: float = 0.0  # time of the steps alone, in this process
    data_s: float = 0.0  # of it, the time until a batch was there: waiting for rows, and putting them together
    data_wait_s: float = 0.0  # of that, waiting alone
    trained_rows: int = 0  # examples of all ranks in those steps
    reduce_s: float = 0.0  # of it, the time until gradients were summed, where it was not hidden
    _loss_sum: float = 0.0  # of the passes of this step that are done
    _loss_has_left: bool = False  # with the first of this step's gradients
    _weights: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)  # room for a batch's weights
    _current_step: int = 0  # counted from 1, for the message of a fault
    _saved_step: int = -1
    _saved_at: float = field(default_factory=time.monotonic)
    _epoch_s: float = 0.0
    _epoch_wait_s: float = 0.0
    _epoch_reduce_s: float = 0.0
    _epoch_first_rows: int = 0

    def run(self) -> None:
        """Train to the planned end, an early stop, or a signal that asks to stop; a checkpoint is the last thing."""
        self.model.cut_at(self.strategy.cuts)
        self._saved_step = self.progress.step
        self._epoch_first_rows = self.progress.totals(self.group)[2]
        try:
            while not self._done:
                self._train_epoch()
            if self.progress.step_in_epoch and not self.stopped:
                self._close_epoch(complete=False)
            if self.progress.step > self._saved_step:
                self._save()
        except Exception as error:
            at_step(error, self._current_step)
            raise

    @property
    def _done(self) -> bool:
        return self.progress.step >= self.total_steps or self.stopped or self.ended_early

    def _train_epoch(self) -> None:
        """Train the rest of the current epoch."""
        progress = self.progress
        started = time.perf_counter()
        for batch in self.loader.epoch(progress.epoch, first=progress.step_in_epoch):
            self.data_s += time.perf_counter() - started
            waited, self.loader.waited_s = self.loader.waited_s, 0.0
            self._current_step = progress.step + 1
            weight = self._total(batch.weight)
            loss_sum = self._sum_gradients(batch, weight)
            lr = self.learning_rate(progress.step) * progress.plateau_factor
            while (outcome := self.strategy.step(progress.step, lr)) is None:
                self._sum_gradients(batch, weight)
            progress.add(*self._own_part(outcome, (loss_sum, weight, batch.rows)))
            self._report_step(outcome, lr, time.perf_counter() - started, waited)
            if progress.step_in_epoch == self.loader.steps_per_epoch:
                self._close_epoch(complete=True)
            self.stopped = outcome.stop
            if outcome.checkpoint or self._checkpoint_is_due():
                self._save()
            if self._done:
                break
            started = time.perf_counter()

    def _own_part(self, outcome: StepOutcome, own: tuple[float, float, int]) -> tuple[float, float, int]:
        """Return this rank's part of a step's loss, weight and rows: rank 0 has it all where the total is known."""
        if outcome.totals is None:
            return own
        return outcome.totals if self.group.rank == 0 else (0.0, 0.0, 0)

    def _total(self, weight: np.ndarray) -> float:
        """Return the sum of float32 weights in float64; numpy alone would make a buffer for each."""
        flat_weight = weight.reshape(-1)
        if len(self._weights) < flat_weight.size:
            self._weights = np.empty(flat_weight.size)
        scratch = self._weights[: flat_weight.size]
        scratch[:] = flat_weight
        return float(scratch.sum())

    def _sum_gradients(self, batch: Batch, weight: float) -> float:
        """Fill the gradient buffer with this rank's sums over the batch; return the sum of the losses."""
        model, tail = self.model, self.model.tail
        if not batch.rows:
            model.grad_buffer[:] = 0
        tail[flat.WEIGHT] = weight
        tail[flat.ROWS] = batch.rows
        tail[flat.STOP] = self.stop.requested is not None
        tail[flat.CHECKPOINT] = self._clock_wants_checkpoint()
        size = self.micro_batch or max(batch.rows, 1)
        if model.fixed is not None:
            self._sum_lanes(batch, size)
            return 0.0
        if model.meets and batch.rows > size:
            raise AssertionError(f"{batch.rows} rows in passes of {size}, where every rank must make one pass")
        self._loss_sum, self._loss_has_left = 0.0, False
        # A rank without rows makes a pass, too, where the others would wait for it.
        for lo in range(0, max(batch.rows, int(model.meets)), size):
            part = batch if size >= batch.rows else batch.slice(lo, lo + size)
            ready = self._ready if self.strategy.cuts and lo + size >= batch.rows else None
            self._loss_sum += model.loss_and_grad(part, beta=float(lo > 0 or not batch.rows), ready=ready)
        self._tell_loss(self._loss_sum)
        return self._loss_sum

    def _ready(self, lo: int, loss: float) -> None:
        """Let gradients go that are final; the tail goes with the first of them, the loss included."""
        self._tell_loss(self._loss_sum + loss)
        self._loss_has_left = True
        self.strategy.ready(lo, self.progress.step)

    def _tell_loss(self, loss_sum: float) -> None:
        if self._loss_has_left:  # the sum over the ranks may stand there already
            return
        with np.errstate(over="ignore"):  # a loss beyond float32 is shown as infinite
            self.model.tail[flat.LOSS] = loss_sum

    def _sum_lanes(self, batch: Batch, size: int) -> None:
        """Sum gradients over the batch in fixed point, in passes of `size` rows; weights and losses go with them."""
        model, fixed = self.model, self.model.fixed
        fixed.begin()
        for lo in range(0, batch.rows, size):
            part = batch if size >= batch.rows else batch.slice(lo, lo + size)
            model.loss_and_grad(part, beta=float(lo > 0))
        for lo in range(0, batch.rows, fixed.rows):
            fixed.note((batch.first + lo) // fixed.rows, self._total(batch.weight[lo : lo + fixed.rows]))

    def _report_step(self, outcome: StepOutcome, lr: float, seconds: float, waited: float) -> None:
        progress = self.progress
        self.train_s += seconds
        self._epoch_s += seconds
        self.data_wait_s += waited
        self._epoch_wait_s += waited
        self.reduce_s += outcome.reduce_s
        self._epoch_reduce_s += outcome.reduce_s
        if math.isnan(outcome.loss):
            where = f"in step {progress.step}, epoch {progress.epoch + 1}"
            self._refuse(f"the loss is not a number (NaN) {where}: training has diverged")
        report = StepReport(
            progress.step,
            progress.epoch,
            outcome.loss,
            lr,
            outcome.weight,
            seconds,
            outcome.grad_norm,
            waited,
            outcome.reduce_s,
        )
        self.tell("on_step", report)

    def _refuse(self, what: str) -> NoReturn:
        """End a run that has diverged; the checkpoints before stay."""
        step = self.progress.step
        raise UserError(
            what,
            found=f"learning rate {self.learning_rate(max(step - 1, 0)) * self.progress.plateau_factor:.3g}",
            hint="lower optimizer.lr, add a warm-up ([schedule] warmup) or clip gradients ([clip] norm = 1.0); "
            "inputs far from the size of 1 want scaling",
            agreed=True,
        )

    def _close_epoch(self, complete: bool) -> None:
        """Sum the epoch up over all ranks, report it, validate; a part of an epoch at the run's end counts likewise."""
        progress = self.progress
        loss_sum, weight_sum, rows = progress.totals(self.group)
        if complete and rows != self.loader.shard.total:
            raise AssertionError(
                f"epoch {progress.epoch}: {rows} examples were used instead of {self.loader.shard.total}"
            )
        progress.train_loss = loss_sum / weight_sum if weight_sum else math.nan
        new_rows = rows - self._epoch_first_rows
        self.trained_rows += new_rows
        rate = new_rows / self._epoch_s if self._epoch_s else math.nan
        spent = (self._epoch_s, rate, self._epoch_wait_s, self._epoch_reduce_s)
        report = EpochReport(progress.epoch, progress.step, rows, progress.train_loss, *spent)
        self.tell("on_epoch", report)
        self._epoch_s = self._epoch_wait_s = self._epoch_reduce_s = 0.0
        self._epoch_first_rows = 0
        if self.validate is not None:
            evaluation = self.validate(progress)
            self.tell("on_evaluation", evaluation)
            self._judge(evaluation)
            if complete:  # so that a run that ended inside an epoch and goes on is as one that did not
                self._follow_plateau(evaluation)
        if complete:
            progress.examples = rows
            progress.epoch += 1
            progress.step_in_epoch = 0
            progress.set_sums(0.0, 0.0, 0)

    def _judge(self, report: EvaluationReport) -> None:
        """Apply the rule of early stopping to a validation result."""
        rule, progress = self.early_stop, self.progress
        if rule is None:
            return
        value = report.metrics[rule.metric]
        gain = value - progress.best if rule.higher_is_better else progress.best - value
        if math.isnan(progress.best) or gain > rule.min_delta:
            progress.best, progress.epochs_since_best = value, 0
            return
        progress.epochs_since_best += 1
        if progress.epochs_since_best >= rule.patience:
            self.ended_early = True
            best = f"validation {rule.metric} has not become better than {progress.best:.4g}"
            self.tell("on_event", f"early stop: {best} for {rule.patience} epochs")

    def _follow_plateau(self, report: EvaluationReport) -> None:
        """Let the schedule see a validation result; say so where it lowers the learning rate."""
        rule, progress = self.plateau, self.progress
        if rule is None:
            return
        metric, before = rule.schedule.metric, progress.plateau
        progress.plateau = rule.schedule.judge(before, report.metrics[metric], rule.higher_is_better)
        if progress.plateau_factor != before.factor:
            best = f"validation {metric} has not become better than {progress.plateau_best:.4g}"
            self.tell("on_event", f"the learning rate is now {progress.plateau_factor:.3g} of the schedule's: {best}")

    def _checkpoint_is_due(self) -> bool:
        every = self.checkpoint_every
        if every is None or every.unit == "seconds":
            return False
        return self.progress.step % max(1, every.in_steps(self.loader.steps_per_epoch)) == 0

    def _clock_wants_checkpoint(self) -> bool:
        every = self.checkpoint_every
        if self.group.rank or every is None or every.unit != "seconds":
            return False
        return time.monotonic() - self._saved_at >= every.value

    def _save(self) -> None:
        if not np.isfinite(self.model.params).all():  # the loss of the next step would tell, but there may be none
            self._refuse(f"the weights are not finite after step {self.progress.step}: training has diverged")
        self.save(self.progress, self.progress.totals(self.group))
        self._saved_step, self._saved_at = self.progress.step, time.monotonic()

    def tell(self, method: str, *args: Any) -> None:
        """Call a method of every monitor: on rank 0, and on all ranks those that say they are collective."""
        for monitor in self.monitors:
            if monitor.collective or self.group.rank == 0:
                getattr(monitor, method)(*args)
