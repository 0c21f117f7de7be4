"""How the server moves: server optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.arguments import (
    check_bool,
    check_choice,
    check_fraction,
    check_instance,
    check_not_negative,
    check_positive,
    plain,
)
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.guards.contracts import is_finite
from fl_lightning.parts.hyperparameter import Hyperparameter, Scheduled
from fl_lightning.parts.objectives import DynamicRegularizer
from fl_lightning.parts.part import Part

Rule = Literal["adagrad", "adam", "yogi"]


class ServerOptimizer(Part, ABC):
    """Turns the server's parameters and the clients' aggregate into the server's next parameters."""

    @abstractmethod
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the next parameters.

        Args:
            model: The server's parameters w_t, shape ``(num_parameters,)``.
            aggregate: The merged client parameters, float64 of the same shape.

        Returns:
            w_{t+1}; it is converted to the dtype of ``model``, which is not to be written to.
        """


class _Scheduled(ServerOptimizer):
    """A server optimizer whose settings may be functions of the round."""

    _round = 0

    def on_round_start(self, round_index: int) -> None:
        """Note the round, whose settings hold."""
        super().on_round_start(round_index)
        self._round = round_index


class Mixing(_Scheduled):
    """``w_{t+1} = w_t + lr (aggregate - w_t)``: eq. (22), and with ``lr=1`` FedAvg's replacement (3a).

    Equations are numbered as in ``docs/references.md``.

    Args:
        lr: Server learning rate, greater than 0; a function of the round makes a schedule.
        name: What the user calls the learning rate, for errors.

    Raises:
        ValueError: If ``lr`` is not a finite number greater than 0.
    """

    def __init__(self, lr: Scheduled = 1.0, *, name: str = "lr") -> None:
        self._lr = Hyperparameter(name, lr, check_positive, "1.0 replaces the server's model by the aggregate.")
        self.lr = plain(lr)

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the mixed parameters."""
        lr = self._lr.at(self._round)
        if lr == 1.0:
            return aggregate.to(model.dtype)
        current = model.to(aggregate.dtype)
        return (current + lr * (aggregate - current)).to(model.dtype)


