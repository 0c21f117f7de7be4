"""Plain SGD without its fixed costs: the same weights, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Optimizer

from fl_lightning._lightning.unmodified_classes import optimizers_have_global_hooks, own_of_optimizer

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
    if own_of_optimizer(optimizer) is not None or optimizers_have_global_hooks():
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
