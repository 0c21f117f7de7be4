"""The base of server optimizers, which answer the question: how does the server move?"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from fl_lightning.parts.part import Part


class ServerOptimizer(Part, ABC):
    """Turns the server's parameters and the clients' aggregate into the server's next parameters."""

    @property
    def replaces_model(self) -> bool:
        """Whether the aggregate itself becomes the server's model."""
        return False

    @abstractmethod
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the next parameters.

        Args:
            model: The server's parameters w_t, shape ``(num_parameters,)``; not to be written to.
            aggregate: The merged client parameters, float64 of the same shape.

        Returns:
            w_{t+1}; it is converted to the dtype of ``model``.
        """
