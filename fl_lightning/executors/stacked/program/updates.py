"""The use of a program's gradients: plain SGD at once, or gradients for any optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.executors.stacked.corrections import StackedCorrections
from fl_lightning.executors.stacked.optimizer import StackedOptimizer, along


class InPlaceSgd:
    """Plain SGD: ``w = w - lr (g + pull (w - w') + linear + decay w)``, by one product that leaves no gradient.

    Args:
        optimizer: The optimizer of the clients.
        terms: What their local objectives add.
    """

    def __init__(self, optimizer: StackedOptimizer, terms: StackedCorrections) -> None:
        self._optimizer, self._terms = optimizer, terms
        self._parameters: Sequence[Tensor] = ()
        self._settings: list[tuple[float, float, Tensor | None, Tensor | None]] = []

    def prepare(self, parameters: Sequence[Tensor]) -> None:
        """Take the optimizer's present settings.

        Args:
            parameters: Parameters of the clients at work, shape ``(k, *shape)`` each.
        """
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

    def __call__(self, place: int, gradient: Tensor, taken: Tensor | None) -> None:
        """Step a parameter; arguments are those of :data:`~.program.program.Update`."""
        lr, keep, kept, shift = self._settings[place]
        if not lr:
            return
        parameter = self._parameters[place]
        if kept is not None:
            parameter.mul_(kept)
        if taken is not None:
            parameter.baddbmm_(gradient, taken, beta=keep, alpha=-lr)
        else:
            if keep != 1:
                parameter.mul_(keep)
            parameter.add_(gradient.sum(2), alpha=-lr)
        if shift is not None:
            parameter.add_(shift, alpha=lr)


class Gradients:
    """Keeps gradients.

    Args:
        number: Number of parameter tensors.
    """

    def __init__(self, number: int) -> None:
        #: Shape ``(k, *shape)`` each; ``None`` where there is none.
        self.values: list[Tensor | None] = [None] * number

    def __call__(self, place: int, gradient: Tensor, taken: Tensor | None) -> None:
        """Keep a parameter's gradient; arguments are those of :data:`~.program.program.Update`."""
        self.values[place] = gradient.sum(2) if taken is None else torch.bmm(gradient, taken)
