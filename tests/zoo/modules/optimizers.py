"""Optimizers, parameter groups, schedules, accumulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from torch import Tensor
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from zoo.entry import Entry, one_by_one
from zoo.modules.base import Classifier

Make = Callable[[Any], Any]


class WithOptimizer(Classifier):
    """Trains with any optimizer."""

    def __init__(self, make: Make) -> None:
        super().__init__()
        self.make_optimizer = make

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self)


def plain(kind: Any, **options: Any) -> Callable[[], WithOptimizer]:
    return lambda: WithOptimizer(lambda module: kind(module.parameters(), **options))


def scheduled(
    schedule: Callable[[Any, Any], Any], interval: str, module: type[WithOptimizer] = WithOptimizer
) -> Callable[[], WithOptimizer]:
    def make(module: Any) -> Any:
        optimizer = two_groups(module)
        made = schedule(optimizer, module)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": made, "interval": interval}}

    return lambda: module(make)


def two_groups(module: Any) -> Any:
    """Another learning rate for the head, no decay of biases."""
    trunk, head = module.layers[0], module.layers[2]
    groups = [
        {"params": [trunk.weight], "weight_decay": 0.1},
        {"params": [trunk.bias], "weight_decay": 0.0},
        {"params": head.parameters(), "lr": 0.2},
    ]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def plain_groups(module: Any) -> Any:
    """SGD without momentum, decay or anything else, at two learning rates."""
    groups = [{"params": module.layers[0].parameters()}, {"params": module.layers[2].parameters(), "lr": 0.2}]
    return torch.optim.SGD(groups, lr=0.05)


def reversed_groups(module: Any) -> Any:
    """Groups in another order than the module's parameters."""
    groups = [{"params": module.layers[2].parameters(), "lr": 2e-2}, {"params": module.layers[0].parameters()}]
    return torch.optim.Adam(groups, lr=1e-2)


class FrozenInOptimizer(Classifier):
    """The optimizer has all parameters, of which some are frozen."""

    def prepare(self) -> None:
        self.layers[0].bias.requires_grad_(False)


def lists(module: Any) -> Any:
    """Returns two lists, as older examples do."""
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    return [optimizer], [lr_scheduler.ExponentialLR(optimizer, 0.5)]


class SignDescent(torch.optim.Optimizer):
    """An optimizer of the user's own that treats each value by itself."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad.sign())
        return loss


class WarmsUpByHand(Classifier):
    """Lightning's example: ``optimizer_step`` sets the learning rate by the global step."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (batch_idx + 1) / 4)


def one_cycle(optimizer: Any, module: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=int(module.trainer.estimated_stepping_batches))


def warmup(optimizer: Any, module: Any) -> Any:
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, 6)], milestones=[2])


def exponential(optimizer: Any, module: Any) -> Any:
    return lr_scheduler.ExponentialLR(optimizer, 0.8)


def inverse_root(optimizer: Any, module: Any) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda step: (1 + step) ** -0.5)


TWICE = {"accumulate_grad_batches": 2}
TWO_EPOCHS = {"local_epochs": 2}
SGD, Adam = torch.optim.SGD, torch.optim.Adam


class RateByHook(WithOptimizer):
    """Sets its rate when a schedule would step."""

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        for group in scheduler.optimizer.param_groups:
            group["lr"] = 0.1 if self.global_step < 20 else 0.01


class SetsRates(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        self.trainer.optimizers[0].param_groups[0]["lr"] = 0.01 if batch_idx else 0.3
        return super().loss(batch, batch_idx)


class HooksAll(Classifier):
    """Registers a hook of all optimizers of the process, for the time of the fit."""

    def on_train_start(self) -> None:
        self.handle = register_optimizer_step_post_hook(self.shrink)

    def shrink(self, *arguments: Any) -> None:
        with torch.no_grad():
            self.layers[0].weight.mul_(0.9)

    def on_train_end(self) -> None:
        self.handle.remove()
        del self.handle


def monitors() -> list[Callback]:
    """Return monitors of rates, momenta and decays, by step and by epoch."""
    return [LearningRateMonitor(interval, True, True) for interval in (None, "step", "epoch")]


def head(module: Any) -> Any:
    return torch.optim.SGD(module.layers[2].parameters(), lr=0.1)


ENTRIES = [
    Entry("parameter groups", lambda: WithOptimizer(two_groups), federated=TWO_EPOCHS),
    Entry("plain SGD at two rates", lambda: WithOptimizer(plain_groups)),
    Entry("OneCycleLR by step", scheduled(one_cycle, "step")),
    Entry(
        "accumulates, schedule by step",
        scheduled(exponential, "step"),
        callbacks=monitors,
        not_by_hand=("lr-",),
        trainer=TWICE,
        federated=TWO_EPOCHS,
    ),
]
LONG = [
    Entry("SGD, weight decay", plain(SGD, lr=0.1, weight_decay=0.1)),
    Entry("SGD, Nesterov", plain(SGD, lr=0.1, momentum=0.9, nesterov=True), federated=TWO_EPOCHS),
    Entry("SGD, maximize", plain(SGD, lr=0.01, maximize=True)),
    Entry("SGD, dampening", plain(SGD, lr=0.1, momentum=0.9, dampening=0.5), federated=TWO_EPOCHS),
    Entry("SGD, learning rate in a tensor", plain(SGD, lr=torch.tensor(0.1, dtype=torch.float64))),
    Entry("Adam, fused", plain(Adam, lr=0.01, fused=True)),
    Entry("NAdam", plain(torch.optim.NAdam, lr=0.01)),
    Entry("frozen parameters in the optimizer", FrozenInOptimizer),
    Entry("Adam", plain(Adam, lr=0.01)),
    Entry("AdamW", plain(torch.optim.AdamW, lr=0.01, weight_decay=0.1)),
    Entry("RMSprop, momentum", plain(torch.optim.RMSprop, lr=0.01, momentum=0.5)),
    Entry("Adagrad", plain(torch.optim.Adagrad, lr=0.1)),
    Entry("Rprop", plain(torch.optim.Rprop, lr=0.01)),
    Entry("groups in another order", lambda: WithOptimizer(reversed_groups)),
    Entry("two lists from configure_optimizers", lambda: WithOptimizer(lists)),
    Entry("warm-up and cosine by step", scheduled(warmup, "step")),
    Entry("inverse root by step", scheduled(inverse_root, "step"), federated=TWO_EPOCHS),
    Entry(
        "accumulates three, two epochs",
        plain(Adam, lr=0.01),
        trainer={"accumulate_grad_batches": 3},
        federated=TWO_EPOCHS,
    ),
    *one_by_one(
        Entry("LBFGS", plain(torch.optim.LBFGS, lr=0.1, max_iter=3)),
        Entry("own optimizer, value by value", plain(SignDescent, lr=0.01)),
        Entry("optimizer_step warms up", WarmsUpByHand),
        Entry("rate by lr_scheduler_step", scheduled(exponential, "step", RateByHook), by_hand=False),
        Entry("step sets the learning rate", SetsRates),
        Entry("hook of all optimizers", HooksAll, by_hand=False),
    ),
]
