"""The correction of gradients for the client that is training."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

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
        if self.summed_lr:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.summed_lr[self._places[id(parameter)]] += float(group["lr"])

    def _add_gradient(self, optimizer: Optimizer, correction: Correction) -> None:
        stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not stepped:  # `training_step` returned None for the batch
            return
        for parameter, gradient in zip(stepped, unshared([p.grad for p in stepped]), strict=True):
            parameter.grad = gradient
        places = [self._places[id(parameter)] for parameter in stepped]
        linear = [self._linear[place] for place in places] if self._linear else []
        correction.add(stepped, [self._start[place] for place in places], linear)


def add_weight_decay(correction: Correction | None, optimizers: Sequence[Optimizer]) -> None:
    """Add a correction's weight decay to the optimizers' own, for the client that begins.

    Raises:
        ValueError: If an optimizer has no weight decay.
    """
    if correction is None or not correction.weight_decay:
        return
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if "weight_decay" not in group:
                raise ValueError(
                    f'`penalty="weight_decay"` needs an optimizer with weight decay, got '
                    f'{type(optimizer).__name__}. Use torch.optim.SGD, or `penalty="gradient"`.'
                )
            group["weight_decay"] += correction.weight_decay
