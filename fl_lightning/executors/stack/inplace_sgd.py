"""Plain SGD of a stack inside the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fl_lightning.executors.stack.corrections import StackedCorrections
from fl_lightning.executors.stack.optimizer import StackedOptimizer, along


class InPlaceSgd:
    """Plain SGD: ``w = w - lr (g + pull (w - w') + linear + decay w)``, by one product where the gradient is one.

    Args:
        optimizer: The optimizer of the clients.
        terms: What their local objectives add.
    """

    def __init__(self, optimizer: StackedOptimizer, terms: StackedCorrections) -> None:
        self._optimizer, self._terms = optimizer, terms
        self._parameters: Sequence[Tensor] = ()
        self._settings: list[tuple[float, float, Tensor | None, Tensor | None]] = []

    def prepare(self, parameters: Sequence[Tensor]) -> None:
        """Take the optimizer's present settings for the parameters of the clients at work, shape ``(k, *shape)``."""
        self._parameters = parameters
        rows = range(len(parameters[0]))
        pulls, stepped = self._terms.pulls(rows), self._optimizer.stepped
        rates, decays = self._optimizer.learning_rates(), self._optimizer.weight_decays()
        self._settings = []
        for place, (parameter, lr, decay) in enumerate(zip(parameters, rates, decays, strict=True)):
            if not stepped[place]:
                self._settings.append((0.0, 1.0, None, None))
            elif isinstance(pulls, Tensor):
                kept = along(1 - lr * (pulls + decay), parameter)
                self._settings.append((lr, 1.0, kept, self._terms.shift(place, rows)))
            else:
                self._settings.append((lr, 1 - lr * (pulls + decay), None, self._terms.shift(place, rows)))

    def step(self, place: int, *factors: Tensor) -> None:
        """Step a parameter by its gradient, shape ``(k, *shape)``, or by the two factors of which it is the product."""
        lr, keep, kept, shift = self._settings[place]
        if not lr:
            return
        parameter = self._parameters[place]
        if kept is not None:
            parameter.mul_(kept)
        if len(factors) == 2:
            parameter.baddbmm_(*factors, beta=keep, alpha=-lr)
        else:
            if keep != 1:
                parameter.mul_(keep)
            parameter.add_(*factors, alpha=-lr)
        if shift is not None:
            parameter.add_(shift, alpha=lr)
