"""The correction of gradients for the client that is training."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from fl_lightning._lightning.local_optimizers import unscale_before_hooks
from fl_lightning.clients.state_vector import StateVector, unshared
from fl_lightning.parts.objectives import Correction


class ClientCorrection:
    """Corrects one client's gradients as the local objective asks, and sums the learning rates of its steps.

    Args:
        correction: The term that the local objective adds; ``None`` for none.
        vector: The federated state of the module.
        start: The model that the client received, shape ``(size,)``.
        sums_lr: Whether to sum the steps' learning rates.
    """

    def __init__(self, correction: Correction | None, vector: StateVector, start: Tensor, sums_lr: bool) -> None:
        self._correction = correction
        number = len(vector.parameters)
        #: Sum of the learning rates so far, for each parameter tensor; empty unless they are summed.
        self.summed_lr: list[float] = [0.0] * number if sums_lr else []
        self.skipped = 0
        """Steps that a gradient scaler has skipped."""
        self.optimizers: set[Optimizer] = set()
        """Those whose gradients were corrected."""
        linear = None if correction is None else correction.linear
        corrects = correction is not None
        self._parameters = vector.parameters
        self._places = {id(p): place for place, p in enumerate(vector.parameters)} if corrects or sums_lr else {}
        self._start = vector.views(start)[:number] if corrects else []
        self._linear = [] if linear is None else vector.parameter_views(linear)

    def apply(self, optimizer: Optimizer) -> None:
        """Correct the gradients that the optimizer is about to use."""
        if self._correction is not None:
            self._add_gradient(optimizer, self._correction)
            self.optimizers.add(optimizer)
        if self.summed_lr:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.summed_lr[self._places[id(parameter)]] += float(group["lr"])

    def value(self) -> Tensor | float:
        """Return the value of the term that the objective adds, at the present weights."""
        correction = self._correction
        return 0.0 if correction is None else correction.value(self._parameters, self._start, self._linear)

    def _add_gradient(self, optimizer: Optimizer, correction: Correction) -> None:
        stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not stepped:  # `training_step` returned None for the batch
            return
        dense = [p.grad if p.grad.layout is torch.strided else p.grad.to_dense() for p in stepped]
        for parameter, gradient in zip(stepped, unshared(dense), strict=True):
            parameter.grad = gradient
        places = [self._places[id(parameter)] for parameter in stepped]
        linear = [self._linear[place] for place in places] if self._linear else []
        correction.add(stepped, [self._start[place] for place in places], linear)


def prepare_optimizers(correction: Correction | None, trainer: pl.Trainer) -> None:
    """Prepare the optimizers for the client that begins; add the correction's weight decay to their own.

    Raises:
        ValueError: If an optimizer would minimise without the correction, or has no weight decay.
    """
    if correction is None:
        return
    unscale_before_hooks(trainer.optimizers)
    for optimizer in trainer.optimizers:
        searches = isinstance(optimizer, LBFGS) and optimizer.param_groups[0]["line_search_fn"]
        if searches and not trainer.lightning_module.automatic_optimization:
            raise ValueError(
                "`line_search_fn` of LBFGS compares losses, to which the local objective's term can be added in "
                "automatic optimisation only. Leave it out, or optimise automatically."
            )
        for group in optimizer.param_groups if correction.weight_decay else ():
            if "weight_decay" not in group:
                raise ValueError(
                    f'`penalty="weight_decay"` needs an optimizer with weight decay, got '
                    f'{type(optimizer).__name__}. Use torch.optim.SGD, or `penalty="gradient"`.'
                )
            group["weight_decay"] += correction.weight_decay
