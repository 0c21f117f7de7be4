"""What changes gradients: autograd functions, hooks of all kinds, clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zoo.entry import Entry, one_by_one
from zoo.modules.base import Classifier, changed, losing, prepared


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -0.5 * gradients[0]


class ReverseForStacks(Reverse):
    """The same, with the rule that torch asks for in transforms."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


def through(name: str, between: Callable[[Tensor], Tensor], **options: Any) -> Entry:
    """Return an entry with a function between its two layers."""

    def loss(module: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(module.layers[2](between(module.layers[1](module.layers[0](x)))), y)

    return losing(name, loss, **options)


def hooked(hidden: Tensor) -> Tensor:
    hidden.register_hook(lambda gradient: 2 * gradient)
    return hidden


def checkpointed(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module.layers[2](checkpoint(module.layers[:2], x, use_reentrant=False)), y)


def by_gradient(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Looks at the last step's gradient."""
    gradient = module.layers[0].weight.grad
    return loss * (1.0 if gradient is None else 1.0 + float(gradient.norm()))


def scale_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return 1.5 * output


def halve_inputs(module: nn.Module, before: Any, after: Any) -> Any:
    return tuple(0.5 * gradient for gradient in before if gradient is not None) or None


def halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)  # type: ignore[union-attr]


class OptimizerHook(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(self.slow_down)
        return optimizer

    def slow_down(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5


class HeadOnly(Classifier):
    """The optimizer has the head alone; the trunk has gradients that nobody uses."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers[2].parameters(), lr=0.1)


class ZeroDimensional(Classifier):
    def prepare(self) -> None:
        self.scale = nn.Parameter(torch.ones(()))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.scale * self(x), y)


class UsedSometimes(Classifier):
    """A branch of the network that is used for even batches."""

    def prepare(self) -> None:
        self.branch = nn.Linear(6, 3)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x) + (self.branch(x) if batch_idx % 2 == 0 else 0)
        return F.cross_entropy(logits, y)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2, weight_decay=1e-2)


class ClipsItself(Classifier):
    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        nn.utils.clip_grad_norm_(self.layers[0].parameters(), 0.05)


NORM = {"gradient_clip_val": 0.1}
VALUE = {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}

ENTRIES = [
    Entry("head only, clipped by norm", HeadOnly, trainer=NORM),
    Entry("branch used for even batches", UsedSometimes),
    through("gradient reversal", Reverse.apply),
    losing("activation checkpointing", checkpointed),
    *one_by_one(changed("reads p.grad", by_gradient)),
]
LONG = [
    through("gradient reversal with a vmap rule", ReverseForStacks.apply),
    through("straight-through by detach", lambda h: h + (h.round() - h).detach()),
    prepared("forward hook", lambda m: m.layers[0].register_forward_hook(scale_output)),
    Entry("head only, clipped by value", HeadOnly, trainer=VALUE),
    Entry("0-dim parameter, clipped by norm", ZeroDimensional, trainer=NORM),
    prepared("unused parameter, clipped", lambda m: m.add_module("unused", nn.Linear(3, 2)), trainer=NORM),
    *one_by_one(
        through("tensor hook", hooked),
        prepared("full backward hook", lambda m: m.layers[0].register_full_backward_hook(halve_inputs)),
        prepared("parameter hook", lambda m: m.layers[2].weight.register_hook(lambda g: 0.5 * g)),
        prepared("post-accumulate hook", lambda m: m.layers[0].weight.register_post_accumulate_grad_hook(halve)),
        Entry("optimizer hook before the step", OptimizerHook),
        Entry("configure_gradient_clipping", ClipsItself),
    ),
]
