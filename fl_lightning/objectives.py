"""What a client minimises: local objectives, each a correction of the gradient."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

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
