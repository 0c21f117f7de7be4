"""Plain SGD of a stack inside the backward pass.

The gradient of the worked example's weights is a product, ``slope^T x``. So SGD's step is one call, which reads and
writes the weights once::

    weight.baddbmm_(slope.transpose(1, 2), x, beta=1 - lr * decay, alpha=-lr)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fl_lightning.executors.stack.corrections import StackedCorrections
from fl_lightning.executors.stack.optimizer import StackedOptimizer, along


class _Settings(NamedTuple):
    """How a parameter is stepped.

    Attributes:
        lr: The learning rate.
        kept: What the step leaves of the parameter, ``1 - lr (pull + decay)``; for each client if pulls are unequal.
        shift: ``pull w' - linear``; ``None`` for 0.
    """

    lr: float
    kept: float | Tensor
    shift: Tensor | None


class InPlaceSgd:
    """Plain SGD: ``w = w - lr (g + pull (w - w') + linear + decay w)``, by one product where the gradient is one.

    Args:
        optimizer: The optimizer of the clients.
        terms: What their local objectives add.
    """

    def __init__(self, optimizer: StackedOptimizer, terms: StackedCorrections) -> None:
        self._optimizer = optimizer
        self._terms = terms
        self._parameters: Sequence[Tensor] = ()
        #: One for each parameter; ``None`` for those that are not stepped.
        self._settings: list[_Settings | None] = []

    def prepare(self, parameters: Sequence[Tensor]) -> None:
        """Take the optimizer's present settings for the parameters of the clients at work, shape ``(k, *shape)``."""
        self._parameters = parameters
        rows = range(len(parameters[0]))
        pulls = self._terms.pulls(rows)
        rates = self._optimizer.learning_rates()
        decays = self._optimizer.weight_decays()
        self._settings = []
        for place, parameter in enumerate(parameters):
            lr = rates[place]
            if not lr:
                self._settings.append(None)
                continue
            kept = 1 - lr * (pulls + decays[place])
            if isinstance(kept, Tensor):
                kept = along(kept, parameter)
            self._settings.append(_Settings(lr, kept, self._terms.shift(place, rows)))

    def step(self, place: int, *factors: Tensor) -> None:
        """Step a parameter by its gradient, shape ``(k, *shape)``, or by the two factors of which it is the product."""
        settings = self._settings[place]
        if settings is None:
            return
        lr, kept, shift = settings
        parameter = self._parameters[place]
        is_product = len(factors) == 2
        if is_product and not isinstance(kept, Tensor):
            parameter.baddbmm_(*factors, beta=kept, alpha=-lr)
        else:
            if isinstance(kept, Tensor) or kept != 1:
                parameter.mul_(kept)
            if is_product:
                parameter.baddbmm_(*factors, alpha=-lr)
            else:
                parameter.add_(*factors, alpha=-lr)
        if shift is not None:
            parameter.add_(shift, alpha=lr)
