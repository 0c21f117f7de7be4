"""How the server moves: server optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.arguments import check_choice, check_fraction, check_not_negative, check_positive

Rule = Literal["adagrad", "adam", "yogi"]


class ServerOptimizer(ABC):
    """Turns the server's parameters and the clients' aggregate into the server's next parameters."""

    @abstractmethod
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the next parameters.

        Args:
            model: The server's parameters w_t, shape ``(num_parameters,)``.
            aggregate: The merged client parameters, float64 of the same shape.

        Returns:
            w_{t+1}, in the dtype of ``model``; ``model`` itself is not changed.
        """

    def reset(self) -> None:
        """Forget earlier steps."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take the state of a checkpoint."""


class Mixing(ServerOptimizer):
    """``w_{t+1} = w_t + lr (aggregate - w_t)``: eq. (22), and with ``lr=1`` FedAvg's replacement (3a).

    Args:
        lr: Server learning rate, greater than 0.

    Raises:
        ValueError: If ``lr`` is not a finite number greater than 0.
    """

    def __init__(self, lr: float = 1.0) -> None:
        check_positive("server_lr", lr, "1.0 replaces the server's model by the aggregate.")
        self.lr = lr

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the mixed parameters."""
        if self.lr == 1.0:
            return aggregate.to(model.dtype)
        current = model.to(aggregate.dtype)
        return (current + self.lr * (aggregate - current)).to(model.dtype)


class Momentum(ServerOptimizer):
    """``v <- momentum v + Delta; w <- w + lr v`` with ``Delta = aggregate - w`` (FedAvgM, eq. (21)).

    Args:
        momentum: beta in [0, 1); with 0 and ``lr=1`` the aggregate replaces the model.
        lr: Server learning rate, greater than 0.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, momentum: float = 0.9, lr: float = 1.0) -> None:
        check_fraction("momentum", momentum)
        check_positive("server_lr", lr)
        self.momentum = momentum
        self.lr = lr
        self._velocity: Tensor | None = None

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the parameters after one step along the velocity."""
        current = model.to(aggregate.dtype)
        delta = aggregate - current
        self._velocity = delta if self._velocity is None else self.momentum * self._velocity + delta
        return (current + self.lr * self._velocity).to(model.dtype)

    def reset(self) -> None:
        """Stand still."""
        self._velocity = None

    def state_dict(self) -> dict[str, Any]:
        """Return the velocity."""
        return {"velocity": self._velocity}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take the velocity of a checkpoint."""
        self._velocity = _to(state["velocity"], device)


class Adaptive(ServerOptimizer):
    """Adagrad, Adam or Yogi on the server (FedOpt, Reddi et al. Algorithm 2; eq. (17)-(20)).

    With ``Delta = aggregate - w``: ``m <- beta1 m + (1 - beta1) Delta``; v by the rule; ``w <- w + lr m / (sqrt(v) +
    tau)``. There is no bias correction, as in the paper.

    Args:
        rule: ``"adagrad"``: v + Delta^2; ``"adam"``: beta2 v + (1 - beta2) Delta^2; ``"yogi"``:
            v - (1 - beta2) Delta^2 sign(v - Delta^2).
        lr: Server learning rate, greater than 0.
        beta1: In [0, 1).
        beta2: In [0, 1); Adagrad has none.
        tau: Adaptivity, greater than 0.
        v0: The initial v, at least 0.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, rule: Rule, lr: float, beta1: float, beta2: float, tau: float, v0: float) -> None:
        check_choice("rule", rule, ("adagrad", "adam", "yogi"))
        check_positive("server_lr", lr)
        check_fraction("beta1", beta1)
        check_fraction("beta2", beta2)
        check_positive("tau", tau)
        check_not_negative("v0", v0)
        self.rule = rule
        self.lr, self.beta1, self.beta2, self.tau, self.v0 = lr, beta1, beta2, tau, v0
        self._m: Tensor | None = None
        self._v: Tensor | None = None

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the parameters after one adaptive step."""
        current = model.to(aggregate.dtype)
        delta = aggregate - current
        m = torch.zeros_like(delta) if self._m is None else self._m
        v = torch.full_like(delta, self.v0) if self._v is None else self._v
        m = self.beta1 * m + (1 - self.beta1) * delta
        square = delta.square()
        if self.rule == "adagrad":
            v = v + square
        elif self.rule == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * torch.sign(v - square)
        self._m, self._v = m, v
        return (current + self.lr * m / (v.sqrt() + self.tau)).to(model.dtype)

    def reset(self) -> None:
        """Return to m = 0 and v = v0."""
        self._m = self._v = None

    def state_dict(self) -> dict[str, Any]:
        """Return both moments."""
        return {"m": self._m, "v": self._v}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take the moments of a checkpoint."""
        self._m, self._v = _to(state["m"], device), _to(state["v"], device)


def _to(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
