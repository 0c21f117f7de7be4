"""One client's local training, batch by batch: Lightning's training step without its fixed costs.

Lightning's own loop looks up hooks, plugins and the active loop in every batch, which takes about a millisecond. Here
they are looked up once a round, and only those that somebody overrides are called. A client of two batches, in a module
that defines ``training_step`` alone::

    begin_client                fresh optimizers, the round's learning rates
    train_batch(first, 0)       to the device; zero_grad, training_step, backward; the objective's correction; step
    train_batch(second, 1)
    end_client                  how many optimizer steps it made
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.optimization.manual import ManualResult
from lightning.pytorch.loops.progress import _ReadyCompletedTracker
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.logs.client_log import ClientLog
from fl_lightning._lightning.loops.hooks import STEP_HOOKS, Hook
from fl_lightning._lightning.loops.local_optimizers import LocalOptimizers
from fl_lightning._lightning.loops.overrides import is_plain_transfer
from fl_lightning._lightning.loops.passes import StepPasses
from fl_lightning._lightning.loops.steps import ChangedSteps, Pass, Stepper, make_stepper
from fl_lightning._lightning.loops.stopping import StopRequests
from fl_lightning.parts.messages import OptimizerState


class ClientLoop(_TrainingEpochLoop):
    """Runs the batches of one client after another, in place of the epoch over one data loader.

    Hooks of callbacks and module, the optimizer's closure, clipping, accumulation and logging run in Lightning's order
    and with Lightning's arithmetic. Callbacks see a batch index that counts through the round, the module one that
    restarts with each client.
    """

    stop: StopRequests
    #: How clients step in this round.
    stepper: Stepper
    #: The steps of the client at work, as its objective changes them; ``None`` between clients.
    client_steps: ChangedSteps | None = None

    @classmethod
    def take_over(cls, stock: _TrainingEpochLoop) -> ClientLoop:
        """Return a loop with the progress, settings and validation loop of ``stock``."""
        loop = cls(stock.trainer, stock.min_steps, stock.max_steps)
        loop.__dict__.update(stock.__dict__)
        loop._at_last_batch = loop._accumulating = False
        return loop

    # ---- once a fit ----

    def prepare(self, batches_per_client: Callable[[], int]) -> None:
        """Resolve hooks and plugins; call it when model, optimizers and data are set up.

        Args:
            batches_per_client: Returns the mean number of a client's batches, from which follows how far a schedule by
                steps goes in a round.
        """
        trainer = self.trainer
        self._resolve_hooks()
        self.optimizers = LocalOptimizers(trainer, batches_per_client)
        self.client_log = ClientLog(self._module, self._results)

    def _resolve_hooks(self) -> None:
        """Resolve hooks and plugins: for the fit, and for each round, whose first hooks may set others."""
        trainer = self.trainer
        self._module = module = trainer.lightning_module
        self._automatic = module.automatic_optimization
        self._transfer = batch_transfer(trainer)
        self._hooks = {name: Hook(trainer, name) for name in STEP_HOOKS}
        self.stepper = make_stepper(self, self._hooks)

    # ---- once a round ----

    def prepare_round(self, num_batches: int) -> None:
        """Reset the counters, let clients start from the boundary's learning rates, and log for clients.

        Args:
            num_batches: Batches that this process will train in the round, or about as many.
        """
        self.batch_progress.reset_on_run()
        self.scheduler_progress.reset_on_run()
        self.automatic_optimization.optim_progress.reset_on_run()
        self.val_loop.batch_progress.total.reset()
        self._round_batches = num_batches
        self._handed_on = False
        self.optimizers.start_from_kept()
        self._counts_at_start = (self._batches_that_stepped, self._step_counter.completed)
        self.manual_optimization.on_run_start()
        self.client_log.install()

    def take_up_settings(self) -> None:
        """Take up what hooks have set at the round's start."""
        self._resolve_hooks()
        self.optimizers.start_from_present()

    def hand_on_rest(self) -> None:
        """Hand the last step's logged values to the trainer, if no client came to the round's last batch."""
        if self.batch_progress.current.ready and not self._handed_on:
            self.hand_on_to_trainer()

    def close_round(self) -> None:
        """No longer count manual steps or log for clients."""
        self.manual_optimization.on_run_end()
        self.client_log.remove()

    def local_counts(self) -> tuple[int, int]:
        """Return what this process added in the round: batches that stepped, and optimizer steps."""
        stepped, steps = self._counts_at_start
        return self._batches_that_stepped - stepped, self._step_counter.completed - steps

    def count_elsewhere(self, batches_that_stepped: int, steps: int) -> None:
        """Count what a client has done on another machine in this round."""
        here = self.local_counts()
        self.set_round_counts(here[0] + batches_that_stepped, here[1] + steps)

    def set_round_counts(self, batches_that_stepped: int, steps: int) -> None:
        """Replace what this process added in the round by what all processes added."""
        self._batches_that_stepped = self._counts_at_start[0] + batches_that_stepped
        self._step_counter.ready = self._step_counter.completed = self._counts_at_start[1] + steps

    @contextmanager
    def at_last_batch(self) -> Iterator[None]:
        """Give loggers the step of the round's last batch, as Lightning does for metrics of an epoch's end."""
        self._batches_that_stepped -= 1
        self._at_last_batch = True
        try:
            yield
        finally:
            self._batches_that_stepped += 1
            self._at_last_batch = False

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Return the counters of the round's boundary, whatever loggers are given."""
        state = super().on_save_checkpoint()
        state["_batches_that_stepped"] += int(self._at_last_batch)
        return state

    @contextmanager
    def hidden_counters(self) -> Iterator[None]:
        """Raise ``CannotVectorize`` where counters are read."""
        automatic = self.automatic_optimization
        shown = self.batch_progress, automatic.optim_progress
        hidden: Any = _Hidden()
        self.batch_progress = automatic.optim_progress = hidden
        try:
            yield
        finally:
            self.batch_progress, automatic.optim_progress = shown

    @property
    def steps_so_far(self) -> int:
        """The optimizer steps of all clients so far, which is ``trainer.global_step``."""
        return self._step_counter.completed

    @contextmanager
    def counting(self, steps: int) -> Iterator[None]:
        """Make ``trainer.global_step`` a number."""
        counter = self._step_counter
        before = counter.completed
        counter.completed = steps
        try:
            yield
        finally:
            counter.completed = before

    # ---- once a client ----

    def begin_client(self, round_index: int, held: OptimizerState | None = None) -> None:
        """Give the client fresh optimizers and the learning rates of the round in which it received its model.

        Args:
            round_index: That round.
            held: What its optimizers held at the end of its last round, if it keeps that.
        """
        self.optimizers.reset(round_index)
        if held is not None:
            self.optimizers.go_on(held)
        self._steps_before_client = self._step_counter.completed
        # Batches whose gradients are accumulated.
        self._window = 0
        # How far the client has walked the stretch of schedules by steps: one for a batch that is None, too.
        self._way = 0

    def end_client(self, slot: int) -> tuple[int, OptimizerState | None]:
        """Free the client's gradients and optimizer states.

        Returns:
            How many optimizer steps the client made, and what its optimizers hold, if it keeps that.
        """
        self.client_steps = None
        held = self.optimizers.end_client(slot)
        return self._step_counter.completed - self._steps_before_client, held

    def show_client(self, position: int, number: int) -> None:
        """Show in the progress bar which client of the round is training."""
        bar: dict[str, Any] = self.trainer._logger_connector._progress_bar_metrics
        bar["client"] = f"{position}/{number}"

    @property
    def _step_counter(self) -> _ReadyCompletedTracker:
        if self._automatic:
            return self.automatic_optimization.optim_progress.optimizer.step.total
        return self.manual_optimization.optim_step_progress.total

    # ---- once a batch ----

    def train_batch(self, batch: Any, batch_idx: int, is_last: bool, further: Iterable[Any] = ()) -> bool:
        """Train on one batch.

        Args:
            batch: A batch as the client's data give it.
            batch_idx: Position in the client's local training, where all batches of one step count as one.
            is_last: Whether it is the last batch of a pass over the client's data, on which accumulated gradients are
                applied.
            further: The other batches of the step that begins with this one.

        Returns:
            Whether the client goes on; False when the module's ``on_train_batch_start`` returned -1.
        """
        self.stop.poll()
        trainer = self.trainer
        progress = self.batch_progress
        start = self._hooks["on_train_batch_start"]
        end = self._hooks["on_train_batch_end"]

        # The batch is counted, and put where logs look for it.
        # Callbacks see a place that counts through the round, the module one that restarts with each client.
        round_idx = progress.current.ready
        batch = self._transfer(batch)
        progress.is_last_batch = is_last and round_idx + 1 >= self._round_batches
        progress.increment_ready()
        # The logger connector's `on_batch_start` does the same, and searches for the active loop.
        connector = trainer._logger_connector
        connector._first_loop_iter = connector._first_loop_iter is None
        results = self._results
        results.batch = batch
        results.batch_size = None
        results.dataloader_idx = None
        self._window += 1

        # Hooks come before the step, and one of them may end the client.
        goes_on = True
        if batch is None:
            self._warning_cache.warn("A client's data yielded None instead of a batch, on which nothing is trained.")
        else:
            start.call_callbacks(batch, round_idx)
            goes_on = start.call_module(batch, batch_idx) != -1
            trainer.strategy.on_train_batch_start(batch, batch_idx)

        # The step is taken. Gradients that are accumulated at the end of a pass over the client's data are applied,
        # however few.
        self._accumulating = not (is_last or self._window >= trainer.accumulate_grad_batches)
        progress.increment_started()
        outputs: dict[str, Any] | None = None if batch is None else {}
        if goes_on and batch is not None:
            if self.stepper.is_profiled:
                with fit_trainer(trainer).profiler.profile("run_training_batch"):
                    outputs = self._optimize(batch, batch_idx, further)
            else:
                outputs = self._optimize(batch, batch_idx, further)
        progress.increment_processed()
        if not self._accumulating:
            self._window = 0

        # Schedules by steps, hooks and logs come after the step.
        if goes_on:
            if self.optimizers.by_step and not self._accumulating:
                self._way += 1
                self.optimizers.step_in_client(self._way, batch_idx + 1)
            end.call_callbacks(outputs, batch, round_idx)
            end.call_module(outputs, batch, batch_idx)
            if progress.is_last_batch:
                self.hand_on_to_trainer()
            else:
                results.batch = results.batch_size = None
            if self._may_log_now():
                connector.update_train_step_metrics()
            if not self._accumulating:
                self._batches_that_stepped += 1
        progress.increment_completed()
        return goes_on

    def _may_log_now(self) -> bool:
        """Whether loggers may get the values of this batch; Lightning, which decides, first searches for its loop."""
        if not self.trainer.loggers:
            return False
        every = fit_trainer(self.trainer).log_every_n_steps
        is_due = bool(every) and (self._batches_that_stepped + 1) % every == 0
        return is_due or self.trainer.should_stop or bool(fit_trainer(self.trainer).fast_dev_run)

    def look_at_batch(self, batch: Any, batch_idx: int) -> None:
        """Take gradients on a batch without a step: nothing is counted or logged, and no hook of batches runs."""
        assert self.client_steps is not None
        walk = self.client_steps.walk
        assert walk is not None
        self.stop.poll()
        self._window = 1
        StepPasses(self, self._transfer(batch), batch_idx, is_quiet=True).run(walk)
        self._window = 0

    def hand_on_to_trainer(self) -> None:
        """Give what was logged to the trainer's metrics."""
        self.trainer._logger_connector.on_batch_end()
        self._handed_on = True

    @property
    def is_window_new(self) -> bool:
        """Whether no gradients of earlier batches are accumulated."""
        return self._window == 1

    def _should_accumulate(self) -> bool:
        return self._accumulating

    # ---- a step ----

    def _optimize(self, batch: Any, batch_idx: int, further: Iterable[Any]) -> dict[str, Any]:
        """Run ``training_step``, the backward pass and, unless gradients are accumulated, the optimizer.

        However many passes a step takes, it counts as one.
        """
        if not self._automatic:
            # Lightning lets a step end its batch by raising it.
            with suppress(StopIteration):
                return ManualResult.from_training_step_output(self.stepper.training_step(batch, batch_idx)).asdict()
            return {}
        first = Pass(self, batch, batch_idx)
        if self._accumulating:
            first()
            return first.outputs
        progress = self.automatic_optimization.optim_progress.optimizer.step
        progress.increment_ready()
        walk = first.client_steps.walk
        if walk is None:
            first.optimize()
            outputs = first.outputs
        else:
            passes = StepPasses(self, batch, batch_idx, further)
            passes.run(walk)
            outputs = passes.outputs
        progress.increment_completed()
        return outputs


class _Hidden:
    """Stands in for counters while several clients are at work."""

    def __getattr__(self, name: str) -> Any:
        cause = "the data, a schedule or a step reads counters that all clients share"
        # The code of a step that is captured could catch the exception.
        torch._dynamo.graph_break(msg=cause)
        raise CannotVectorize(cause)


def batch_transfer(trainer: pl.Trainer) -> Callable[[Any], Any]:
    """Return how a batch gets from the client's data to the module: only the hooks that are overridden."""
    module = trainer.lightning_module
    precision = trainer.precision_plugin
    if not is_plain_transfer(trainer):

        def with_hooks(batch: Any) -> Any:
            batch = precision.convert_input(batch)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
            return call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)

        return with_hooks
    device = trainer.strategy.root_device

    def without_hooks(batch: Any) -> Any:
        # Lightning's search through a batch that is there already would take as long as to log a value.
        if type(batch) in (list, tuple) and all(type(part) is Tensor and part.device == device for part in batch):
            return batch
        return move_data_to_device(batch, device)

    return without_hooks
