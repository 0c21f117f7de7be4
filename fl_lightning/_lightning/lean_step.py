"""Backward pass and plain SGD without their fixed costs: the same gradients and weights, bit for bit."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as torch_optimizer

#: Options of SGD's parameter groups under which a step is ``parameter -= lr * gradient``.
_PLAIN = ("momentum", "weight_decay", "nesterov", "maximize", "differentiable", "fused")


class LeanBackward:
    """Puts the gradients of a loss into ``parameter.grad`` as ``backward`` does after ``zero_grad``.

    ``backward`` copies a linear layer's gradient, whose memory is transposed, to give it the parameter's layout; taken
    by ``autograd.grad`` it is used as it is. The first pass keeps the graph, so that a module that cannot be
    differentiated that way (re-entrant checkpointing) goes on with ``backward``.

    Args:
        module: The module.
        optimizer: Its optimizer.
    """

    def __init__(self, module: pl.LightningModule, optimizer: Optimizer) -> None:
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = {id(p): p for p in (*stepped, *module.parameters()) if p.requires_grad}
        self._parameters = list(trained.values())
        hooked = any(getattr(p, "_post_accumulate_grad_hooks", None) for p in self._parameters)
        self._works = type(optimizer).zero_grad is Optimizer.zero_grad and not hooked and bool(self._parameters)
        self._proven = False

    def __bool__(self) -> bool:
        """Whether the gradients can be had this way; otherwise use ``zero_grad`` and ``backward``."""
        return self._works

    def __call__(self, loss: Tensor) -> None:
        """Replace every trained parameter's gradient by that of ``loss``; None where it has no part in it."""
        parameters = self._parameters
        try:
            gradients = torch.autograd.grad(loss, parameters, retain_graph=not self._proven, allow_unused=True)
        except RuntimeError:
            if self._proven:
                raise
            self._works = False
            for parameter in parameters:
                parameter.grad = None
            loss.backward()  # type: ignore[no-untyped-call]
            return
        self._proven = True
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def is_plain_sgd(optimizer: Optimizer, but: str = "") -> bool:
    """Whether a step of ``optimizer`` is ``parameter -= lr * gradient`` at its present settings, and nothing else.

    Args:
        optimizer: The optimizer.
        but: An option that may have any value.
    """
    if type(optimizer) is not SGD or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks:
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
