"""One client's local training, batch by batch: Lightning's training step without its fixed costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.client_log import ClientLog
from fl_lightning._lightning.client_step import ClientStep, batch_transfer
from fl_lightning._lightning.local_optimizers import LocalOptimizers
from fl_lightning._lightning.stopping import StopRequests


class ClientLoop(ClientStep):
    """Runs the batches of one client after another, in place of the epoch over one data loader.

    Hooks of callbacks and module, the optimizer's closure, clipping, accumulation and logging run in Lightning's order
    and with Lightning's arithmetic. Callbacks see a batch index that counts through the round, the module one that
    restarts with each client.
    """

    stop: StopRequests
    _hides_counters = False  # while data of several clients are read

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
            batches_per_client: Returns the mean number of a client's batches, of which a schedule by steps walks the
                optimizer steps in each round.
        """
        trainer = self.trainer
        self._prepare_step()
        self.optimizers = LocalOptimizers(trainer, batches_per_client)
        self.client_log = ClientLog(self._module, self._results)
        self._transfer = batch_transfer(trainer)

    # ---- once a round ----

    def on_round_start(self, num_batches: int) -> None:
        """Note the optimizers' and schedules' settings, from which every client starts."""
        self.batch_progress.reset_on_run()
        self.scheduler_progress.reset_on_run()
        self.automatic_optimization.optim_progress.reset_on_run()
        self.val_loop.batch_progress.total.reset()
        self._round_batches, self._handed_on = num_batches, False
        self.optimizers.on_round_start()
        self._counts_at_start = (self._batches_that_stepped, self._step_counter.completed)
        self.manual_optimization.on_run_start()
        self.client_log.install()

    def on_clients_start(self) -> None:
        """Take up what hooks have set at the round's start.

        Raises:
            RuntimeError: If they have changed how the module optimises.
        """
        before = self._automatic
        self._prepare_step()
        self._transfer = batch_transfer(self.trainer)
        if self._automatic != before:
            raise RuntimeError(
                f"`automatic_optimization` of {type(self._module).__name__} changed from {before} to "
                f"{self._automatic} during the fit. Set it in `__init__`, and fit twice to optimise in both ways."
            )
        self.optimizers.on_clients_start()

    def on_clients_end(self) -> None:
        """Hand the last step's logged values to the trainer, if no client came to the round's last batch."""
        if self.batch_progress.current.ready and not self._handed_on:
            self.hand_on_to_trainer()

    def on_round_end(self) -> None:
        """Return to the settings at the round's start and clear what clients left in the optimizers."""
        self.optimizers.reset()
        self.manual_optimization.on_run_end()
        self.client_log.remove()

    def local_counts(self) -> tuple[int, int]:
        """Return what this process added in the round: batches that stepped, and optimizer steps."""
        stepped, steps = self._counts_at_start
        return self._batches_that_stepped - stepped, self._step_counter.completed - steps

    @property
    def steps_before_round(self) -> int:
        """Optimizer steps up to the round's start."""
        return self._counts_at_start[1]

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

    # ---- counters ----

    @property
    def global_step(self) -> int:
        """Optimizer steps so far, of all clients."""
        self._show_counters()
        return super().global_step

    @property
    def batch_progress(self) -> Any:
        """Batches so far, of the round and of the fit."""
        self._show_counters()
        return self.__dict__["batch_progress"]

    @batch_progress.setter
    def batch_progress(self, progress: Any) -> None:
        self.__dict__["batch_progress"] = progress

    @contextmanager
    def hidden_counters(self) -> Iterator[None]:
        """Raise ``CannotVectorize`` where counters are read."""
        self._hides_counters = True
        try:
            yield
        finally:
            self._hides_counters = False

    def _show_counters(self) -> None:
        if self._hides_counters:
            raise CannotVectorize("the data or a schedule reads counters that all clients share")

    # ---- once a client ----

    def on_client_start(self, round_index: int) -> None:
        """Give the client fresh optimizers and the learning rates of the round in which it received its model."""
        self.optimizers.reset(round_index)
        self._steps_before_client = self._step_counter.completed
        self._window = 0

    def on_client_end(self, slot: int) -> int:
        """Return how many optimizer steps the client made."""
        self.optimizers.on_client_end(slot)
        return self._step_counter.completed - self._steps_before_client

    def show_client(self, position: int, number: int) -> None:
        """Show in the progress bar which client of the round is training."""
        bar: dict[str, Any] = self.trainer._logger_connector._progress_bar_metrics
        bar["client"] = f"{position}/{number}"

    @property
    def _step_counter(self) -> Any:
        if self._automatic:
            return self.automatic_optimization.optim_progress.optimizer.step.total
        return self.manual_optimization.optim_step_progress.total

    # ---- once a batch ----

    def train_batch(self, batch: Any, batch_idx: int, is_last: bool) -> bool:
        """Train on one batch.

        Args:
            batch: A batch as the client's data give it.
            batch_idx: Position in the client's local training.
            is_last: Whether it is the last batch of a pass over the client's data, on which accumulated gradients are
                applied.

        Returns:
            Whether the client goes on; False when the module's ``on_train_batch_start`` returned -1.
        """
        self.stop.poll()
        trainer, progress = self.trainer, self.batch_progress
        round_idx = progress.current.ready
        batch = self._transfer(batch)
        progress.is_last_batch = is_last and round_idx + 1 >= self._round_batches
        progress.increment_ready()
        self._begin_logging(batch)
        self._window += 1
        start, end = self._hooks["on_train_batch_start"], self._hooks["on_train_batch_end"]
        goes_on = True
        if batch is None:
            self._warning_cache.warn("A client's data yielded None instead of a batch, on which nothing is trained.")
        else:
            start.call_callbacks(batch, round_idx)
            goes_on = start.call_module(batch, batch_idx) != -1
            trainer.strategy.on_train_batch_start(batch, batch_idx)
        self._accumulating = not (is_last or self._window >= trainer.accumulate_grad_batches)
        progress.increment_started()
        outputs: dict[str, Any] | None = None if batch is None else {}
        if goes_on and batch is not None:
            with trainer.profiler.profile("run_training_batch"):
                outputs = self._optimize(batch, batch_idx)
        progress.increment_processed()
        if not self._accumulating:
            self._window = 0
        if goes_on:
            if self._automatic and not self._accumulating and self._steps_before_client < self._step_counter.completed:
                self.optimizers.step_in_client(self._step_counter.completed - self._steps_before_client, batch_idx + 1)
            end.call_callbacks(outputs, batch, round_idx)
            end.call_module(outputs, batch, batch_idx)
            self._hand_on_logged_values()
        progress.increment_completed()
        return goes_on

    def _begin_logging(self, batch: Any) -> None:
        """Do what the logger connector does in ``on_batch_start``, without looking the active loop up."""
        connector, results = self.trainer._logger_connector, self._results
        connector._first_loop_iter = connector._first_loop_iter is None
        results.batch, results.batch_size, results.dataloader_idx = batch, None, None

    def _hand_on_logged_values(self) -> None:
        """Give logged values to the loggers every ``log_every_n_steps``, to the trainer when the round ends."""
        if self.batch_progress.is_last_batch:
            self.hand_on_to_trainer()
        else:
            self._results.batch = self._results.batch_size = None
        if self.trainer.loggers:
            self.trainer._logger_connector.update_train_step_metrics()
        if not self._accumulating:
            self._batches_that_stepped += 1

    def hand_on_to_trainer(self) -> None:
        """Give what was logged to the trainer's metrics."""
        self.trainer._logger_connector.on_batch_end()
        self._handed_on = True

    def _should_accumulate(self) -> bool:
        return self._accumulating
