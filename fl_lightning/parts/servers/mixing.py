"""Servers that move a share of the way, or with momentum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.settings import Scheduled, ScheduledFraction


@dataclass(eq=False)
class Mixing(ServerOptimizer):
    """``w_{t+1} = w_t + lr (aggregate - w_t)``: eq. (22), and with ``lr=1`` FedAvg's replacement (3a).

    Equations are numbered as in ``docs/references.md``.

    Args:
        lr: Server learning rate, greater than 0; a function of the round makes a schedule.

    Raises:
        ValueError: If ``lr`` is not a finite number greater than 0.
    """

    lr: Scheduled = 1.0

    @property
    @override
    def replaces_model(self) -> bool:
        return self.lr == 1.0

    @override
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        lr = self.at("lr")
        if lr == 1.0:
            return aggregate
        return (aggregate - model).mul_(lr).add_(model)


@dataclass(eq=False)
class Momentum(ServerOptimizer):
    """``v <- momentum v + Delta; w <- w + lr v`` with ``Delta = aggregate - w`` (FedAvgM, eq. (21)).

    It is ``TorchServer(torch.optim.SGD, lr, momentum=momentum)``, and its momentum may be a schedule.

    Equations are numbered as in ``docs/references.md``.

    Args:
        momentum: beta in [0, 1); with 0 and ``lr=1`` the aggregate replaces the model.
        lr: Server learning rate, greater than 0. Both may be functions of the round.

    Raises:
        ValueError: If an argument is out of its range.
    """

    momentum: ScheduledFraction = 0.9
    lr: Scheduled = 1.0

    @override
    def setup(self, federation: Federation) -> None:
        # A declared state: a round that breaks off puts it back, and from a checkpoint it comes back by
        # `States.load_state_dict`.
        self.velocity: Tensor | None
        self.add_state("velocity", None)

    @override
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        current = model.to(aggregate.dtype)
        delta = aggregate - current
        if self.velocity is None:
            self.velocity = delta
        else:
            self.velocity = self.at("momentum") * self.velocity + delta
        return current + self.at("lr") * self.velocity
