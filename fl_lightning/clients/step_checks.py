"""Checks that clients make steps of a kind that the algorithm or the aggregation can calculate with."""

from __future__ import annotations

from collections.abc import Collection

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.state_vector import StateVector
from fl_lightning.parts.aggregation import Aggregation, FairMean, NormalizedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import Task, same_values
from fl_lightning.parts.objectives import Correction
from fl_lightning.parts.part import walk


def other_optimizers(trainer: pl.Trainer, momentum: float) -> str:
    """Return in words the module's optimizers that are not SGD with the given momentum; "" if there are none.

    Args:
        trainer: Its optimizers are the module's.
        momentum: The momentum that SGD should have, without Nesterov momentum and dampening.
    """
    found: dict[str, None] = {}
    for optimizer in trainer.optimizers:
        if not isinstance(optimizer, torch.optim.SGD):
            found[type(optimizer).__name__] = None
            continue
        for group in optimizer.param_groups:
            own = group["momentum"]
            further = [f"{name}={group[name]}" for name in ("nesterov", "dampening") if own and group[name]]
            if further or own != momentum:
                found[f"{type(optimizer).__name__} with {', '.join([f'momentum={own}', *further])}"] = None
    return " and ".join(found)


def changes_within_rounds(trainer: pl.Trainer) -> bool:
    """Return whether a scheduler changes learning rates between a client's steps."""
    return any(config.interval == "step" for config in trainer.lr_scheduler_configs)


def check_steps_known(trainer: pl.Trainer, callback: str, aggregation: Aggregation) -> None:
    """Raise ``ValueError`` if an aggregation needs other local steps than the clients make.

    Args:
        trainer: Its optimizers and schedulers are the module's.
        callback: The name of the aggregation callback.
        aggregation: The aggregation of the algorithm.
    """
    if isinstance(aggregation, NormalizedMean) and (other := other_optimizers(trainer, aggregation.momentum)):
        raise ValueError(
            f"{callback} divides updates by the reach of SGD's steps with `momentum={aggregation.momentum}`, so the "
            "module needs torch.optim.SGD with the same momentum, without Nesterov momentum and dampening; it has "
            f"{other}. The reach of other optimizers' steps is not known."
        )
    own_rate = isinstance(aggregation, FairMean) and aggregation.lipschitz is None
    if (isinstance(aggregation, NormalizedMean) or own_rate) and changes_within_rounds(trainer):
        way_out = ", or `lipschitz`, the inverse of a rate" if own_rate else ""
        raise ValueError(
            f"{callback} needs one learning rate within a round, but the module has a scheduler with interval='step'. "
            f"Give interval='epoch', which steps once a round{way_out}."
        )


class StepsOfItsOwn:
    """Refuses a client whose weights have changed by another step than those that Lightning knows of.

    Such a step is not counted, and a local objective cannot correct its gradient.

    Args:
        trainer: Its module may step by itself.
        vector: The federated state of the module, which holds the model from which the client starts.
        algorithm: The algorithm; many do not need steps.
        correction: The correction of the client's gradients; ``None`` for none.
    """

    def __init__(
        self, trainer: pl.Trainer, vector: StateVector, algorithm: Algorithm, correction: Correction | None
    ) -> None:
        self._vector, self._trainer, self._corrects = vector, trainer, correction is not None
        by_lightning = trainer.lightning_module.automatic_optimization and trainer.optimizers
        self._users = _users_of_steps(algorithm, correction) if self._corrects or not by_lightning else []
        self._before: Tensor | None = vector.read() if self._users else None

    def refuse(self, task: Task, model: Tensor, num_steps: int, corrected: Collection[Optimizer]) -> None:
        """Raise ``ValueError`` if weights have changed that no optimizer with corrected gradients steps.

        Args:
            task: The client's task.
            model: The model after training, shape ``(size,)``.
            num_steps: Optimizer steps that were counted.
            corrected: The optimizers whose gradients were corrected; if there are none, counted steps will do where
                nothing is to be corrected.
        """
        if self._before is None or (num_steps and not self._corrects):
            return
        others = [optimizer for optimizer in self._trainer.optimizers if optimizer not in corrected]
        suspects = {id(p) for optimizer in others for group in optimizer.param_groups for p in group["params"]}
        views = zip(self._vector.parameters, self._vector.views(self._before), self._vector.views(model), strict=False)
        if any(not same_values(old, new) for p, old, new in views if id(p) in suspects or not corrected):
            name = type(self._trainer.lightning_module).__name__
            raise ValueError(
                f"{name} has changed the weights of client {task.client} without a step "
                f"of an optimizer that Lightning knows of, but {' and '.join(self._users)} of such an optimizer. "
                "In `training_step`, take `optimizer = self.optimizers()`, without `use_pl_optimizer=False`, and call "
                "`self.manual_backward(loss)` and `optimizer.step()`; in `optimizer_step`, call "
                "`optimizer.step(closure=optimizer_closure)`; or train with an algorithm that needs neither, such as "
                "FedAvg."
            )


def _users_of_steps(algorithm: Algorithm, correction: Correction | None) -> list[str]:
    """Return the parts that need optimizer steps, each with what it does."""
    users = [] if correction is None else [f"{type(algorithm.objective).__name__} corrects gradients at the steps"]
    means = [part for part in walk(algorithm.aggregation) if isinstance(part, NormalizedMean)]
    return users + [f"{type(mean).__name__} counts the steps" for mean in means]
