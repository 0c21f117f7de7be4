"""One batch of a client, from its data to the optimizer's step, as in Lightning but without fixed costs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.loops.optimization.manual import ManualResult
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities import move_data_to_device
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.optim import LBFGS, SGD, Optimizer

from fl_lightning._lightning.hooks import STEP_HOOKS, Hook, enter_fx
from fl_lightning._lightning.overrides import (
    optimizers_have_global_hooks,
    overridden_in_precision,
    overridden_in_strategy,
    replaced_in_optimizer,
)


class ClientStep(_TrainingEpochLoop):
    """The part of a client's loop that computes: hooks, closure and clipping in Lightning's order and arithmetic."""

    #: Returns the value of the term whose gradient hooks add.
    added_to_loss: Callable[[], Tensor | float]
    #: Makes the loss to minimise of a batch and of the loss that ``training_step`` returned.
    change_loss: Callable[[Any, Tensor], Tensor] | None = None
    _window: int  # batches whose gradients are accumulated, the present one included
    _accumulating: bool  # whether the present batch only adds to them

    def _prepare_step(self) -> None:
        """Resolve hooks and plugins: for the fit, and for each round, whose first hooks may set others."""
        trainer = self.trainer
        self._module = module = trainer.lightning_module
        self._automatic = module.automatic_optimization
        self._hooks = {name: Hook(trainer, name) for name in STEP_HOOKS}
        self._pass_batch_idx = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        around_backward = self._hooks["on_before_backward"] or self._hooks["on_after_backward"]
        # whether nobody would notice that backward pass and optimizer step go without strategy and precision plugin
        self._is_plain = (
            overridden_in_precision(trainer.precision_plugin, (Precision,)) is None
            and overridden_in_strategy(trainer.strategy) is None
            and not around_backward
            and not any(is_overridden(name, module) for name in ("backward", "optimizer_step"))
        )
        self._clips = is_overridden("configure_gradient_clipping", module)
        self._actions = [
            f"[Strategy]{type(trainer.strategy).__name__}.{name}" for name in ("training_step", "backward")
        ]

    def _optimize(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Run ``training_step``, the backward pass and, unless gradients are accumulated, the optimizer."""
        outputs: dict[str, Any] = {}
        if not self._automatic:
            with suppress(StopIteration):  # ends the batch
                return ManualResult.from_training_step_output(self._training_step(batch, batch_idx)).asdict()
            return outputs
        optimizer = self.trainer.optimizers[0]
        ran = False

        def closure() -> Tensor | None:
            nonlocal ran
            ran = True
            # an optimizer whose `step` runs without gradients counts on the closure, as in Lightning
            with torch.enable_grad():
                output = self._changed(self._training_step(batch, batch_idx), batch)
                accumulate = self.trainer.accumulate_grad_batches
                if accumulate == 1 and isinstance(output, Tensor):
                    result = ClosureResult(output)  # without a division by 1
                else:
                    result = ClosureResult.from_training_step_output(output, accumulate)
                if self._window == 1:
                    self._hooks["on_before_zero_grad"](optimizer)
                    args = (self.trainer.current_epoch, batch_idx, optimizer)
                    call._call_lightning_module_hook(self.trainer, "optimizer_zero_grad", *args)
                if result.closure_loss is None or result.loss is None:
                    self._warning_cache.warn("`training_step` returned `None`; if on purpose, ignore this warning.")
                    return None
                outputs.update(result.asdict())
                if self._is_plain:
                    self._call("backward", self._actions[1], result.closure_loss.backward)
                else:
                    backward = self.trainer.strategy.backward
                    self._call("backward", self._actions[1], backward, result.closure_loss, optimizer)
                return result.loss if is_blind_to_loss(optimizer) else result.loss + self.added_to_loss()

        if self._accumulating:
            closure()
            return outputs
        progress = self.automatic_optimization.optim_progress.optimizer.step
        progress.increment_ready()
        self._step(optimizer, batch_idx, closure)
        if not ran:
            raise MisconfigurationException(
                f"`{type(optimizer).__name__}.step` was not given the closure, or has not called it, so nothing was "
                "trained. An `optimizer_step` of your own must call `optimizer.step(closure=optimizer_closure)`."
            )
        progress.increment_completed()
        return outputs

    def _step(self, optimizer: Optimizer, batch_idx: int, closure: Callable[[], Tensor | None]) -> None:
        trainer, module = self.trainer, self._module
        if not self._is_plain:
            wrapped = trainer.strategy._lightning_optimizers[0]
            args = (trainer.current_epoch, batch_idx, wrapped, closure)
            call._call_lightning_module_hook(trainer, "optimizer_step", *args)
            return

        def closure_and_hooks() -> Tensor | None:
            loss = closure()
            self._hooks["on_before_optimizer_step"](optimizer)
            if self._clips or trainer.gradient_clip_val is not None:
                trainer.precision_plugin._clip_gradients(
                    module, optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
                )
            return loss

        if is_plain_sgd(optimizer):
            closure_and_hooks()
            step_plain_sgd(optimizer)
        else:
            optimizer.step(closure=closure_and_hooks)  # type: ignore[arg-type]

    def _training_step(self, batch: Any, batch_idx: int, copy: pl.LightningModule | None = None) -> Any:
        """Run ``training_step`` of the module, or of a copy."""
        args = (batch, batch_idx) if self._pass_batch_idx else (batch,)
        if copy is None:
            return self._call("training_step", self._actions[0], self.trainer.strategy.training_step, *args)
        with self.trainer.precision_plugin.train_step_context():
            return copy.training_step(*args)

    def _call(self, hook: str, action: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as a hook, and record it under the name of an action."""
        previous = enter_fx(self._module, hook)
        with self.trainer.profiler.profile(action):
            output = function(*args)
        enter_fx(self._module, previous)
        return output

    def _changed(self, output: Any, batch: Any) -> Any:
        """Return what ``training_step`` returned, with the loss that the local objective makes of its loss."""
        if self.change_loss is None:
            return output
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            return output
        with self.trainer.precision_plugin.train_step_context():
            loss = self.change_loss(batch, loss)
        return {**output, "loss": loss} if isinstance(output, Mapping) else loss


def batch_transfer(trainer: pl.Trainer) -> Callable[[Any], Any]:
    """Return how a batch gets from the client's data to the module: only the hooks that are overridden."""
    module, precision = trainer.lightning_module, trainer.precision_plugin
    if not is_plain_transfer(trainer):

        def with_hooks(batch: Any) -> Any:
            batch = precision.convert_input(batch)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
            return call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)

        return with_hooks
    return partial(move_data_to_device, device=trainer.strategy.root_device)


