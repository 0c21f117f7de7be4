"""One client's local training, batch by batch: Lightning's training step without its fixed costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.loops.optimization.manual import ManualResult
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning._lightning.hooks import Hook, Profile, enter_fx
from fl_lightning._lightning.local_optimizers import LocalOptimizers
from fl_lightning._lightning.logging import ClientLog
from fl_lightning._lightning.transfer import batch_transfer

_HOOKS = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)


class ClientLoop(_TrainingEpochLoop):
    """Runs the batches of one client after another, in place of the epoch over one data loader.

    Hooks of callbacks and module, the optimizer's closure, clipping, accumulation and logging run in Lightning's order
    and with Lightning's arithmetic. Callbacks see a batch index that counts through the round, the module one that
    restarts with each client.
    """

    @classmethod
    def take_over(cls, stock: _TrainingEpochLoop) -> ClientLoop:
        """Return a loop with the progress, settings and validation loop of ``stock``."""
        loop = cls(stock.trainer, stock.min_steps, stock.max_steps)
        loop.__dict__.update(stock.__dict__)
        loop._at_last_batch = False
        return loop

    # ---- once a fit ----

    def prepare(self, schedule_steps: int) -> None:
        """Resolve hooks and plugins; call it when model, optimizers and data are set up.

        Args:
            schedule_steps: How far a learning-rate schedule by steps advances in a round (and for a client at most).
        """
        trainer = self.trainer
        self._module = module = trainer.lightning_module
        self._automatic = module.automatic_optimization
        self.optimizers = LocalOptimizers(trainer, schedule_steps)
        self.profile = Profile(trainer)
        self._hooks = {name: Hook(trainer, name, self.profile) for name in _HOOKS}
        self.client_log = ClientLog(module, self._results)
        step = module.training_step
        self._pass_batch_idx = is_param_in_hook_signature(step, "batch_idx", min_args=2)
        precision = trainer.precision_plugin
        plain = type(precision).forward_context is Precision.forward_context
        self._plain_context = plain and type(precision).train_step_context is Precision.train_step_context
        self._plain_precision = self._plain_context and type(precision).optimizer_step is Precision.optimizer_step
        self._own_optimizer_step = is_overridden("optimizer_step", module)
        self._own_zero_grad = is_overridden("optimizer_zero_grad", module)
        around_backward = self._hooks["on_before_backward"] or self._hooks["on_after_backward"]
        self._plain_backward = (
            self._plain_precision
            and not self.profile.active
            and not around_backward
            and not is_overridden("backward", module)
        )
        self._clips = trainer.gradient_clip_val is not None or is_overridden("configure_gradient_clipping", module)
        self._transfer = batch_transfer(trainer)
        self._actions = (
            f"[Strategy]{type(trainer.strategy).__name__}.training_step",
            f"[Strategy]{type(trainer.strategy).__name__}.backward",
        )

    # ---- once a round ----

    def begin_round(self, num_batches: int) -> None:
        """Note the optimizers' and schedules' settings, from which every client starts."""
        self.batch_progress.reset_on_run()
        self.scheduler_progress.reset_on_run()
        self.automatic_optimization.optim_progress.reset_on_run()
        self.val_loop.batch_progress.total.reset()
        self._round_batches = num_batches
        self.optimizers.begin_round()
        self._counts_at_start = (self._batches_that_stepped, self._step_counter.completed)
        self.manual_optimization.on_run_start()
        self.client_log.install()

    def end_round(self) -> None:
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

    # ---- once a client ----

    def begin_client(self, round_index: int) -> None:
        """Give the client fresh optimizers and the learning rates of the round in which it received its model."""
        self.optimizers.reset(round_index)
        self._steps_before_client = self._step_counter.completed
        self._window = 0  # batches whose gradients are accumulated

    def end_client(self, slot: int) -> int:
        """Return how many optimizer steps the client made."""
        self.optimizers.end_client(slot)
        return self._step_counter.completed - self._steps_before_client

    @property
    def _step_counter(self) -> Any:
        if self._automatic:
            return self.automatic_optimization.optim_progress.optimizer.step.total
        return self.manual_optimization.optim_step_progress.total

    # ---- once a batch ----

    def train_batch(self, batch: Any, batch_idx: int, is_last: bool) -> bool:
        """Train on one batch.

        Args:
            batch: As the client's data give it.
            batch_idx: Position in the client's local training.
            is_last: Whether it is the last batch of a pass over the client's data, on which accumulated gradients are
                applied.

        Returns:
            Whether the client goes on; False when the module's ``on_train_batch_start`` returned -1.
        """
        trainer, progress = self.trainer, self.batch_progress
        round_idx = progress.current.ready
        batch = self._transfer(batch)
        progress.is_last_batch = is_last and round_idx + 1 >= self._round_batches
        progress.increment_ready()
        self._begin_logging(batch)
        self._window += 1
        self._accumulating = not (is_last or self._window == trainer.accumulate_grad_batches)
        start, end = self._hooks["on_train_batch_start"], self._hooks["on_train_batch_end"]
        start.call_callbacks(batch, round_idx)
        goes_on = start.call_module(batch, batch_idx) != -1
        progress.increment_started()
        outputs: dict[str, Any] = {}
        if goes_on:
            with self.profile("run_training_batch"):
                outputs = self._optimize(batch, batch_idx)
        progress.increment_processed()
        if not self._accumulating:
            self._window = 0
        if goes_on:
            if self._automatic and not self._accumulating:
                self.optimizers.step_in_client(self._step_counter.completed - self._steps_before_client)
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
        connector = self.trainer._logger_connector
        if self.batch_progress.is_last_batch:
            connector.on_batch_end()
        else:
            self._results.batch = self._results.batch_size = None
        if self.trainer.loggers:
            connector.update_train_step_metrics()
        if not self._accumulating:
            self._batches_that_stepped += 1

    def _should_accumulate(self) -> bool:
        return self._accumulating

    # ---- the optimizer's step ----

    def _optimize(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Run ``training_step``, the backward pass and, unless gradients are accumulated, the optimizer."""
        outputs: dict[str, Any] = {}
        if not self._automatic:
            return ManualResult.from_training_step_output(self._training_step(batch, batch_idx)).asdict()
        optimizer = self.trainer.optimizers[0]

        def closure() -> Tensor | None:
            # an optimizer whose `step` runs without gradients counts on the closure, as in Lightning
            with torch.enable_grad():
                loss, extra = self._read(self._training_step(batch, batch_idx))
                if self._window == 1:
                    self._zero_grad(optimizer, batch_idx)
                if loss is None:
                    self._warning_cache.warn("`training_step` returned `None`; if on purpose, ignore this warning.")
                    return None
                # a scaler multiplies the loss in place
                detached = loss.detach() if self._plain_precision else loss.detach().clone()
                outputs.update({"loss": detached, **extra})
                self._backward(loss, optimizer)
                return detached

        if self._accumulating:
            closure()
            return outputs
        progress = self.automatic_optimization.optim_progress.optimizer.step
        progress.increment_ready()
        self._step(optimizer, batch_idx, closure)
        progress.increment_completed()
        return outputs

    def _step(self, optimizer: Optimizer, batch_idx: int, closure: Callable[[], Tensor | None]) -> None:
        trainer, module = self.trainer, self._module
        if self._own_optimizer_step:
            wrapped = trainer.strategy._lightning_optimizers[0]
            args = (trainer.current_epoch, batch_idx, wrapped, closure)
            call._call_lightning_module_hook(trainer, "optimizer_step", *args)
        elif not self._plain_precision:
            trainer.precision_plugin.optimizer_step(optimizer, model=module, closure=closure)
        else:

            def closure_and_hooks() -> Tensor | None:
                loss = closure()
                self._hooks["on_before_optimizer_step"](optimizer)
                if self._clips:
                    trainer.precision_plugin._clip_gradients(
                        module, optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
                    )
                return loss

            optimizer.step(closure=closure_and_hooks)  # type: ignore[arg-type]

    def _training_step(self, batch: Any, batch_idx: int) -> Any:
        module = self._module
        args = (batch, batch_idx) if self._pass_batch_idx else (batch,)
        previous = enter_fx(module, "training_step")
        if self._plain_context and not self.profile.active:
            output = module.training_step(*args)
        else:
            with self.profile(self._actions[0]), self.trainer.precision_plugin.train_step_context():
                output = module.training_step(*args)
        enter_fx(module, previous)
        return output

    def _read(self, output: Any) -> tuple[Tensor | None, dict[str, Any]]:
        """Return the loss to minimise and the other entries of what ``training_step`` returned."""
        accumulate = self.trainer.accumulate_grad_batches
        if accumulate == 1 and isinstance(output, Tensor):
            return output, {}
        if accumulate == 1 and isinstance(output, Mapping) and isinstance(output.get("loss"), Tensor):
            return output["loss"], {key: value for key, value in output.items() if key != "loss"}
        result = ClosureResult.from_training_step_output(output, accumulate)
        return result.closure_loss, result.extra

    def _zero_grad(self, optimizer: Optimizer, batch_idx: int) -> None:
        self._hooks["on_before_zero_grad"](optimizer)
        if self._own_zero_grad:
            args = (self.trainer.current_epoch, batch_idx, optimizer)
            call._call_lightning_module_hook(self.trainer, "optimizer_zero_grad", *args)
        else:
            optimizer.zero_grad()

    def _backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        if self._plain_backward:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            with self.profile(self._actions[1]):
                self.trainer.strategy.backward(loss, optimizer)
