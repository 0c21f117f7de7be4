"""FedAvg with a server optimizer: momentum, Adagrad, Adam, Yogi."""

from __future__ import annotations

from typing import Any, ClassVar

from fl_lightning.algorithms.fedavg import FedAvg
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.hyperparameter import Scheduled
from fl_lightning.parts.server_optimizers import Adaptive, Momentum, Rule


class FedAvgM(FedAvg):
    """FedAvgM (Hsu et al. 2019; eq. (21)): momentum on the server.

    Args:
        momentum: beta in [0, 1); with 0 and ``server_lr=1`` this is FedAvg.
        server_lr: Server learning rate, greater than 0. Both may be functions of the round.
        kwargs: The other arguments of :class:`FedAvg`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, momentum: Scheduled = 0.9, *, server_lr: Scheduled = 1.0, **kwargs: Any) -> None:
        self.momentum = momentum
        super().__init__(server_lr=server_lr, **kwargs)

    def configure_algorithm(self) -> Algorithm:
        """Return FedAvg's parts with momentum on the server."""
        algorithm = super().configure_algorithm()
        algorithm.server_optimizer = Momentum(self.momentum, self.server_lr)
        return algorithm


class _FedOpt(FedAvg):
    """FedAvg with an adaptive server (Reddi et al. 2021, Algorithm 2; eq. (17)-(20))."""

    rule: ClassVar[Rule]

    def __init__(self, server_lr: Scheduled, adaptive: dict[str, float], bias_correction: bool, **kwargs: Any) -> None:
        self._optimizer = Adaptive(self.rule, server_lr, **adaptive, bias_correction=bias_correction)
        super().__init__(server_lr=server_lr, **kwargs)

    def configure_algorithm(self) -> Algorithm:
        """Return FedAvg's parts with the adaptive server."""
        algorithm = super().configure_algorithm()
        algorithm.server_optimizer = self._optimizer
        return algorithm


class FedAdagrad(_FedOpt):
    """FedAdagrad (Reddi et al. 2021): ``v <- v + Delta^2; w <- w + server_lr m / (sqrt(v) + tau)``.

    Args:
        server_lr: Server learning rate, greater than 0.
        beta1: In [0, 1); 0 as in the authors' code, 0.9 as in their Algorithm 2.
        tau: Adaptivity, greater than 0.
        v0: The initial v, at least 0.
        bias_correction: Whether the moments are divided by ``1 - beta^t``; not so in the paper.
        kwargs: The other arguments of :class:`FedAvg`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    rule: ClassVar[Rule] = "adagrad"

    def __init__(
        self,
        *,
        server_lr: Scheduled = 0.1,
        beta1: float = 0.0,
        tau: float = 1e-3,
        v0: float = 0.0,
        bias_correction: bool = False,
        **kwargs: Any,
    ) -> None:
        adaptive = {"beta1": beta1, "beta2": 0.0, "tau": tau, "v0": v0}
        super().__init__(server_lr, adaptive, bias_correction, **kwargs)


class FedAdam(_FedOpt):
    """FedAdam (Reddi et al. 2021): ``v <- beta2 v + (1 - beta2) Delta^2; w <- w + server_lr m / (sqrt(v) + tau)``.

    Args:
        server_lr: Server learning rate, greater than 0.
        beta1: In [0, 1).
        beta2: In [0, 1).
        tau: Adaptivity, greater than 0.
        v0: The initial v, at least 0.
        bias_correction: Whether the moments are divided by ``1 - beta^t``; not so in the paper.
        kwargs: The other arguments of :class:`FedAvg`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    rule: ClassVar[Rule] = "adam"

    def __init__(
        self,
        *,
        server_lr: Scheduled = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        v0: float = 0.0,
        bias_correction: bool = False,
        **kwargs: Any,
    ) -> None:
        adaptive = {"beta1": beta1, "beta2": beta2, "tau": tau, "v0": v0}
        super().__init__(server_lr, adaptive, bias_correction, **kwargs)


class FedYogi(FedAdam):
    """FedYogi (Reddi et al. 2021): ``v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)``.

    The arguments are those of :class:`FedAdam`.
    """

    rule: ClassVar[Rule] = "yogi"
