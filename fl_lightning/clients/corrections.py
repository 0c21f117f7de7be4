"""The correction of gradients for the client that is training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer, SparseAdam

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
        self._places: dict[int, int] = {}
        self._start: list[Tensor] = []
        self._linear: list[Tensor] = []
        if correction is not None or sums_lr:
            self._places = {id(parameter): place for place, parameter in enumerate(vector.parameters)}
        if correction is not None:
            self._start = vector.views(start)[:number]
            if correction.linear is not None:
                self._linear = vector.parameter_views(correction.linear)

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

    def _add_gradient(self, optimizer: Optimizer, correction: Correction) -> None:
        stepped = _stepped(optimizer)
        if not stepped:  # `training_step` returned None for the batch
            return
        dense = [p.grad if p.grad.layout is torch.strided else p.grad.to_dense() for p in stepped]
        for parameter, gradient in zip(stepped, unshared(dense), strict=True):
            parameter.grad = gradient
        correction.add(stepped, *self._views_of(stepped))

    def value(self, optimizer: Optimizer) -> Tensor | float:
        """Return the value of the term that the objective adds, at the present weights."""
        stepped = _stepped(optimizer)
        return 0.0 if self._correction is None else self._correction.value(stepped, *self._views_of(stepped))

    def _views_of(self, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters as the client received them, and their coefficients of the linear term."""
        places = [self._places[id(parameter)] for parameter in parameters]
        linear = [self._linear[place] for place in places] if self._linear else []
        return [self._start[place] for place in places], linear


def _stepped(optimizer: Optimizer) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def prepare_optimizers(correction: Correction | None, trainer: pl.Trainer) -> None:
    """Prepare the optimizers for the client that begins; add the correction's weight decay to their own.

    Raises:
        ValueError: If an optimizer would not follow the corrected gradient, or has no weight decay.
    """
    if correction is None:
        return
    unscale_before_hooks(trainer.optimizers)
    for optimizer in trainer.optimizers:
        if reason := _reason(optimizer, correction, trainer.lightning_module.automatic_optimization):
            raise ValueError(
                f"The local objective corrects gradients, which needs another optimizer than {type(optimizer).__name__}"
                f": {reason}"
            )
        for group in optimizer.param_groups if correction.weight_decay else ():
            if "weight_decay" not in group:
                raise ValueError(
                    f'`penalty="weight_decay"` needs an optimizer with weight decay, got '
                    f'{type(optimizer).__name__}. Use torch.optim.SGD, or `penalty="gradient"`.'
                )
            group["weight_decay"] += correction.weight_decay


def _reason(optimizer: Optimizer, correction: Correction, automatic: bool) -> str:
    """Return why an optimizer would not minimise the corrected objective; "" if it would."""
    if isinstance(optimizer, SparseAdam):
        return "it takes sparse gradients, and corrected ones are dense. Use torch.optim.Adam."
    if not (isinstance(optimizer, LBFGS) and optimizer.param_groups[0]["line_search_fn"]):
        return ""
    own = type(correction)
    if automatic and (own.add is Correction.add or own.value is not Correction.value):
        return ""
    what = f"define `{own.__name__}.value`" if automatic else "optimise automatically"
    return f"its line search compares losses without the objective's term. Leave out `line_search_fn`, or {what}."
