"""What the local objective adds for the client that is training."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.state_vector import StateVector, unshared
from fl_lightning.parts.objectives import Correction


class ClientCorrection:
    """The client's correction, by parameter.

    Args:
        correction: What the local objective adds; ``None`` for nothing.
        vector: The federated state of the module.
        start: The model that the client received, shape ``(size,)``.
    """

    def __init__(
        self, correction: Correction | None = None, vector: StateVector | None = None, start: Tensor | None = None
    ) -> None:
        self._correction = correction
        self._places: dict[int, int] = {}
        self._start: list[Tensor] = []
        self._linear: list[Tensor] = []
        self.summed_lr: list[float] = []
        if correction is None or vector is None or start is None:
            return
        self._places = {id(parameter): place for place, parameter in enumerate(vector.parameters)}
        self._start = vector.views(start)[: len(vector.parameters)]
        if correction.linear is not None:
            self._linear = vector.parameter_views(correction.linear)
        self.summed_lr = [0.0] * len(vector.parameters)

    def set_weight_decay(self, optimizers: list[Optimizer]) -> None:
        """Add the correction's weight decay to the optimizers' own; it ends with the client."""
        if self._correction is None or not self._correction.weight_decay:
            return
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                if "weight_decay" not in group:
                    raise ValueError(
                        f'`penalty="weight_decay"` needs an optimizer with weight decay, got '
                        f'{type(optimizer).__name__}. Use torch.optim.SGD, or `penalty="gradient"`.'
                    )
                group["weight_decay"] += self._correction.weight_decay

    def correct(self, optimizer: Optimizer) -> None:
        """Add the correction's gradient to the gradients that the optimizer is about to use."""
        if self._correction is None:
            return
        stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for parameter, gradient in zip(stepped, unshared([p.grad for p in stepped]), strict=True):
            parameter.grad = gradient
        places = [self._places[id(parameter)] for parameter in stepped]
        linear = [self._linear[place] for place in places] if self._linear else []
        self._correction.add(stepped, [self._start[place] for place in places], linear)

    def count_lr(self, optimizer: Optimizer) -> None:
        """Add the step's learning rates to the sums."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.summed_lr[self._places[id(parameter)]] += float(group["lr"])
