"""How the server moves: server optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from fl_lightning.arguments import check_positive


class ServerOptimizer(ABC):
    """Turns the server's model and the clients' aggregate into the next server's model."""

    @abstractmethod
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the next model.

        Args:
            model: The server's model w_t, shape ``(size,)``.
            aggregate: The merged client models, float64 of shape ``(size,)``.

        Returns:
            w_{t+1}, in the dtype of ``model``; ``model`` itself is not changed.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint."""


class Mixing(ServerOptimizer):
    """``w_{t+1} = w_t + lr (aggregate - w_t)``: SPEC (22), and with ``lr=1`` FedAvg's replacement (3a).

    Args:
        lr: Server learning rate, greater than 0.

    Raises:
        ValueError: If ``lr`` is not a finite number greater than 0.
    """

    def __init__(self, lr: float = 1.0) -> None:
        check_positive("server_lr", lr, "1.0 replaces the server's model by the aggregate.")
        self.lr = lr

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the mixed model."""
        if self.lr == 1.0:
            return aggregate.to(model.dtype)
        current = model.to(aggregate.dtype)
        return (current + self.lr * (aggregate - current)).to(model.dtype)