class Momentum(_Scheduled):
    """``v <- momentum v + Delta; w <- w + lr v`` with ``Delta = aggregate - w`` (FedAvgM, eq. (21)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        momentum: beta in [0, 1); with 0 and ``lr=1`` the aggregate replaces the model.
        lr: Server learning rate, greater than 0. Both may be functions of the round.
        name: What the user calls the learning rate, for errors.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, momentum: Scheduled = 0.9, lr: Scheduled = 1.0, *, name: str = "lr") -> None:
        self._momentum = Hyperparameter("momentum", momentum, check_fraction)
        self._lr = Hyperparameter(name, lr, check_positive)
        self.momentum, self.lr = plain(momentum), plain(lr)
        self._velocity: Tensor | None = None

    def on_fit_start(self, federation: Federation) -> None:
        """Stand still."""
        self._velocity = None

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the parameters after one step along the velocity."""
        current = model.to(aggregate.dtype)
        delta = aggregate - current
        momentum, lr = self._momentum.at(self._round), self._lr.at(self._round)
        self._velocity = delta if self._velocity is None else momentum * self._velocity + delta
        return (current + lr * self._velocity).to(model.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return the velocity."""
        return {"velocity": self._velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the velocity of a checkpoint."""
        self._velocity = self._to_device(state["velocity"])


class Adaptive(_Scheduled):
    """Adagrad, Adam or Yogi on the server (FedOpt, Reddi et al. Algorithm 2; eq. (17)-(20)).

    With ``Delta = aggregate - w``: ``m <- beta1 m + (1 - beta1) Delta``; v by the rule; ``w <- w + lr m / (sqrt(v) +
    tau)``.

    Equations are numbered as in ``docs/references.md``.

    Args:
        rule: ``"adagrad"``: v + Delta^2; ``"adam"``: beta2 v + (1 - beta2) Delta^2; ``"yogi"``:
            v - (1 - beta2) Delta^2 sign(v - Delta^2).
        lr: Server learning rate, greater than 0; a function of the round makes a schedule. ``None`` takes 0.01, as
            :class:`~fl_lightning.FedAdam` and :class:`~fl_lightning.FedYogi` do, and for Adagrad 0.1, as
            :class:`~fl_lightning.FedAdagrad` does.
        beta1: Decay of the first moment, in [0, 1); ``None`` takes 0.9, and 0 for Adagrad.
        beta2: Decay of the second moment, in [0, 1); Adagrad has none.
        tau: Added to the root of the second moment, greater than 0: the larger, the less the server adapts.
        v0: The initial second moment, at least 0.
        bias_correction: Whether m is divided by ``1 - beta1^t`` and (except for Adagrad) v by ``1 - beta2^t`` in step
            t, as other implementations do; the paper does not.
        name: What the user calls the learning rate, for errors.

    Raises:
        FloatingPointError: In a step, if an update is so large that v becomes infinite.
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        rule: Rule,
        lr: Scheduled | None = None,
        beta1: float | None = None,
        beta2: float = 0.99,
        tau: float = 1e-3,
        v0: float = 0.0,
        *,
        bias_correction: bool = False,
        name: str = "lr",
    ) -> None:
        check_choice("rule", rule, ("adagrad", "adam", "yogi"))
        lr = (0.1 if rule == "adagrad" else 0.01) if lr is None else lr
        beta1 = (0.0 if rule == "adagrad" else 0.9) if beta1 is None else beta1
        check_fraction("beta1", beta1)
        check_fraction("beta2", beta2)
        check_positive("tau", tau)
        check_not_negative("v0", v0)
        check_bool("bias_correction", bias_correction)
        self._lr = Hyperparameter(name, lr, check_positive)
        self.lr = plain(lr)
        self.rule, self.bias_correction = rule, bool(bias_correction)
        self.beta1, self.beta2, self.tau, self.v0 = plain(beta1), plain(beta2), plain(tau), plain(v0)
        self._m: Tensor | None = None
        self._v: Tensor | None = None
        self._steps = 0

    def on_fit_start(self, federation: Federation) -> None:
        """Return to m = 0 and v = v0."""
        self._m = self._v = None
        self._steps = 0

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
        if not is_finite(v):
            raise FloatingPointError(
                f"The second moment of {self!r} is infinite, because the clients' update is so large (its largest "
                f"value is {float(delta.abs().max()):.3g}) that its square is no number any more. The server would "
                "never move again. Lower the clients' learning rate, clip gradients, or give `exchange=Clip(...)`."
            )
        self._m, self._v = m, v
        self._steps += 1
        if self.bias_correction:
            m = m / (1 - self.beta1**self._steps)
            v = v if self.rule == "adagrad" else v / (1 - self.beta2**self._steps)
        return (current + self._lr.at(self._round) * m / (v.sqrt() + self.tau)).to(model.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return both moments and the number of steps."""
        return {"m": self._m, "v": self._v, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the moments of a checkpoint."""
        self._m, self._v, self._steps = self._to_device(state["m"]), self._to_device(state["v"]), state["steps"]


class DynamicServer(ServerOptimizer):
    """``theta <- mean of the active clients + mean of all lambda_k`` (FedDyn, eq. (7), (8), (11)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        objective: The clients' objective, which keeps lambda_k; the mean of all is ``-h / alpha``.

    Raises:
        TypeError: If ``objective`` is no :class:`DynamicRegularizer`.
        ValueError: When an algorithm is made, if its objective is not ``objective``.
    """

    def __init__(self, objective: DynamicRegularizer) -> None:
        check_instance("objective", objective, DynamicRegularizer)
        self._objective = objective

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if no client renews the lambda_k that this part reads."""
        given = parts["objective"]
        if not any(part is self._objective for part in given.with_held_parts):
            raise ValueError(
                f"DynamicServer needs its `objective`, {self._objective!r}, as the algorithm's objective, which keeps "
                f"the clients' lambda_k, got {given!r}. Give the same DynamicRegularizer as both, or use FedDyn."
            )

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the corrected mean."""
        return (aggregate + self._objective.duals.mean).to(model.dtype)
