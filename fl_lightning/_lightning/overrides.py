"""Checks for strategies, precision plugins and optimizers that are not Lightning's and torch's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch.nn.modules import module
from torch.optim import Optimizer, optimizer

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
    hooks = (held for name, held in vars(module).items() if name.startswith(("_global_forward", "_global_backward")))
    if any(held for held in hooks if isinstance(held, dict)):
        return "hooks of modules"
    return "step hooks of optimizers" if optimizers_have_global_hooks() else None


def optimizers_have_global_hooks() -> bool:
    """Whether step hooks are registered for all optimizers of the process."""
    return bool(optimizer._global_optimizer_pre_hooks or optimizer._global_optimizer_post_hooks)


def overridden_in_strategy(strategy: Strategy) -> str | None:
    """Return the name of a method of a step that is not Lightning's, ``None`` if all are."""
    return _other_than(strategy, _OF_STRATEGY, (Strategy, SingleDeviceStrategy, DDPStrategy))


def overridden_in_precision(precision: Precision, stock: Sequence[type] = (Precision, MixedPrecision)) -> str | None:
    """Return the name of a method after the training step that is none of the ``stock`` classes', ``None`` if all are.

    Backward pass, clipping and optimizer step are left as they are by :class:`Precision`.
    """
    return _other_than(precision, _OF_PRECISION, stock)


def replaced_in_optimizer(optimizer: Optimizer) -> str | None:
    """Return the name of a method that was replaced in an optimizer object, ``None`` if there is none.

    Learning-rate schedules wrap ``step`` to count its calls; that does not count.
    """
    for name in ("step", "zero_grad"):
        own: Any = vars(optimizer).get(name)
        counts = getattr(own, "_wrapped_by_lr_sched", False)
        if own is not None and not (counts and own.__wrapped__ is getattr(type(optimizer), name)):
            return name
    return None


def _other_than(part: Any, names: Sequence[str], stock: Sequence[type]) -> str | None:
    for name in names:
        known = [getattr(kind, name, None) for kind in stock]
        if name in vars(part) or not any(getattr(type(part), name, None) is method for method in known):
            return name
    return None
