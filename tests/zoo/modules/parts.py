"""User-defined parts of an algorithm: those that hand something from one client or step to the next, and others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from fl_lightning import Federated
from fl_lightning.parts import Exchange, LocalObjective, ProximalModels, Schedule, Term
from zoo.entry import Entry, one_by_one
from zoo.modules.base import Classifier
from zoo.modules.gradients import VALUE


class Chain(Schedule):
    """Cyclic training: a client starts where the one before has ended."""

    last: Any = None

    def sent(self, slot: int, server: Any) -> Tensor:
        return server.model if self.last is None else self.last.vector

    def play(self, tasks: Any, server: Any) -> Any:
        self.last = None
        for self.last in (yield tasks):
            pass
        server.take(self.last)
        server.move()
        return server.model


class PassesOn(Exchange):
    """A client receives what the one before has sent."""

    def __init__(self) -> None:
        self.last: Tensor | None = None

    def on_round_start(self, round_index: int) -> None:
        self.last = None

    def download(self, task: Any, model: Tensor) -> Tensor:
        return model if self.last is None else self.last

    def upload(self, result: Any) -> Any:
        self.last = result.vector.clone()
        return result


class PullByLoss(LocalObjective):
    """The pull is the client's loss, before it trains; there is more beside it for some clients and in some rounds."""

    def correction(self, client: Any) -> Term:
        linear = torch.linspace(-0.1, 0.1, self.federation.layout.num_parameters, dtype=torch.float64)
        return Term(
            pull=client.loss(),
            linear=linear if client.task.client % 2 else None,
            weight_decay=0.1 * client.task.client * (client.task.round == 1),
            frozen=frozenset([1, 2] * (client.task.round == 2)),
        )


class OwnByLoss(ProximalModels):
    """The pull of a client's own model is its loss, where that model is."""

    def correction(self, client: Any) -> Term:
        return Term(pull=client.loss())


class Pull(Term):
    """Pulls back to the start, and along the linear term."""

    strength = 0.05

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        for parameter, received in zip(parameters, start, strict=True):
            parameter.grad.add_(parameter.detach() - received, alpha=self.strength)
        for parameter, own in zip(parameters, linear, strict=False):
            parameter.grad.add_(own)


class Stacking(Pull):
    """Says that a stack may add it, row by row."""

    stacks = True


class Kept(LocalObjective):
    """Returns the same correction for a client each time."""

    def __init__(self, make: Callable[[], Term]) -> None:
        self.known = defaultdict[int, Term](make)

    def correction(self, client: Any) -> Term:
        return self.known[client.task.client]


def decaying() -> Kept:
    """Return corrections with a decay of each client's own."""
    numbers = count()
    # The module has 59 parameters.
    linear = torch.linspace(-0.1, 0.1, 59, dtype=torch.float64)
    return Kept(lambda: Stacking(weight_decay=0.1 * next(numbers), linear=next(numbers) * linear))


class Measured(Classifier):
    """Has a metric object of losses, a buffer, and two parameters that have one gradient."""

    def prepare(self) -> None:
        self.losses = MeanMetric()
        self.one, self.other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.register_buffer("weight", torch.tensor(0.001))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) - self.weight * (self.one + self.other).square().sum()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.update(loss.detach())
        return loss  # type: ignore[no-any-return]


class Turned(Measured):
    """Maximises by some parameters."""

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.layers.parameters()}, {"params": [self.one, self.other], "maximize": True}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def with_part(name: str, part: str, make: Callable[[], Any], module: Any = Measured, **trainer: Any) -> Entry:
    def algorithm(**options: Any) -> Federated:
        return Federated(1.0, **{part: make()}, **options)

    options: Any = {"algorithm": algorithm, "trainer": {"max_epochs": 3, **trainer}, "by_hand": False}
    return Entry(name, module, tolerance=1e-9, **options)


ENTRIES = [
    with_part("pull by the client's loss", "objective", PullByLoss),
    with_part("correction of each client in a stack", "objective", decaying, Turned, **VALUE),
    with_part("own models pulled by their losses", "schedule", OwnByLoss),
    *one_by_one(
        with_part("schedule starts where the last client ended", "schedule", Chain),
        with_part("exchange passes models on", "exchange", PassesOn),
        with_part("correction of each client", "objective", lambda: Kept(Pull)),
    ),
]
