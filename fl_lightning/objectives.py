"""What a client minimises: local objectives, each a correction of the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.arguments import check_not_negative
from fl_lightning.federation import ClientResult, Task


class LocalObjective:
    """The plain objective F_k, and the base of all others.

    A subclass adds a term to the objective by adding that term's gradient to ``parameter.grad`` in :meth:`correct`,
    which is called where Lightning calls ``on_before_optimizer_step``: after the backward pass and before clipping. So
    any ``training_step`` works unchanged.
    """

    def begin(self, task: Task, start: Sequence[Tensor]) -> None:
        """Prepare for one client; ``start`` are the received model's parameters, shaped as the module's."""

    def correct(self, parameters: Sequence[Tensor], start: Sequence[Tensor]) -> None:
        """Add the gradient of the added term to each ``parameter.grad``, in place.

        Args:
            parameters: Parameters that the optimizer is about to step and that have a gradient.
            start: The same parameters as the client received them.
        """

    def end(self, result: ClientResult) -> None:
        """Take note of a client's finished work."""


class Proximal(LocalObjective):
    """``F_k(w) + mu/2 |w - w'|^2`` with w' the received model (FedProx, Li et al. 2020; eq. (4)).

    With redistribution w' is the circulating model that the client received (RADFedp), not the server's.

    Args:
        mu: Weight of the proximal term, at least 0; 0 is the plain objective.

    Raises:
        ValueError: If ``mu`` is negative or not finite.
    """

    def __init__(self, mu: float) -> None:
        check_not_negative("mu", mu, "0 is FedAvg's objective.")
        self.mu = mu

    def correct(self, parameters: Sequence[Tensor], start: Sequence[Tensor]) -> None:
        """Add ``mu (w - w')``."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            drift = torch._foreach_sub([parameter.detach() for parameter in parameters], list(start))
            torch._foreach_add_(gradients, drift, alpha=self.mu)