def is_plain_transfer(trainer: pl.Trainer) -> bool:
    """Whether a batch is only moved to the device."""
    precision = trainer.precision_plugin
    plain = type(precision).convert_input is Precision.convert_input and "convert_input" not in vars(precision)
    return not has_transfer_hooks(trainer) and plain


def has_transfer_hooks(trainer: pl.Trainer) -> bool:
    """Whether a user's module, data module or strategy sees batches on their way."""
    module, data = trainer.lightning_module, trainer.datamodule
    names = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
    overridden = any(is_overridden(name, module) or (data is not None and is_overridden(name, data)) for name in names)
    return overridden or overridden_in_strategy(trainer.strategy) == "batch_to_device"


def takes_dataloader_iter(module: pl.LightningModule) -> bool:
    """Whether ``training_step`` asks for the data loader's iterator instead of a batch."""
    return "dataloader_iter" in inspect.signature(module.training_step).parameters


#: Options of SGD's parameter groups under which a step is ``parameter -= lr * gradient``.
_PLAIN = ("momentum", "weight_decay", "nesterov", "maximize", "differentiable", "fused")


def is_plain_sgd(optimizer: Optimizer, but: str = "") -> bool:
    """Whether a step of ``optimizer`` is ``parameter -= lr * gradient`` at its present settings, and nothing else.

    Args:
        optimizer: The optimizer.
        but: An option that may have any value.
    """
    if type(optimizer) is not SGD or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if replaced_in_optimizer(optimizer) is not None or optimizers_have_global_hooks():
        return False
    options = [name for name in _PLAIN if name != but]
    groups = optimizer.param_groups
    return not any(any(group[name] for name in options) or isinstance(group["lr"], Tensor) for group in groups)


def step_plain_sgd(optimizer: Optimizer) -> None:
    """Step every parameter that has a gradient; see :func:`is_plain_sgd`."""
    attributes: dict[str, Any] = optimizer.__dict__
    attributes["_opt_called"] = True  # schedules warn if they are stepped before the optimizer
    with torch.no_grad():
        for group in optimizer.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-group["lr"])


def is_blind_to_loss(optimizer: Optimizer) -> bool:
    """Whether the optimizer is known not to look at the loss that its closure returns: torch's own but LBFGS."""
    return type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)
