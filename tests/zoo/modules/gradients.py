"""What changes gradients: autograd functions, hooks of all kinds, clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zoo.entry import Entry
from zoo.modules.base import Classifier


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


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.factor * gradients[0], None


class Round(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class ThroughFunction(Classifier):
    """Puts a function between the two layers."""

    def between(self, hidden: Tensor) -> Tensor:
        return Reverse.apply(hidden)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.layers[2](self.between(self.layers[1](self.layers[0](x)))), y)


class ThroughStackable(ThroughFunction):
    def between(self, hidden: Tensor) -> Tensor:
        return ReverseForStacks.apply(hidden)


class ThroughScale(ThroughFunction):
    def between(self, hidden: Tensor) -> Tensor:
        return Scale.apply(hidden, 0.1)


class ThroughRound(ThroughFunction):
    def between(self, hidden: Tensor) -> Tensor:
        return Round.apply(hidden)


class StraightThrough(ThroughFunction):
    """The same by detaching, which needs no function."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden + (hidden.round() - hidden).detach()


class Detached(ThroughFunction):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden.detach()


class TensorHook(ThroughFunction):
    """Doubles the gradient of a hidden layer."""

    def between(self, hidden: Tensor) -> Tensor:
        hidden.register_hook(lambda gradient: 2 * gradient)
        return hidden


class Checkpointed(ThroughFunction):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        hidden = checkpoint(self.layers[0], x, use_reentrant=False)
        return F.cross_entropy(self.layers[2](self.layers[1](hidden)), y)


class ForwardHook(Classifier):
    """A hook that scales a layer's output, as adapters do."""

    def prepare(self) -> None:
        self.layers[0].register_forward_hook(lambda module, inputs, output: 1.5 * output)


class KeepsActivations(Classifier):
    """A hook that keeps a layer's output for a penalty."""

    def prepare(self) -> None:
        self.activations: dict[str, Tensor] = {}
        self.layers[0].register_forward_hook(self.keep)

    def keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.activations["hidden"] = output

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        loss = loss + 0.01 * self.activations["hidden"].square().mean()
        self.activations.clear()
        return loss


class BackwardHook(Classifier):
    def prepare(self) -> None:
        self.layers[0].register_full_backward_hook(
            lambda module, before, after: tuple(0.5 * g for g in before if g is not None) or None
        )


class ParameterHook(Classifier):
    def prepare(self) -> None:
        self.layers[2].weight.register_hook(lambda gradient: 0.5 * gradient)


class HookThatStays(Classifier):
    """A post-accumulate hook that halves gradients."""

    def prepare(self) -> None:
        self.layers[0].weight.register_post_accumulate_grad_hook(self.halve)

    @staticmethod
    def halve(parameter: Tensor) -> None:
        parameter.grad.mul_(0.5)


class OptimizerHooks(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.register_step_pre_hook(self.double)
        optimizer.register_step_post_hook(self.shrink)
        return optimizer

    def double(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(2)

    def shrink(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            self.layers[0].weight.mul_(0.9)


class CentralisesGradients(Classifier):
    def on_after_backward(self) -> None:
        weight = self.layers[0].weight
        weight.grad.sub_(weight.grad.mean(dim=1, keepdim=True))


class NoisyGradients(Classifier):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.layers.parameters():
            parameter.grad.add_(0.01 * torch.randn_like(parameter))


class ReadsGradient(Classifier):
    """Looks at the last step's gradient."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        gradient = self.layers[0].weight.grad
        return super().loss(batch, batch_idx) * (1.0 if gradient is None else 1.0 + float(gradient.norm()))


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


class UnusedParameter(Classifier):
    def prepare(self) -> None:
        self.unused = nn.Linear(3, 2)


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
    Entry("gradient reversal", ThroughFunction),
    Entry("gradient reversal with a vmap rule", ThroughStackable),
    Entry("gradient scaling", ThroughScale),
    Entry("straight-through function", ThroughRound),
    Entry("straight-through by detach", StraightThrough),
    Entry("detached trunk", Detached),
    Entry("tensor hook", TensorHook),
    Entry("activation checkpointing", Checkpointed),
    Entry("forward hook", ForwardHook),
    Entry("forward hook keeps activations", KeepsActivations),
    Entry("full backward hook", BackwardHook),
    Entry("parameter hook", ParameterHook),
    Entry("post-accumulate hook", HookThatStays),
    Entry("optimizer hooks", OptimizerHooks),
    Entry("on_after_backward", CentralisesGradients),
    Entry("noise in on_before_optimizer_step", NoisyGradients),
    Entry("reads p.grad", ReadsGradient),
    Entry("clipped by norm", Classifier, trainer=NORM),
    Entry("clipped by value", Classifier, trainer=VALUE),
    Entry("head only, clipped by norm", HeadOnly, trainer=NORM),
    Entry("head only, clipped by value", HeadOnly, trainer=VALUE),
    Entry("0-dim parameter, clipped by norm", ZeroDimensional, trainer=NORM),
    Entry("0-dim parameter, clipped by value", ZeroDimensional, trainer=VALUE),
    Entry("unused parameter, clipped", UnusedParameter, trainer=NORM),
    Entry("branch used for even batches", UsedSometimes),
    Entry("configure_gradient_clipping", ClipsItself),
]
