"""Users' overrides of Lightning's and torch's steps; and the step of plain SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.modules import module
from torch.optim import LBFGS, SGD, Optimizer, optimizer

from fl_lightning._lightning.fit_trainer import fit_trainer

_OF_STRATEGY = (
    *("on_train_batch_start", "batch_to_device", "training_step"),
    *("pre_backward", "backward", "post_backward", "optimizer_step"),
)
_OF_PRECISION = (
    *("pre_backward", "backward", "post_backward", "optimizer_step", "_wrap_closure", "_after_closure"),
    *("_clip_gradients", "clip_gradients", "clip_grad_by_value", "clip_grad_by_norm", "main_params"),
)


def global_hooks() -> str | None:
    """Return which hooks are registered for the whole process, of modules or optimizers; ``None`` if there are none."""
    for name, held in vars(module).items():
        is_registry = name.startswith(("_global_forward", "_global_backward")) and isinstance(held, dict)
        if is_registry and held:
            return "hooks of modules"
    return "step hooks of optimizers" if optimizers_have_global_hooks() else None


def optimizers_have_global_hooks() -> bool:
    """Whether step hooks are registered for all optimizers of the process."""
    return bool(optimizer._global_optimizer_pre_hooks or optimizer._global_optimizer_post_hooks)


def overridden_in_strategy(strategy: Strategy) -> str | None:
    """Return the first method of a step that is not Lightning's; ``None`` if all are."""
    return _other_than(strategy, _OF_STRATEGY, (Strategy, SingleDeviceStrategy, DDPStrategy))


def overridden_in_precision(precision: Precision, stock: Sequence[type] = (Precision, MixedPrecision)) -> str | None:
    """Return the first backward, clipping or step method that is overridden; ``None`` if there is none.

    Args:
        precision: The precision plugin.
        stock: Classes whose methods do not count as overridden. :class:`Precision` changes nothing of a step.
    """
    return _other_than(precision, _OF_PRECISION, stock)


def replaced_in_optimizer(optimizer: Optimizer) -> str | None:
    """Return the first method that was replaced in an optimizer object; ``None`` if there is none.

    Learning-rate schedules wrap ``step`` to count its calls; that does not count.
    """
    for name in ("step", "zero_grad"):
        replaced: Any = vars(optimizer).get(name)
        if replaced is None:
            continue
        counts_alone = getattr(replaced, "_wrapped_by_lr_sched", False)
        if not counts_alone or replaced.__wrapped__ is not getattr(type(optimizer), name):
            return name
    return None


def _other_than(part: Any, names: Sequence[str], stock: Sequence[type]) -> str | None:
    for name in names:
        known = [getattr(kind, name, None) for kind in stock]
        if name in vars(part) or getattr(type(part), name, None) not in known:
            return name
    return None


def is_plain_transfer(trainer: pl.Trainer) -> bool:
    """Whether a batch is only moved to the device: no user's module, data module, strategy or precision changes it."""
    if changes_batches(trainer.lightning_module) or changes_batches(fit_trainer(trainer).datamodule):
        return False
    if overridden_in_strategy(trainer.strategy) == "batch_to_device":
        return False
    precision = trainer.precision_plugin
    return type(precision).convert_input is Precision.convert_input and "convert_input" not in vars(precision)


def changes_batches(thing: pl.LightningModule | pl.LightningDataModule | None) -> bool:
    """Whether a module, or a data module, overrides a hook of the batches' transfer."""
    names = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
    return thing is not None and any(is_overridden(name, thing) for name in names)


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
    # Loops, because this is asked in every step, where generators would take as long as a small model's update.
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            return False
        for name in _PLAIN:
            if group[name] and name != but:
                return False
    return True


def step_plain_sgd(optimizer: Optimizer) -> None:
    """Step every parameter that has a gradient; see :func:`is_plain_sgd`."""
    # Schedules warn if they are stepped before an optimizer that lacks this mark.
    attributes: dict[str, Any] = optimizer.__dict__
    attributes["_opt_called"] = True
    with torch.no_grad():
        for group in optimizer.param_groups:
            parameters: list[Tensor] = []
            gradients: list[Tensor] = []
            parameter: Tensor
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameters.append(parameter)
                    gradients.append(parameter.grad)
            if parameters:
                torch._foreach_add_(parameters, gradients, alpha=-group["lr"])


def is_blind_to_loss(optimizer: Optimizer) -> bool:
    """Whether the optimizer is known not to look at the loss that its closure returns: torch's own but LBFGS."""
    return type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)
