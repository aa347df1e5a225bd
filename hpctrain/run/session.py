"""`Session`: one training run put together from its parts, run, and written down."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hpctrain.comm.group import Group
from hpctrain.data.loader import BatchLoader
from hpctrain.errors import UserError
from hpctrain.kernels.cpu import FEWEST_ROWS, want_matrix_unit
from hpctrain.memory import peak_bytes, private_peak
from hpctrain.monitor.base import EvaluationReport, Monitor, RunInfo
from hpctrain.nn.metrics import by_name
from hpctrain.nn.model import Model
from hpctrain.optim.clipping import Clip
from hpctrain.optim.plateau import ReduceOnPlateau
from hpctrain.run.folder import RunFolder
from hpctrain.run.handing_out import hand_out
from hpctrain.run.lanes import check_order, lanes_of, rows_a_pass
from hpctrain.run.master import Prepared, update_table_of
from hpctrain.run.network import interface_of, network
from hpctrain.run.restore import restore
from hpctrain.run.threads import limit_threads
from hpctrain.run.versions import versions
from hpctrain.run.warm_up import warm_up
from hpctrain.training import checkpoint as checkpoints
from hpctrain.training.evaluate import Evaluator
from hpctrain.training.progress import Progress
from hpctrain.training.stop import StopSignal
from hpctrain.training.trainer import EarlyStopRule, PlateauRule, Trainer


class Session:
    """All objects of one run on this rank.  `folder` is open on rank 0 and None elsewhere.

    Making one loads the data, builds the network and compiles its kernels; every step of it is collective.
    """

    def __init__(
        self, group: Group, prepared: Prepared, folder: RunFolder | None, monitors: Sequence[Monitor], stop: StopSignal
    ) -> None:
        self.started = time.perf_counter()
        self.group = group
        self.prepared = prepared
        self.job = job = prepared.job
        self.folder = folder
        self.monitors = list(monitors)
        self._mention_crowding()
        limit_threads(job.run.threads_per_rank)
        self._stop = stop
        self.dataset = hand_out(group, prepared, self.say, lambda what: _LoadProgress(self, what))
        self._take_order()
        self.model = self._build_model()
        limits = job.clip.model_dump(exclude_none=True)
        clip = Clip(**limits) if limits else None
        self.strategy = job.strategy.bind(group, self.model, job.optimizer, clip)
        self._take_choices()
        run = job.run
        # Running statistics are taken over whole micro-batches, which then are the same at every world size, or over
        # all ranks' rows; sums in fixed point go by lanes, which are micro-batches, too.
        by_micro_batch = self.model.graph.by_micro_batch or run.reproducible
        self._pass_rows = run.micro_batch if by_micro_batch else run.rows_a_pass(group.size)
        if run.reproducible:
            self._pass_rows = rows_a_pass(job, group.size)
        self.model.reserve(self._pass_rows)
        # The same at any world size, where bits are to be the same.
        want_matrix_unit((run.update_batch if run.reproducible else self._pass_rows) * self.model.graph.positions)
        unit = run.micro_batch if by_micro_batch else 1
        self.loader = BatchLoader(
            group,
            self.dataset.train,
            run.update_batch,
            run.seed,
            self.job.data.shuffle,
            unit=unit,
            buffer_bytes=job.data.buffer_bytes,
        )
        self.say(self.loader.describe())
        self.metrics = by_name(job.metrics.names)
        self.evaluator = Evaluator(
            group, self.model, self.metrics, prepared.preparation.targets, in_order=run.reproducible
        )
        self.total_steps = prepared.total_steps
        self.setup_s = time.perf_counter() - self.started
        parts = [
            ("network", self.model),
            ("optimizer and collective", self.strategy),
            ("data loader", self.loader),
            ("evaluation", self.evaluator),
        ]
        self.compile_s = warm_up(group, parts, self.say)
        self._tune()
        private_peak.look()
        self.trainer = self._build_trainer(stop)

    def _mention_crowding(self) -> None:
        cores, ranks = os.cpu_count() or 1, self.group.local_size
        if ranks > cores:
            self.say(f"{ranks} ranks share {cores} cores: no more ranks than cores would be faster")

    def _take_order(self) -> None:
        """Write the order that training takes into the job, where what was wished for could not be had."""
        shuffle = self.dataset.ways.shuffle
        check_order(self.job, shuffle)
        if shuffle != self.job.data.shuffle:
            self.job = self.job.model_copy(update={"data": self.job.data.with_order(shuffle)})
            self.prepared = replace(self.prepared, job=self.job)

    def _take_choices(self) -> None:
        """Say what the strategy has chosen, and write it into the job: a resumed run goes on with it."""
        for line in self.strategy.said:
            self.say(line)
        if self.strategy.taken is not None:
            self.job = self.job.model_copy(update={"strategy": self.strategy.taken})
            self.prepared = replace(self.prepared, job=self.job)

    def _tune(self) -> None:
        """Let the strategy try out what only whole steps can tell."""

        def a_pass(cuts: Sequence[int], ready: Callable[[int, float], None]) -> None:
            self.model.cut_at(cuts)
            self.model.loss_and_grad(batch(), 0.0, ready)

        batch = functools.cache(lambda: self.model.dummy_batch(self._pass_rows))  # made when it is needed
        if self.strategy.tune(a_pass):
            self._take_choices()

    def _build_model(self) -> Model:
        facts, job = self.prepared.facts, self.job
        with self.group.agreed():
            layers = network(job, facts, job.loss)
        model = Model(
            layers,
            facts.input_shape,
            job.loss,
            facts.target_kind,
            seed=job.run.seed,
            allocate=self.group.allocate,
            allocate_gradients=lambda count: job.strategy.allocate_gradients(self.group, count),
            reduce=self.group.all_reduce,
            lanes=lanes_of(job),
        )
        model.table = update_table_of(job, model.graph)
        model.initialize()
        return model

    def _build_trainer(self, stop: StopSignal) -> Trainer:
        job, run = self.job, self.job.run
        per_epoch = self.loader.steps_per_epoch
        rule = run.early_stop
        return Trainer(
            group=self.group,
            model=self.model,
            strategy=self.strategy,
            loader=self.loader,
            learning_rate=lambda step: job.optimizer.lr * job.schedule.multiplier(step, self.total_steps, per_epoch),
            total_steps=self.total_steps,
            save=self._save_checkpoint,
            stop=stop,
            monitors=self.monitors,
            micro_batch=self._pass_rows,
            checkpoint_every=run.checkpoint_interval,
            validate=self._validate if self.dataset.validation is not None else None,
            plateau=self._plateau_rule(),
            early_stop=rule
            and EarlyStopRule(
                rule.metric,
                rule.patience,
                rule.min_delta,
                rule.metric != "loss" and self.metrics[rule.metric].better == "higher",
            ),
        )

    def _plateau_rule(self) -> PlateauRule | None:
        schedule = self.job.schedule
        if not isinstance(schedule, ReduceOnPlateau):
            return None
        return PlateauRule(schedule, schedule.metric != "loss" and self.metrics[schedule.metric].better == "higher")

    def resume(self) -> None:
        """Go on from the latest valid checkpoint of the run folder, if there is one; says what it does."""
        self.trainer.progress = restore(self.group, self.folder, self.prepared, self.model, self.strategy, self.say)

    def run(self) -> dict[str, Any] | None:
        """Train, evaluate the test part, write model and summary; return it, None if a signal stopped the run."""
        trainer, first_step = self.trainer, self.trainer.progress.step
        trainer.tell("on_start", self._info(first_step))
        trainer.run()
        if trainer.stopped and trainer.progress.step < self.total_steps:
            return None
        # What the run hands out from here on is the average of the weights, where it keeps one.
        self.strategy.swap_average()
        summary = self._summary(trainer.progress, first_step)
        with self.group.agreed():
            if self.folder is not None:
                checkpoints.save_model(self.folder.model, self._checkpoint(trainer.progress, (0.0, 0.0, 0)))
                self.folder.write_summary(summary)
        trainer.tell("on_end", summary)
        return summary

    def close(self) -> None:
        """Give back what a run holds: files, threads, MPI's memory."""
        self.dataset.close()
        self.strategy.close()
        want_matrix_unit(FEWEST_ROWS)  # `predict` has the same bits after a run as in a process of its own

    def say(self, text: str) -> None:
        """Show people a line."""
        if self.group.rank == 0:
            for monitor in self.monitors:
                monitor.on_event(text)

    def _validate(self, progress: Progress) -> EvaluationReport:
        with self.strategy.averaged():
            report = self.evaluator.run(self.dataset.validation, "validation", progress.epoch, progress.step)
        private_peak.look()
        return report

    def _save_checkpoint(self, progress: Progress, totals: tuple[float, float, int]) -> None:
        self.strategy.settle()
        with self.group.agreed():
            if self.folder is not None:
                path = checkpoints.step_path(self.folder.checkpoints, progress.step)
                checkpoints.save(path, self._checkpoint(progress, totals))
                checkpoints.prune(self.folder.checkpoints, self.job.run.keep)

    def _checkpoint(self, progress: Progress, totals: tuple[float, float, int]) -> checkpoints.Checkpoint:
        model = self.model
        return checkpoints.Checkpoint(
            job_toml=self.job.to_toml(),
            parameters=checkpoints.tensors_of(model.layout, model.params),
            state=checkpoints.tensors_of(model.state_layout, model.state),
            optimizer={
                slot: checkpoints.tensors_of(model.layout, values)
                for slot, values in self.strategy.state_dict().items()
            },
            strategy=self.strategy.records(),
            position=progress.as_position(totals),
            fingerprint=self.prepared.facts.fingerprint,
            interface=interface_of(self.prepared.facts),
            preparation=self.prepared.preparation.tensors(),
            world_size=self.group.size,
            seed=self.job.run.seed,
        )

    def _info(self, first_step: int) -> RunInfo:
        rows = self.prepared.facts.rows
        return RunInfo(
            job_name=self.job.name,
            run_dir=self.folder.path if self.folder is not None else None,
            world_size=self.group.size,
            nodes=self.group.nodes,
            parameters=self.model.parameters,
            train_examples=rows["train"],
            validation_examples=rows.get("validation", 0),
            test_examples=rows.get("test", 0),
            steps_per_epoch=self.loader.steps_per_epoch,
            total_steps=self.total_steps,
            global_batch=self.job.run.update_batch,
            strategy=self.strategy.describe(),
            first_step=first_step,
            dropped=self.dataset.dropped,
        )

    def _summary(self, progress: Progress, first_step: int) -> dict[str, Any]:
        trainer, dataset = self.trainer, self.dataset
        test, baseline = {}, {}
        if dataset.test is not None:
            report = self.evaluator.run(dataset.test, "test", progress.epoch, progress.step)
            trainer.tell("on_evaluation", report)
            test = report.metrics
            if self.model.target_kind == "real":
                baseline = self.evaluator.mean_predictor(dataset.train, dataset.test)
        seconds = trainer.train_s
        mine = (peak_bytes(), private_peak.look(), trainer.data_wait_s, trainer.data_s, trainer.reduce_s)
        memory, private, waits, all_data_s, all_reduce_s = zip(*self.group.all_gather_objects(mine), strict=True)
        waited, data_s = max(waits), max(all_data_s)
        reduce_s = min(all_reduce_s)  # the others' times hold their waiting for a slow one
        return {
            "finished": True,
            "job": self.job.name,
            "world_size": self.group.size,
            "workers": self.group.size,
            "nodes": self.group.nodes,
            "steps": progress.step,
            "epochs": progress.epoch,
            "resumed_from_step": first_step,
            "early_stop": trainer.ended_early,
            "examples_per_epoch": progress.examples or self.loader.shard.total,
            "train_loss": progress.train_loss,
            "test": test,
            "test_mean_predictor": baseline,
            "examples_per_s": trainer.trained_rows / seconds if seconds else math.nan,
            "parameters": self.model.parameters,
            "weights_sha256": self.model.sha256,
            "wall_s": time.perf_counter() - self.started,
            "compile_s": self.compile_s,
            "setup_s": self.setup_s,
            "train_s": seconds,
            "data_wait_s": waited,
            "data_wait_fraction": waited / seconds if seconds else math.nan,
            "data_s": data_s,
            "reduce_s": reduce_s,
            "reduce_fraction": reduce_s / seconds if seconds else math.nan,
            "peak_memory_bytes_per_rank": list(memory),
            "peak_private_memory_bytes_per_rank": list(private),
            "versions": versions(self.group),
        }


class _LoadProgress:
    """Says how far reading the data has come, for reads that take longer than a few seconds."""

    def __init__(self, session: Session, what: str = "reading data", every_s: float = 2.0) -> None:
        self._session = session
        self._what = what
        self._every_s = every_s
        self._next = time.monotonic() + every_s

    def __call__(self, fraction: float) -> None:
        if self._session._stop.requested:
            raise UserError(f"stopped by {self._session._stop.requested} while the data was read: nothing was trained")
        if time.monotonic() >= self._next:
            self._session.say(f"{self._what}: {fraction:.0%}")
            self._next = time.monotonic() + self._every_s
